//! Trains the network of `train_digits` (in `warpline-nn`) on two or more ranks. Each rank has its own part of each
//! epoch.
//!
//! On CPUs: `cargo build --release -p warpline-parallel --example train_digits_ddp --bin warpline-run`, then
//! `target/release/warpline-run --nproc 2 target/release/examples/train_digits_ddp`. On simulated GPUs, add `--driver
//! sim` after `warpline-run`, and `--backend nccl` at the end. On real GPUs, add only `--backend nccl`.

#[path = "../../nn/examples/data/digits.rs"]
mod digits;
mod support;

use clap::Parser;
use warpline::data::{DataLoader, DistributedSampler, TensorDataset};
use warpline::functional::cross_entropy;
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_nn::{Apply, Module};
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, InitOptions, init_process_group,
};

use digits::{accuracy, digits, network};
use support::BackendName;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value = "cpu")]
    backend: BackendName,
    #[arg(long, default_value_t = 4)]
    epochs: u64,
    /// Number of images in a batch of each rank.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let backend = Backend::from(args.backend);
    let group = init_process_group(InitOptions::from_env(backend)?)?;
    let (rank, ranks, device) = (group.rank(), group.world_size(), group.device());
    let (learned, held_out) = digits()?;

    let mut net = DistributedDataParallel::new(network(device)?, group.clone(), ())?; // PyTorch also needs this additional line
    let mut optimizer = AdamW::new(net.parameters(), AdamWOptions::new().lr(args.lr))?;
    for epoch in 0..args.epochs {
        let sampler = DistributedSampler::new(learned.1.numel(), ranks, rank)?;
        sampler.set_epoch(epoch);
        let loader = DataLoader::new(TensorDataset::new(learned.0.clone(), learned.1.clone())?)
            .batch_size(args.batch_size)?
            .sampler(sampler)
            .pin_memory(device.is_cuda());
        let mut last = None;
        for batch in loader.iter()? {
            let (images, labels) = batch?;
            let read = images.to_non_blocking(device)?.apply(&net)?;
            let loss = cross_entropy(&read, &labels.to_non_blocking(device)?, ())?;
            optimizer.zero_grad()?;
            loss.backward()?;
            optimizer.step()?;
            last = Some(loss);
        }
        if let Some(loss) = last {
            println!("rank {rank} of {ranks}, epoch {epoch}: loss {:.4}", loss.item::<f32>()?);
        }
    }
    let right = accuracy(net.module_mut(), &held_out, device)?;
    println!(
        "rank {rank}: {:.1} % of {} held-out images are classified correctly",
        100.0 * right,
        held_out.1.numel()
    );
    group.barrier()?;
    anyhow::ensure!(right > 0.8, "the network has not learned to classify digits");
    Ok(())
}
