//! Programs of PyTorch's example repository and nanoGPT, ported:
//! `cargo run --release -p warpline-nn --example ports -- mnist`.
//!
//! Each module has the classes, names, settings and order of the original program. The modules `digits` and
//! `cart_pole` replace torchvision and gymnasium.

#![allow(clippy::upper_case_acronyms)] // the names are PyTorch's

mod actor_critic;
mod cart_pole;
mod dcgan;
mod digits;
mod gat;
mod mnist;
mod nanogpt;
#[path = "../support/mod.rs"]
mod support;
mod time_sequence_prediction;
mod vae;
mod word_language_model;

use clap::Parser;
use warpline::Device;

/// A function that runs a program. Arguments: the device, the number of steps (`None`: as in PyTorch's
/// program), and whether sizes are small.
type Port = fn(Device, Option<usize>, bool) -> anyhow::Result<()>;

/// The programs by their names.
const PORTS: &[(&str, Port)] = &[
    ("actor_critic", actor_critic::run),
    ("dcgan", dcgan::run),
    ("gat", gat::run),
    ("mnist", mnist::run),
    ("nanogpt", nanogpt::run),
    ("time_sequence_prediction", time_sequence_prediction::run),
    ("vae", vae::run),
    ("word_language_model", word_language_model::run),
    ("word_language_model_transformer", word_language_model::run_transformer),
];

#[derive(Debug, Parser)]
struct Args {
    /// The program to run. Without a name, the programs are listed.
    name: Option<String>,
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Ends the training after this many steps, epochs or episodes. Default: as in PyTorch's program.
    #[arg(long)]
    steps: Option<usize>,
    /// Uses small sizes, for tests.
    #[arg(long)]
    small: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Some(name) = args.name else {
        PORTS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let Some((_, run)) = PORTS.iter().find(|(known, _)| *known == name) else {
        anyhow::bail!("there is no program {name}; without a name, the programs are listed");
    };
    support::on(&args.device, |device| run(device, args.steps, args.small))
}
