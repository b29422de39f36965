//! Trains or evaluates a ResNet on a folder of images, or on made-up images:
//!
//! ```text
//! cargo run --release -p warpline-nn --example resnet -- --device cuda --depth 50 --dtype bf16
//! cargo run --release -p warpline-nn --example resnet -- --device cuda --data FOLDER --weights resnet50.safetensors --evaluate
//! ```
//!
//! `FOLDER` has a folder `train` and a folder `val`, and each of these a folder of images per class, as
//! `torchvision.datasets.ImageFolder` expects. `--weights` names a safetensors file of torchvision's weights.
//! The weights after training are written to the file that `--save` names.

mod images;
mod model;
#[path = "../support/mod.rs"]
mod support;
mod train;

use std::path::PathBuf;

use clap::Parser;
use images::{ImageFolder, MadeUp};
use model::ResNet;
use train::Placement;
use warpline::autograd::no_grad;
use warpline::data::{DataLoader, Dataset};
use warpline::{Device, Tensor, cuda};
use warpline_nn::{Module, load_file, save_file};

#[derive(Debug, Parser)]
struct Args {
    /// Device: cpu, cuda, cuda:1, or sim:1 for a simulated GPU.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Number of layers: 18, 34, 50, 101 or 152.
    #[arg(long, default_value_t = 18)]
    depth: usize,
    /// Folder with `train` and `val`. Without it the images are random numbers.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Weights with torchvision's names.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// File for the weights after training.
    #[arg(long)]
    save: Option<PathBuf>,
    /// Only evaluate.
    #[arg(long)]
    evaluate: bool,
    /// f32, f16 or bf16.
    #[arg(long, default_value = "f32")]
    dtype: String,
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
    /// Number of threads that read images.
    #[arg(long, default_value_t = 4)]
    workers: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    support::on(&args.device, |device| run(&args, device))
}

fn run(args: &Args, device: Device) -> anyhow::Result<()> {
    match &args.data {
        Some(folder) => {
            let train = ImageFolder::open(&folder.join("train"), args.size, Some(args.seed))?;
            let held_out = ImageFolder::open(&folder.join("val"), args.size, None)?;
            let classes = train.classes();
            with_data(args, device, classes, (train, held_out))
        }
        None => {
            let images = || MadeUp { size: args.size, images: 4 * args.batch_size };
            with_data(args, device, 1000, (images(), images()))
        }
    }
}

fn with_data<D: Dataset<Sample = (Tensor, i64)>>(
    args: &Args,
    device: Device,
    classes: usize,
    (train_set, held_out): (D, D),
) -> anyhow::Result<()> {
    let placement = Placement::new(device, &args.dtype)?;
    warpline::manual_seed(args.seed);
    let mut net = ResNet::new(args.depth, classes)?;
    if let Some(weights) = &args.weights {
        net.load_state_dict(&load_file(weights, ())?, true)?;
    }
    placement.place_model(&mut net)?;
    let loader = |data, shuffle| -> warpline::Result<_> {
        let loader = DataLoader::new(data).batch_size(args.batch_size)?.shuffle(shuffle);
        Ok(loader.num_workers(args.workers).pin_memory(device.is_cuda()))
    };
    if !args.evaluate {
        let loader = loader(train_set, true)?.drop_last(true);
        train::train(&net, &loader, placement, (args.steps, args.lr), |_| {})?;
    }
    net.eval();
    let (mut right, mut all) = (0, 0);
    no_grad(|| -> warpline::Result<()> {
        for batch in loader(held_out, false)?.iter()? {
            let (images, labels) = batch?;
            let read = net.forward(&placement.place(&images)?)?.argmax(-1)?;
            right += read.eq(&labels.to(device)?)?.sum(())?.item::<i64>()?;
            all += labels.numel();
        }
        Ok(())
    })?;
    println!(
        "{:.1} % of {all} images are classified correctly",
        100.0 * right as f64 / all.max(1) as f64
    );
    if device.is_cuda() {
        let peak = cuda::max_memory_allocated(device)? as f64 / (1u64 << 30) as f64;
        println!("peak memory {peak:.2} GiB");
    }
    if let Some(path) = &args.save {
        save_file(&net.state_dict(), path, ())?;
    }
    Ok(())
}
