//! Trains the ResNet of `resnet` (in `warpline-nn`) on two or more ranks. Each rank has its own part of the images.
//!
//! ```text
//! cargo build --release -p warpline-parallel --example resnet_ddp --bin warpline-run
//! target/release/warpline-run --nproc 2 target/release/examples/resnet_ddp \
//!     --backend nccl --data FOLDER --depth 50 --dtype bf16
//! ```
//!
//! Without `--backend nccl`, the ranks train on CPUs. Without `--data`, the images are random numbers; with it,
//! `image::open` reads the files.

#[allow(dead_code)] // this program does not evaluate
#[path = "../../nn/examples/resnet/images.rs"]
mod images;
#[path = "../../nn/examples/resnet/model.rs"]
mod model;
mod support;
#[path = "../../nn/examples/resnet/train.rs"]
mod train;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use warpline::data::{DataLoader, Dataset, DistributedSampler};
use warpline::{Tensor, cuda};
use warpline_nn::{Module, save_file};
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, InitOptions, ProcessGroup, init_process_group,
};

use images::{ImageFolder, MadeUp};
use model::ResNet;
use support::BackendName;
use train::{Placement, train};

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value = "cpu")]
    backend: BackendName,
    /// Number of layers: 18, 34, 50, 101 or 152.
    #[arg(long, default_value_t = 18)]
    depth: usize,
    /// Folder with `train`, which has a folder for each class.
    #[arg(long)]
    data: Option<PathBuf>,
    /// File for the weights after training.
    #[arg(long)]
    save: Option<PathBuf>,
    /// f32, f16 or bf16.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Number of images in a batch of each rank.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Height and width of the images.
    #[arg(long, default_value_t = 224)]
    size: usize,
    /// Number of training steps.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads of each rank that read images.
    #[arg(long, default_value_t = 4)]
    workers: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let group = init_process_group(InitOptions::from_env(Backend::from(args.backend))?)?;
    if group.device().is_cuda() {
        cuda::set_device(group.device())?;
    }
    match &args.data {
        Some(folder) => {
            let images = ImageFolder::open(&folder.join("train"), args.size, Some(args.seed))?;
            with_data(&args, &group, images.classes(), images)
        }
        None => {
            let images = 4 * args.batch_size * group.world_size();
            with_data(&args, &group, 1000, MadeUp { size: args.size, images })
        }
    }
}

fn with_data<D: Dataset<Sample = (Tensor, i64)>>(
    args: &Args,
    group: &ProcessGroup,
    classes: usize,
    images: D,
) -> anyhow::Result<()> {
    let (rank, ranks, device) = (group.rank(), group.world_size(), group.device());
    let placement = Placement::new(device, &args.dtype)?;
    warpline::manual_seed(args.seed);
    let mut net = ResNet::new(args.depth, classes)?;
    placement.place_model(&mut net)?;
    // This line differs from the training on one device.
    let net = DistributedDataParallel::new(net, group.clone(), ())?;
    let sampler = Arc::new(DistributedSampler::new(images.len(), ranks, rank)?);
    let loader = DataLoader::new(images)
        .batch_size(args.batch_size)?
        .sampler(Arc::clone(&sampler))
        .num_workers(args.workers)
        .pin_memory(device.is_cuda())
        .drop_last(true);
    train(&net, &loader, placement, (args.steps, args.lr), |epoch| sampler.set_epoch(epoch))?;
    if let (0, Some(path)) = (rank, &args.save) {
        save_file(&net.module().state_dict(), path, ())?;
    }
    Ok(group.barrier()?)
}
