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

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use images::{ImageFolder, MadeUp};
use model::ResNet;
use warpline::autograd::no_grad;
use warpline::data::{DataLoader, Dataset};
use warpline::functional::cross_entropy;
use warpline::{DType, Device, MemoryFormat, Tensor, cuda};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
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
    (train, held_out): (D, D),
) -> anyhow::Result<()> {
    let dtype = match args.dtype.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        other => anyhow::bail!("`{other}` is no dtype of this example: use f32, f16 or bf16"),
    };
    warpline::manual_seed(args.seed);
    let mut net = ResNet::new(args.depth, classes)?;
    if let Some(weights) = &args.weights {
        net.load_state_dict(&load_file(weights, ())?, true)?;
    }
    net.to((dtype, device))?;
    // On a GPU, convolutions of `float16` and `bfloat16` are fastest if the channels are the innermost
    // dimension in memory.
    let format = if device.is_cuda() && dtype != DType::F32 {
        MemoryFormat::ChannelsLast
    } else {
        MemoryFormat::Contiguous
    };
    net.to(format)?;
    let place = |images: &Tensor| -> warpline::Result<Tensor> {
        images.to_non_blocking(device)?.to(dtype)?.contiguous_in(format)
    };
    let loader = |data, shuffle| -> warpline::Result<_> {
        let loader = DataLoader::new(data).batch_size(args.batch_size)?.shuffle(shuffle);
        Ok(loader.num_workers(args.workers).pin_memory(device.is_cuda()))
    };
    if !args.evaluate {
        let options = SGDOptions::new().lr(args.lr).momentum(0.9).weight_decay(1e-4);
        let mut sgd = SGD::new(net.parameters(), options)?;
        let loader = loader(train, true)?.drop_last(true);
        anyhow::ensure!(!loader.is_empty(), "there are fewer images than one batch has");
        let (mut done, mut since) = (0, Instant::now());
        while done < args.steps {
            let mut last = None;
            for batch in loader.iter()?.take(args.steps - done) {
                let (images, labels) = batch?;
                let logits = net.forward(&place(&images)?)?.to(DType::F32)?;
                let loss = cross_entropy(&logits, &labels.to_non_blocking(device)?, ())?;
                sgd.zero_grad()?;
                loss.backward()?;
                sgd.step()?;
                done += 1;
                if done == 1 {
                    // The first step loads code and chooses plans.
                    loss.item::<f32>()?;
                    since = Instant::now();
                }
                last = Some(loss);
            }
            let Some(loss) = last else { break };
            let (loss, seconds) = (loss.item::<f32>()?, since.elapsed().as_secs_f64());
            let rate = ((done - 1) * args.batch_size) as f64 / seconds;
            println!("step {done}: loss {loss:.4}, {rate:.0} images/s");
        }
    }
    net.eval();
    let (mut right, mut all) = (0, 0);
    no_grad(|| -> warpline::Result<()> {
        for batch in loader(held_out, false)?.iter()? {
            let (images, labels) = batch?;
            let read = net.forward(&place(&images)?)?.argmax(-1)?;
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
