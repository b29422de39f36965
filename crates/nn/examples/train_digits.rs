//! Trains a small convolutional network to recognize handwritten digits:
//! `cargo run --release -p warpline-nn --example train_digits -- --device cuda`.

#[path = "support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpline::autograd::no_grad;
use warpline::data::{DataLoader, TensorDataset};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, Generator, Result, Tensor, tensor};
use warpline_nn::optim::{AdamW, AdamWOptions, CosineAnnealingLR, Optimizer, Scheduler};
use warpline_nn::{
    BatchNorm2d, Conv2d, ConvOptions, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential,
    load_file,
};

#[derive(Debug, Parser)]
struct Args {
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    #[arg(long, default_value_t = 400)]
    steps: u32,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Images, `[n, 1, 8, 8]`, with values from 0 to 1, and their digits, `[n]`.
type Digits = (Tensor, Tensor);

/// Returns the training set and the test set, which is every fifth image.
fn digits() -> anyhow::Result<(Digits, Digits)> {
    // Prefer the folder at run time, because the checkout may have moved since the build.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let path = package.join("examples/data/digits.safetensors");
    let file = load_file(&path, "cpu")?;
    let (Some(images), Some(labels)) = (file.get("images"), file.get("labels")) else {
        anyhow::bail!("{} has no images and labels", path.display());
    };
    let images = images.to(DType::F32)?.div(16.0)?.unsqueeze(1)?;
    let labels = labels.to(DType::I64)?;
    let (held_out, learned): (Vec<i64>, Vec<i64>) =
        (0..labels.numel() as i64).partition(|i| i % 5 == 0);
    let of = |index: Vec<i64>| -> Result<Digits> {
        let index = tensor(index, ())?;
        Ok((images.index_select(0, &index)?, labels.index_select(0, &index)?))
    };
    Ok((of(learned)?, of(held_out)?))
}

fn network(device: Device) -> Result<Sequential> {
    let same = || ConvOptions::new().padding(1);
    let mut net = Sequential::new()
        .with(Conv2d::new(1, 16, 3, same())?)
        .with(BatchNorm2d::new(16, ())?)
        .with(ReLU)
        .with(Conv2d::new(16, 32, 3, same())?)
        .with(BatchNorm2d::new(32, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Conv2d::new(32, 64, 3, same())?)
        .with(BatchNorm2d::new(64, ())?)
        .with(ReLU)
        .with(MaxPool2d::new(2, ()))
        .with(Flatten::new(()))
        .with(Linear::new(64 * 2 * 2, 10, ())?);
    net.to(device)?;
    Ok(net)
}

/// Returns the fraction of images that the network classifies correctly.
fn accuracy(net: &mut Sequential, (images, labels): &Digits, device: Device) -> Result<f32> {
    net.eval();
    let right = no_grad(|| {
        let read = net.forward(&images.to(device)?)?.argmax(1)?;
        read.eq(&labels.to(device)?)?.to(DType::F32)?.mean(())?.item()
    });
    net.train();
    right
}

fn run(args: &Args, device: Device) -> anyhow::Result<()> {
    let (learned, held_out) = digits()?;
    warpline::manual_seed(args.seed);
    let mut net = network(device)?;
    let options = AdamWOptions::new().lr(args.lr);
    let mut optimizer = AdamW::new(net.parameters(), options)?;
    let mut scheduler = CosineAnnealingLR::new(&mut optimizer, args.steps.max(1), ())?;
    let generator = Generator::new();
    generator.manual_seed(args.seed);
    let loader = DataLoader::new(TensorDataset::new(learned.0, learned.1)?)
        .batch_size(args.batch_size)?
        .shuffle(true)
        .drop_last(true)
        .pin_memory(device.is_cuda())
        .generator(generator);
    anyhow::ensure!(!loader.is_empty(), "a batch has at most 1437 images");
    let bar = ProgressBar::new(args.steps.into());
    bar.set_style(ProgressStyle::with_template("{pos}/{len} {bar:30} {eta:>4} {msg}")?);
    let begin = Instant::now();
    while bar.position() < args.steps.into() {
        let left = (u64::from(args.steps) - bar.position()) as usize;
        let mut last = None;
        for batch in loader.iter()?.take(left) {
            let (images, labels) = batch?;
            let read = net.forward(&images.to_non_blocking(device)?)?;
            let labels = labels.to_non_blocking(device)?;
            let loss = cross_entropy(&read, &labels, ())?;
            optimizer.zero_grad()?;
            loss.backward()?;
            optimizer.step()?;
            scheduler.step(&mut optimizer)?;
            last = Some(loss);
            bar.inc(1);
        }
        if let Some(loss) = last {
            bar.set_message(format!("loss {:.4}", loss.item::<f32>()?));
        }
    }
    bar.abandon();
    let read = accuracy(&mut net, &held_out, device)?;
    println!(
        "{:.1} % of {} held-out images are read rightly, after {} steps in {:.1} s",
        100.0 * read,
        held_out.1.numel(),
        args.steps,
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    support::on(&args.device, |device| run(&args, device))
}
