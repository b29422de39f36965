//! Decoding with a cache of keys and values that is allocated once. Each step writes one row in place, and
//! computes attention over a view of the rows written so far.
//!
//! `cargo run --example kv_cache`; put `WARPLINE_DRIVER=sim:1` before the command to run on a simulated GPU.

use warpline::{Device, Result, Tensor, cat, cuda, embedding, manual_seed, randn, tensor, zeros};

const VOCABULARY: usize = 50;
const WIDTH: usize = 32;
const LONGEST: usize = 64;

/// One head of attention over a cache.
struct Attention {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    length: usize,
}

impl Attention {
    fn new(device: Device) -> Result<Self> {
        let weight = || randn([WIDTH, WIDTH], device)?.mul((WIDTH as f64).powf(-0.5));
        Ok(Self {
            query: weight()?,
            key: weight()?,
            value: weight()?,
            keys: zeros([LONGEST, WIDTH], device)?,
            values: zeros([LONGEST, WIDTH], device)?,
            length: 0,
        })
    }

    /// Computes the attention of one token, `[1, WIDTH]`, to itself and all earlier tokens.
    fn step(&mut self, x: &Tensor) -> Result<Tensor> {
        // A view shares the memory, so a copy to the row writes to the cache.
        let row = self.length..=self.length;
        self.keys.i(row.clone())?.copy_(&x.matmul(&self.key)?, ())?;
        self.values.i(row)?.copy_(&x.matmul(&self.value)?, ())?;
        self.length += 1;
        let (keys, values) = (self.keys.i(..self.length)?, self.values.i(..self.length)?);
        let scores = (x.matmul(&self.query)?.matmul(&keys.t()?)? / (WIDTH as f64).sqrt())?;
        scores.softmax(-1)?.matmul(&values)
    }
}

fn main() -> Result<()> {
    let device = if cuda::is_available()? { Device::Cuda(None) } else { Device::Cpu };
    manual_seed(0);
    let (table, head) = (randn([VOCABULARY, WIDTH], device)?, randn([WIDTH, VOCABULARY], device)?);
    let mut attention = Attention::new(device)?;

    // The token stays on the GPU between steps, so the host enqueues steps without waiting for results.
    let mut token = tensor([7i64], device)?;
    let mut tokens = vec![token.clone()];
    while tokens.len() < LONGEST {
        let x = embedding(&table, &token)?;
        let attended = attention.step(&x)?;
        let logits = (attended + x)?.matmul(&head)?;
        token = logits.argmax(1)?;
        tokens.push(token.clone());
    }
    let tokens = cat(&tokens, 0)?.to_vec::<i64>()?;
    println!("on {device}: {tokens:?}");
    assert_eq!(tokens.len(), LONGEST);
    assert!(tokens.iter().all(|t| (0..VOCABULARY as i64).contains(t)));
    Ok(())
}
