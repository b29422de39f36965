//! Trains a small convolutional network to recognize handwritten digits, on two or more ranks. Each rank has its own part
//! of each epoch.
//!
//! On CPUs: `cargo build --release -p warpline-parallel --example train_digits_ddp --bin warpline-run`, then
//! `target/release/warpline-run --nproc 2 target/release/examples/train_digits_ddp`. On simulated GPUs, add `--driver sim`
//! after `warpline-run`, and `--backend nccl` at the end; on real GPUs only the latter.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use warpline::autograd::no_grad;
use warpline::data::{DataLoader, DistributedSampler, TensorDataset};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, Result, Tensor, tensor};
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_nn::{
    Apply, BatchNorm2d, Conv2d, ConvOptions, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential,
    load_file,
};
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, InitOptions, init_process_group,
};

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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BackendName {
    Cpu,
    Nccl,
}

/// Returns images, `[n, 1, 8, 8]`, and their digits, `[n]`: the training set, and the test set, which is every fifth
/// image.
fn digits() -> anyhow::Result<[(Tensor, Tensor); 2]> {
    // Prefer the folder at run time, because the checkout may have moved since the build.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let file = load_file(package.join("../nn/examples/data/digits.safetensors"), "cpu")?;
    let (Some(images), Some(labels)) = (file.get("images"), file.get("labels")) else {
        anyhow::bail!("the file has no images and labels");
    };
    let images = images.to(DType::F32)?.div(16.0)?.unsqueeze(1)?;
    let labels = labels.to(DType::I64)?;
    let (held_out, learned): (Vec<i64>, Vec<i64>) =
        (0..labels.numel() as i64).partition(|i| i % 5 == 0);
    let select = |index: Vec<i64>| -> Result<(Tensor, Tensor)> {
        let index = tensor(index, ())?;
        Ok((images.index_select(0, &index)?, labels.index_select(0, &index)?))
    };
    Ok([select(learned)?, select(held_out)?])
}

fn network(device: Device) -> Result<Sequential> {
    let same = || ConvOptions::new().padding(1);
    let mut net = Sequential::new()
        .with(Conv2d::new(1, 16, 3, same())?)
        .with(BatchNorm2d::new(16, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Conv2d::new(16, 32, 3, same())?)
        .with(BatchNorm2d::new(32, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Flatten::new(()))
        .with(Linear::new(32 * 2 * 2, 10, ())?);
    net.to(device)?;
    Ok(net)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let backend = match args.backend {
        BackendName::Cpu => Backend::Cpu,
        BackendName::Nccl => Backend::Nccl,
    };
    let group = init_process_group(InitOptions::from_env(backend)?)?;
    let (rank, ranks, device) = (group.rank(), group.world_size(), group.device());
    let [learned, (images, labels)] = digits()?;

    let mut net = DistributedDataParallel::new(network(device)?, group.clone(), ())?; // the line that PyTorch adds, too
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
    net.eval();
    let right = no_grad(|| {
        let read = images.to(device)?.apply(net.module())?.argmax(1)?;
        read.eq(&labels.to(device)?)?.to(DType::F32)?.mean(())?.item::<f32>()
    })?;
    println!(
        "rank {rank}: {:.1} % of {} held-out images are read rightly",
        100.0 * right,
        labels.numel()
    );
    group.barrier()?;
    anyhow::ensure!(right > 0.8, "the network has not learned to read");
    Ok(())
}
