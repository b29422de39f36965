//! A decoder with the shape of Llama 3.2 1B: grouped heads, rotary embeddings, RMSNorm and tied embeddings.

use warpline::functional::{AttentionOptions, linear, scaled_dot_product_attention};
use warpline::{DType, Result, Tensor, arange, arange_start_step, cat, expr, zeros};
use warpline_nn::{Embedding, Linear, LinearOptions, Module, RMSNorm, RMSNormOptions};

/// Sizes of a decoder.
#[derive(Clone, Copy)]
pub(crate) struct DecoderSizes {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// Positions that the cache holds.
    pub(crate) capacity: usize,
}

#[derive(Module)]
struct Layer {
    n1: RMSNorm,
    n2: RMSNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    key_heads: usize,
}

/// The tensors that all layers of a step share.
struct Position<'a> {
    cos: Tensor,
    sin: Tensor,
    index: &'a Tensor,
    mask: Tensor,
}

/// Rotates the halves of each head.
fn rotate(x: Tensor, at: &Position<'_>) -> Result<Tensor> {
    let halves = x.chunk(2, -1)?;
    expr!(x * at.cos + cat(&[&-&halves[1], &halves[0]], -1)? * at.sin)
}

impl Layer {
    fn new(sizes: DecoderSizes) -> Result<Self> {
        let DecoderSizes { width, heads, key_heads, hidden, .. } = sizes;
        let narrow = width / heads * key_heads;
        let linear =
            |inputs, outputs| Linear::new(inputs, outputs, LinearOptions::new().bias(false));
        let norm = || RMSNorm::new([width], RMSNormOptions::new().eps(1e-5));
        Ok(Self {
            n1: norm()?,
            n2: norm()?,
            q: linear(width, width)?,
            k: linear(width, narrow)?,
            v: linear(width, narrow)?,
            o: linear(width, width)?,
            gate: linear(width, hidden)?,
            up: linear(width, hidden)?,
            down: linear(hidden, width)?,
            heads,
            key_heads,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        at: &Position<'_>,
        [keys, values]: &[Tensor; 2],
    ) -> Result<Tensor> {
        let [b, l, width] = x.dims()?;
        let apart =
            |t: Tensor, heads: usize| t.view((b, l, heads, width / self.heads))?.transpose(1, 2);
        let y = self.n1.forward(x)?;
        let q = rotate(apart(self.q.forward(&y)?, self.heads)?, at)?;
        let k = rotate(apart(self.k.forward(&y)?, self.key_heads)?, at)?;
        let v = apart(self.v.forward(&y)?, self.key_heads)?;
        keys.index_copy_(2, at.index, &k)?;
        values.index_copy_(2, at.index, &v)?;
        let options = AttentionOptions::new().attn_mask(&at.mask).enable_gqa(true);
        let y = scaled_dot_product_attention(&q, keys, values, options)?;
        let x = x.add(&self.o.forward(&y.transpose(1, 2)?.reshape([b, l, width])?)?)?;
        let y = self.n2.forward(&x)?;
        let y = self.gate.forward(&y)?.silu()?.mul(&self.up.forward(&y)?)?;
        x.add(&self.down.forward(&y)?)
    }
}

/// The decoder's parameters.
#[derive(Module)]
pub(crate) struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RMSNorm,
}

impl Decoder {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        Ok(Self {
            embedding: Embedding::new(sizes.vocabulary, sizes.width, ())?,
            layers: (0..sizes.layers).map(|_| Layer::new(sizes)).collect::<Result<_>>()?,
            norm: RMSNorm::new([sizes.width], RMSNormOptions::new().eps(1e-5))?,
        })
    }
}

/// The state of decoding one sequence.
pub(crate) struct Decoding {
    token: Tensor,
    position: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    caches: Vec<[Tensor; 2]>,
    capacity: usize,
}

impl Decoding {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        let own = sizes.width / sizes.heads;
        let cache = || zeros([1, sizes.key_heads, sizes.capacity, own], (DType::BF16, "cuda"));
        let steps = arange_start_step(0.0, own as f64, 2.0, (DType::F32, "cuda"))?;
        Ok(Self {
            token: zeros([1, 1], (DType::I64, "cuda"))?,
            position: zeros([1], (DType::I64, "cuda"))?,
            positions: arange(sizes.capacity as i64, (DType::I64, "cuda"))?,
            frequencies: steps.mul(-500_000f64.ln() / own as f64)?.exp()?,
            caches: (0..sizes.layers).map(|_| Ok([cache()?, cache()?])).collect::<Result<_>>()?,
            capacity: sizes.capacity,
        })
    }

    /// Decodes one token.
    pub(crate) fn step(&self, model: &Decoder) -> Result<()> {
        let angles =
            self.position.to(DType::F32)?.unsqueeze(1)?.mul(&self.frequencies.unsqueeze(0)?)?;
        let angles = cat(&[&angles, &angles], -1)?.to(DType::BF16)?;
        let at = Position {
            cos: angles.cos()?,
            sin: angles.sin()?,
            index: &self.position,
            mask: self.positions.le(&self.position)?.view([1, 1, 1, self.capacity])?,
        };
        let mut x = model.embedding.forward(&self.token)?;
        for (layer, cache) in model.layers.iter().zip(&self.caches) {
            x = layer.forward(&x, &at, cache)?;
        }
        let logits = linear(&model.norm.forward(&x)?, &model.embedding.weight, None)?;
        self.token.copy_(&logits.argmax(-1)?, false)?;
        self.position.add_(1)?.remainder_(self.capacity as i64)?;
        Ok(())
    }
}
