//! Trains a small GPT on the characters of a text:
//! `cargo run --release -p warpline-nn --example train_gpt -- --device cuda --save gpt.safetensors`.
//!
//! `--stop` ends the training early. `--resume gpt.safetensors` continues it, with the same results as without the
//! stop.

mod checkpoint;
mod model;
mod sample;
#[path = "../support/mod.rs"]
mod support;
mod text;
mod train;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpline::{DType, Device, Tensor};

use model::{Gpt, Sizes};
use text::{Characters, Pieces};
use train::{Settings, Training};

#[derive(Debug, Parser)]
struct Args {
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Number of steps of the whole training.
    #[arg(long, default_value_t = 1000)]
    steps: u32,
    /// Stop after this step.
    #[arg(long)]
    stop: Option<u32>,
    /// File to save the state in, for a later run.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Saved file to continue from.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Number of characters to generate at the end.
    #[arg(long, default_value_t = 300)]
    sample: usize,
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Text to learn from. Default: the beginning of Shakespeare's plays.
    #[arg(long)]
    text: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    #[arg(long, default_value_t = 64)]
    context: usize,
    #[arg(long, default_value_t = 128)]
    width: usize,
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 4)]
    heads: usize,
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// Compute the losses in regions of autocast to this dtype: float16 or bfloat16.
    #[arg(long, value_parser = |name: &str| DType::from_name(name).ok_or("this is not the name of a dtype"))]
    autocast: Option<DType>,
}

/// Number of steps between reads of the loss. Each read waits for the device.
const LOOK: u32 = 10;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    support::on(&args.device, |device| run(&args, device))
}

fn run(args: &Args, device: Device) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.heads > 0 && args.width.is_multiple_of(args.heads),
        "{} heads must divide a width of {}",
        args.heads,
        args.width
    );
    anyhow::ensure!(args.temperature > 0.0, "the temperature must be greater than 0");
    anyhow::ensure!(args.context > 0, "there must be a context of one character or more");
    // Fail before the training rather than lose its result.
    if let Some(folder) = args.save.as_ref().and_then(|path| path.parent()) {
        let there = folder.as_os_str().is_empty() || folder.is_dir();
        anyhow::ensure!(there, "{}: there is no such folder to save in", folder.display());
    }
    let text = match &args.text {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("{}: reading the text", path.display()))?,
        None => include_str!("../data/shakespeare.txt").to_owned(),
    };
    let characters = Characters::of(&text);
    let sizes = Sizes {
        vocabulary: characters.len(),
        context: args.context,
        width: args.width,
        layers: args.layers,
        heads: args.heads,
        dropout: args.dropout,
    };
    let settings = Settings {
        batch_size: args.batch_size,
        steps: args.steps,
        lr: args.lr,
        seed: args.seed,
        autocast: args.autocast,
    };
    let pieces = Pieces::new(characters.encode(&text), sizes.context)?;
    let mut training = Training::new(pieces, || Gpt::new(&sizes, device), &settings, device)?;
    if let Some(path) = &args.resume {
        checkpoint::resume(&mut training, path)?;
    }
    learn(&mut training, args)?;
    if let Some(path) = &args.save {
        checkpoint::save(&training, path)?;
        println!("saved after step {} in {}", training.step, path.display());
    }
    if args.sample > 0 {
        let start = characters.encode("\n");
        // Without line breaks in the text, start with the first token.
        let start = if start.is_empty() { vec![0] } else { start };
        let (length, temperature) = (args.sample, args.temperature);
        let written = sample::generate(&mut training, sizes.context, &start, length, temperature)?;
        println!(
            "{}",
            written.into_iter().map(|token| characters.decode(token)).collect::<String>()
        );
    }
    Ok(())
}

fn learn(training: &mut Training, args: &Args) -> anyhow::Result<()> {
    let last = args.stop.unwrap_or(args.steps).min(args.steps);
    let bar = ProgressBar::new(args.steps.into()).with_position(training.step.into());
    bar.set_style(ProgressStyle::with_template("{pos}/{len} {bar:30} {eta:>4} {msg}")?);
    let (begin, first) = (Instant::now(), training.step);
    let mut looked = None;
    while training.step < last {
        let loss: Tensor = training.step()?;
        bar.inc(1);
        if training.step.is_multiple_of(LOOK) || training.step == last {
            let value = loss.item::<f32>()?;
            let tokens = (training.step - first) as usize * args.batch_size * args.context;
            let speed = tokens as f64 / begin.elapsed().max(Duration::from_millis(1)).as_secs_f64();
            let message = format!("loss {value:.4}, {speed:.0} tokens/s");
            bar.set_message(message.clone());
            looked = Some(message);
        }
    }
    bar.abandon();
    if let Some(message) = looked {
        println!("step {}: {message}", training.step);
    }
    Ok(())
}
