//! Measures the forward pass of eight `Linear` with `ReLU` on one GPU and on several GPUs; with `--train`, a whole
//! training step. `benches/data_parallel.py` measures PyTorch with the same shapes and options.
//!
//! ```sh
//! cargo run --release -p warpline-parallel --example data_parallel_speed
//! WARPLINE_DRIVER=sim:2 cargo run --release -p warpline-parallel --example data_parallel_speed -- \
//!     --width 64 --batches 64
//! ```

use std::time::{Duration, Instant};

use clap::Parser;
use warpline::{DType, Device, Tensor, cuda, randn};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_nn::{Linear, Module, ReLU, Sequential};
use warpline_parallel::{DataParallel, DataParallelOptions};

#[derive(Debug, Parser)]
struct Args {
    /// Numbers of GPUs to use. Default: 2, 4 and 8, up to the number of GPUs.
    #[arg(long, value_delimiter = ',')]
    devices: Vec<usize>,
    /// Numbers of rows of the input.
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 8192, 32768])]
    batches: Vec<usize>,
    /// Number of inputs and outputs of each layer.
    #[arg(long, default_value_t = 4096)]
    width: usize,
    /// Number of forward passes, or of training steps with `--train`, to time. The median is printed.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Put the input in page-locked memory instead of on the first GPU.
    #[arg(long)]
    pinned: bool,
    /// Time training steps: forward pass, mean of the squares as the loss, backward pass, and a step of SGD.
    #[arg(long)]
    train: bool,
}

fn synchronize() -> anyhow::Result<()> {
    for device in 0..cuda::device_count()? {
        cuda::synchronize(device)?;
    }
    Ok(())
}

/// Returns the median times until all work is done, and until the host is free again.
fn time(runs: usize, mut f: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<[Duration; 2]> {
    f()?;
    f()?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..runs.max(1) {
        synchronize()?;
        let start = Instant::now();
        f()?;
        times[1].push(start.elapsed());
        synchronize()?;
        times[0].push(start.elapsed());
    }
    Ok(times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    }))
}

/// Runs a forward pass, and with an optimizer the rest of a training step.
fn step(
    forward: impl FnOnce() -> warpline::Result<Tensor>,
    optimizer: Option<&mut SGD>,
) -> anyhow::Result<()> {
    let Some(optimizer) = optimizer else { return Ok(forward().map(drop)?) };
    optimizer.zero_grad()?;
    forward()?.square()?.mean(())?.backward()?;
    Ok(optimizer.step()?)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let found = cuda::device_count()?;
    println!("{found} GPU(s): {}", cuda::get_device_name(0)?);
    let mut counts = args.devices.clone();
    if counts.is_empty() {
        counts = [2, 4, 8].into_iter().filter(|n| *n <= found).collect();
    }
    let options = (DType::BF16, Device::cuda(0));
    let mut net = Sequential::new();
    for _ in 0..8 {
        net.push(Linear::new(args.width, args.width, options)?);
        net.push(ReLU);
    }
    for batch in args.batches {
        let x = randn([batch, args.width], options)?;
        let input = if args.pinned { x.cpu()?.pin_memory()? } else { x };
        // A rate of zero keeps the parameters, so that no run diverges.
        let sgd = || SGD::new(net.parameters(), SGDOptions::new().lr(0.0));
        let mut optimizer = args.train.then(sgd).transpose()?;
        let [one, host] = time(args.runs, || {
            let forward = || net.forward(&input.to_non_blocking(Device::cuda(0))?);
            step(forward, optimizer.as_mut())
        })?;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!("batch {batch:6}  1 GPU : {:9.1} us (host {:7.1} us)", us(one), us(host));
        for &count in &counts {
            let ids: Vec<usize> = (0..count).collect();
            let options = DataParallelOptions::new().device_ids(&ids);
            let parallel = DataParallel::new(net.clone(), options)?;
            let forward = || parallel.forward(input.clone());
            let [all, host] = time(args.runs, || step(forward, optimizer.as_mut()))?;
            println!(
                "batch {batch:6}  {count} GPUs: {:9.1} us (host {:7.1} us)  x{:.2}",
                us(all),
                us(host),
                us(one) / us(all)
            );
        }
    }
    Ok(())
}
