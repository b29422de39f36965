//! Trains a small convolutional network to recognize handwritten digits:
//! `cargo run --release -p warpline-nn --example train_digits -- --device cuda`.

#[path = "data/digits.rs"]
mod digits;
#[path = "support/mod.rs"]
mod support;

use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpline::data::{DataLoader, TensorDataset};
use warpline::functional::cross_entropy;
use warpline::{Device, Generator};
use warpline_nn::Module;
use warpline_nn::optim::{AdamW, AdamWOptions, CosineAnnealingLR, Optimizer, Scheduler};

use digits::{accuracy, digits, network};

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
        .generator(&generator)?;
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
