//! Ports of PyTorch's example programs: `cargo run --release -p warpline-nn --example ports -- NAME`.

#![allow(clippy::upper_case_acronyms)] // names are PyTorch's

mod gat;
mod nanogpt;
#[path = "../support/mod.rs"]
mod support;
mod time_sequence_prediction;
mod word_language_model;

use clap::Parser;
use warpline::Device;

/// A program: its device, the number of its steps if not PyTorch's, and whether its sizes are small.
type Run = fn(Device, Option<usize>, bool) -> anyhow::Result<()>;

const PROGRAMS: [(&str, Run); 5] = [
    ("gat", gat::run),
    ("nanogpt", nanogpt::run),
    ("time_sequence_prediction", time_sequence_prediction::run),
    ("word_language_model", word_language_model::run),
    ("word_language_model_transformer", word_language_model::run_transformer),
];

#[derive(Debug, Parser)]
struct Args {
    /// Name of the program. Without a name, prints all names.
    name: Option<String>,
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Number of steps or epochs. Default: that of PyTorch's program.
    #[arg(long)]
    steps: Option<usize>,
    /// Small sizes, for a test.
    #[arg(long)]
    small: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Some(name) = args.name else {
        PROGRAMS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let Some((_, run)) = PROGRAMS.iter().find(|(known, _)| *known == name) else {
        anyhow::bail!("there is no program {name}");
    };
    support::on(&args.device, |device| run(device, args.steps, args.small))
}
