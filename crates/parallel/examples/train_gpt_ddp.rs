//! Trains the GPT of `train_gpt` (in `warpline-nn`) on two or more ranks, and continues from its last checkpoint after
//! a failure. Each rank draws its own batches.
//!
//! ```text
//! cargo build --release -p warpline-parallel --example train_gpt_ddp --bin warpline-run
//! target/release/warpline-run --nproc 2 --max-restarts 3 target/release/examples/train_gpt_ddp \
//!     --backend nccl --checkpoint gpt.safetensors
//! ```
//!
//! Without `--backend nccl`, the ranks train on CPUs.

#[path = "../../nn/examples/train_gpt/checkpoint.rs"]
mod checkpoint;
#[path = "../../nn/examples/train_gpt/model.rs"]
mod model;
mod support;
#[allow(dead_code)] // this program does not generate text
#[path = "../../nn/examples/train_gpt/text.rs"]
mod text;
#[path = "../../nn/examples/train_gpt/train.rs"]
mod train;

use std::path::PathBuf;

use clap::Parser;
use warpline::cuda;
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, InitOptions, init_process_group,
};

use model::{Gpt, Sizes};
use support::BackendName;
use text::{Characters, Pieces};
use train::{Settings, Training};

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value = "cpu")]
    backend: BackendName,
    /// Number of steps of the whole training.
    #[arg(long, default_value_t = 200)]
    steps: u32,
    /// Number of steps between two checkpoints.
    #[arg(long, default_value_t = 50)]
    save_every: u32,
    /// File of the last checkpoint. If it exists, the training continues from there.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Number of samples in a batch of each rank.
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
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Number of steps between two reads of the loss. Each read waits for the device.
const LOG_INTERVAL: u32 = 10;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let backend = Backend::from(args.backend);
    let group = init_process_group(InitOptions::from_env(backend)?)?;
    let (rank, device) = (group.rank(), group.device());
    if device.is_cuda() {
        cuda::set_device(device)?;
    }
    let text = include_str!("../../nn/examples/data/shakespeare.txt");
    let characters = Characters::of(text);
    let sizes = Sizes {
        vocabulary: characters.len(),
        context: args.context,
        width: args.width,
        layers: args.layers,
        heads: 4,
        dropout: 0.1,
    };
    // Ranks with different seeds draw different batches. All ranks start with the parameters of rank 0.
    let seed = args.seed + rank as u64;
    let settings = Settings {
        batch_size: args.batch_size,
        steps: args.steps,
        lr: args.lr,
        seed,
        autocast: None,
    };
    let pieces = Pieces::new(characters.encode(text), sizes.context)?;
    // This line differs from the training on one device.
    let model = || DistributedDataParallel::new(Gpt::new(&sizes, device)?, group.clone(), ());
    let mut training = Training::new(pieces, model, &settings, device)?;
    if let Some(path) = args.checkpoint.as_ref().filter(|path| path.exists()) {
        checkpoint::resume(&mut training, path)?;
        // The checkpoint has the generator states of rank 0, so seed the generators of this rank anew.
        warpline::manual_seed(seed + u64::from(training.step));
        training.generator.manual_seed(seed + u64::from(training.step));
        training.seek(training.generator.get_state()?, 0)?;
        println!("rank {rank} continues after step {}", training.step);
    }
    while training.step < args.steps {
        let loss = training.step()?;
        if rank == 0 && training.step.is_multiple_of(LOG_INTERVAL) {
            println!("step {}: loss {:.4}", training.step, loss.item::<f32>()?);
        }
        let due = training.step.is_multiple_of(args.save_every.max(1));
        if let (0, true, Some(path)) = (rank, due, &args.checkpoint) {
            checkpoint::save(&training, path)?;
        }
    }
    Ok(group.barrier()?)
}
