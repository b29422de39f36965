//! Measures training steps of GPT-2 with `DistributedDataParallel`, and compares with PyTorch in the same run:
//!
//! ```text
//! cargo build --release -p warpline-parallel --example ddp_speed --bin warpline-run
//! target/release/examples/ddp_speed --nproc 1,2,4,8 --python python3 [--graph] [--json]
//! target/release/examples/ddp_speed --nproc 2 --python python3 --check
//! target/release/warpline-run --nproc 2 -- target/release/examples/ddp_speed    # only Warpline
//! ```
//!
//! With `--nproc`, the program starts its ranks as `warpline-run` does, and PyTorch's ranks with `torchrun`. The output
//! is a line for each number of ranks and framework, or with `--json` a JSON object with the settings and one for each
//! number of ranks. A single rank trains without `DistributedDataParallel`; the scaling is relative to this run.
//!
//! `--check` trains two layers in float32 for 20 steps, with the same weights and tokens in both frameworks. It fails
//! if a loss differs from PyTorch's by more than a relative 1e-5.
//!
//! `--driver sim` and `--cpu` check that the program runs; their times are meaningless. Use small sizes:
//! `--layers 2 --width 32 --heads 2 --vocabulary 64 --length 8 --batch 2 --runs 2 --steps 2`.

mod compare;
mod launch;
#[path = "../../../nn/examples/model_speed/models.rs"]
#[expect(dead_code, reason = "only the GPT is measured here")]
mod models;
mod rank;

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};

#[derive(Clone, Debug, Parser)]
struct Args {
    /// Numbers of ranks to start. Without, this process is a rank of the launcher that started it.
    #[arg(long, value_delimiter = ',')]
    nproc: Vec<usize>,
    /// Python with PyTorch, to compare with. Only with `--nproc`.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Compare the losses of 20 steps in float32 instead of measuring times.
    #[arg(long)]
    check: bool,
    /// Also measure the step as a CUDA graph.
    #[arg(long)]
    graph: bool,
    /// Driver of the ranks: `cuda`, or `sim` with options. Only with `--nproc`.
    #[arg(long)]
    driver: Option<String>,
    /// Train on the CPU.
    #[arg(long)]
    cpu: bool,
    /// Number of layers. Default: 12, or 2 with `--check`.
    #[arg(long)]
    layers: Option<usize>,
    #[arg(long, default_value_t = 768)]
    width: usize,
    #[arg(long, default_value_t = 12)]
    heads: usize,
    #[arg(long, default_value_t = 50304)]
    vocabulary: usize,
    /// Number of tokens in a sequence.
    #[arg(long, default_value_t = 1024)]
    length: usize,
    /// Number of sequences in a batch of each rank.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Number of timed runs. The median is reported.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Number of steps in a timed run.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// File to which `--check` saves the initial weights.
    #[arg(long)]
    weights: Option<PathBuf>,
}

impl Args {
    fn layers(&self) -> usize {
        self.layers.unwrap_or(if self.check { 2 } else { 12 })
    }

    /// Returns the settings for the ranks of both frameworks.
    fn settings(&self) -> Value {
        json!({
            "check": self.check, "graph": self.graph, "cpu": self.cpu, "layers": self.layers(), "width": self.width,
            "heads": self.heads, "vocabulary": self.vocabulary, "length": self.length, "batch": self.batch,
            "runs": self.runs, "steps": self.steps, "weights": self.weights,
        })
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.nproc.is_empty() {
        if let Some(row) = rank::run(&args)? {
            println!("{row}");
        }
        return Ok(());
    }
    if args.check { compare::losses(&args) } else { compare::speed(&args) }
}
