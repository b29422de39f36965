//! Runs a network on several GPUs, as in PyTorch's note on CUDA semantics:
//!
//! ```sh
//! WARPLINE_DRIVER=sim:4 cargo run -p warpline-parallel --example data_parallel
//! cargo run --release -p warpline-parallel --example data_parallel -- --devices 2
//! ```

use std::sync::{Arc, Mutex};

use clap::Parser;
use warpline::{Result, Tensor, cuda, manual_seed, randn};
use warpline_nn::{Forward, Linear, Module, ReLU, Sequential};
use warpline_parallel::{DataParallel, DataParallelOptions};

#[derive(Debug, Parser)]
struct Args {
    /// Number of GPUs. Default: all.
    #[arg(long)]
    devices: Option<usize>,
    /// Number of rows of the input.
    #[arg(long, default_value_t = 10)]
    batch: usize,
}

/// A network that records the device and shapes of each forward pass.
#[derive(Clone, Module)]
struct Model {
    net: Sequential,
    #[module(skip)]
    notes: Arc<Mutex<Vec<String>>>,
}

impl Forward<Tensor> for Model {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let (device, size) = (x.device(), x.size().to_vec());
        let out = self.net.forward(&x)?;
        let note = format!("    in {device}: {size:?} to {:?} on {}", out.size(), out.device());
        self.notes.lock().unwrap_or_else(|e| e.into_inner()).push(note);
        Ok(out)
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    println!("{} CUDA device(s)", cuda::device_count()?);
    manual_seed(1);
    let net =
        Sequential::new().with(Linear::new(16, 32, ())?).with(ReLU).with(Linear::new(32, 4, ())?);
    let mut model = Model { net, notes: Arc::default() };
    if cuda::is_available()? {
        model.to("cuda:0")?;
    }
    let x = randn([args.batch, 16], ())?;
    let x = if cuda::is_available()? { x.to("cuda:0")? } else { x };
    let expected = model.net.forward(&x)?;

    let mut options = DataParallelOptions::new();
    if let Some(devices) = args.devices {
        options = options.device_ids(&(0..devices).collect::<Vec<_>>());
    }
    let net = DataParallel::new(model, options)?;
    for forward in 1..=2 {
        println!("forward {forward} over {:?}", net.device_ids());
        let out = net.forward(x.clone())?;
        let mut notes =
            std::mem::take(&mut *net.module().notes.lock().unwrap_or_else(|e| e.into_inner()));
        notes.sort();
        notes.iter().for_each(|note| println!("{note}"));
        println!("    out: {:?} on {}", out.size(), out.device());
        let difference = out.sub(&expected)?.abs()?.flatten(())?.max(0)?.0.item::<f32>()?;
        println!("    largest difference from one device: {difference:e}");
        anyhow::ensure!(difference <= 1e-5, "the outputs differ");
    }
    Ok(())
}
