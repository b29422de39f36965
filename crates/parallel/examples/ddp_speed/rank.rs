//! The program of a rank.

use std::time::Instant;

use serde_json::{Value, json};
use warpline::autograd::no_grad;
use warpline::cuda::{self, CudaGraph, Event, EventFlags};
use warpline::{DType, Device, Result, Tensor, manual_seed, randint, randn, tensor, zeros};
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_nn::{Module, save_file};
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, InitOptions, ProcessGroup, ReduceOp, init_process_group,
};

use super::Args;
use super::models::{Gpt, GptSizes};

/// Number of steps before times are measured, and before a step is captured. PyTorch requires 11 before a capture.
const WARM_UP: usize = 11;
/// Number of steps whose losses are compared.
const CHECKED_STEPS: usize = 20;
/// Number of all-reduces between two events.
const ALL_REDUCES: usize = 10;
/// Learning rate.
const LR: f64 = 1e-4;

/// Runs this rank. Returns the result on rank 0.
pub(super) fn run(args: &Args) -> anyhow::Result<Option<Value>> {
    let backend = if args.cpu { Backend::Cpu } else { Backend::Nccl };
    let group = init_process_group(InitOptions::from_env(backend)?)?;
    if group.device().is_cuda() {
        cuda::set_device(group.device())?;
    }
    let row = if args.check { check(args, &group)? } else { speed(args, &group)? };
    group.barrier()?;
    Ok((group.rank() == 0).then_some(row))
}

/// A model. A single rank trains it directly; several ranks wrap it in `DistributedDataParallel`.
enum Net {
    Alone(Gpt),
    Ddp(DistributedDataParallel<Gpt>),
}

impl Net {
    fn new(net: Gpt, group: &ProcessGroup) -> Result<Self> {
        Ok(match group.world_size() {
            1 => Self::Alone(net),
            _ => Self::Ddp(DistributedDataParallel::new(net, group.clone(), ())?),
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        match self {
            Self::Alone(net) => net.parameters(),
            Self::Ddp(net) => net.parameters(),
        }
    }

    fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        match self {
            Self::Alone(net) => net.loss(tokens, targets),
            Self::Ddp(net) => net.call(|net| net.loss(tokens, targets)),
        }
    }
}

fn sizes(args: &Args) -> GptSizes {
    let &Args { width, heads, vocabulary, length, .. } = args;
    GptSizes { width, heads, layers: args.layers(), vocabulary, length }
}

fn synchronize(device: Device) -> Result<()> {
    if device.is_cuda() { cuda::synchronize(device) } else { Ok(()) }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn speed(args: &Args, group: &ProcessGroup) -> Result<Value> {
    let device = group.device();
    let mut net = Gpt::new(sizes(args))?;
    net.to((DType::BF16, device))?;
    let net = Net::new(net, group)?;
    let tokens = randint(0, args.vocabulary as i64, [args.batch, args.length], device)?;
    let step = |adam: &mut AdamW| -> Result<()> {
        adam.zero_grad()?;
        net.loss(&tokens, &tokens)?.backward()?;
        adam.step()
    };
    // Returns the microseconds of a step, in a run that all ranks start together.
    let time = |step: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        group.barrier()?;
        synchronize(device)?;
        let begun = Instant::now();
        (0..args.steps).try_for_each(|_| step())?;
        synchronize(device)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / args.steps as f64)
    };
    let options = AdamWOptions::new().lr(LR);
    let mut adam = AdamW::new(net.parameters(), options)?;
    (0..WARM_UP).try_for_each(|_| step(&mut adam))?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // Alternate, so that changes of the GPU's clock affect both.
    for _ in 0..args.runs {
        with.push(time(&mut || step(&mut adam))?);
        if let Net::Ddp(net) = &net {
            without.push(net.no_sync(|| time(&mut || step(&mut adam)))?);
        }
    }
    let peak = if device.is_cuda() { Some(cuda::max_memory_allocated(())?) } else { None };
    let last = match &net {
        Net::Ddp(net) => Some(last_bucket(args, group, net)?),
        Net::Alone(_) => None,
    };
    let graph = if args.graph {
        drop(adam);
        let mut adam = AdamW::new(net.parameters(), options.capturable(true))?;
        let side = cuda::Stream::new(device)?;
        let times = cuda::with_stream(&side, || {
            (0..WARM_UP).try_for_each(|_| step(&mut adam))?;
            let mut graph = CudaGraph::new();
            graph.capture(|| step(&mut adam))?;
            (0..args.runs).map(|_| time(&mut || graph.replay())).collect::<Result<Vec<_>>>()
        })?;
        median(times)
    } else {
        None
    };
    Ok(json!({
        "step_us": median(with),
        "no_sync_us": median(without),
        "last_bucket_bytes": last.map(|(bytes, _)| bytes),
        "last_all_reduce_us": last.and_then(|(_, micros)| micros),
        "graph_us": graph,
        "peak": peak,
    }))
}

/// Returns the size of the last bucket in bytes, and the microseconds of its all-reduce between two events.
fn last_bucket(
    args: &Args,
    group: &ProcessGroup,
    net: &DistributedDataParallel<Gpt>,
) -> Result<(usize, Option<f64>)> {
    let (device, last) = (group.device(), net.bucket_names().pop().unwrap_or_default());
    let parameters = net.module().named_parameters();
    let sizes = parameters.iter().filter(|(name, _)| last.contains(name)).map(|(_, p)| p.numel());
    let buffer = zeros([sizes.sum::<usize>()], (DType::BF16, device))?;
    let bytes = buffer.numel() * buffer.element_size();
    if !device.is_cuda() {
        return Ok((bytes, None));
    }
    let stream = cuda::current_stream(device)?;
    let mut times = Vec::new();
    for _ in 0..=args.runs {
        let [start, end] = [(); 2].map(|()| Event::new(EventFlags::new().enable_timing(true)));
        group.barrier()?;
        start.record(&stream)?;
        for _ in 0..ALL_REDUCES {
            group.all_reduce(&buffer, ())?;
        }
        end.record(&stream)?;
        end.synchronize()?;
        times.push(f64::from(start.elapsed_time(&end)?) * 1e3 / ALL_REDUCES as f64);
    }
    // The first run is a warm-up.
    Ok((bytes, median(times.split_off(1))))
}

/// Returns the losses of the first steps, each the mean over the ranks.
fn check(args: &Args, group: &ProcessGroup) -> Result<Value> {
    manual_seed(0);
    let (device, rank) = (group.device(), group.rank());
    let mut net = Gpt::new(sizes(args))?;
    net.to(device)?;
    // Draw the weights with a standard deviation of 0.02, as GPT-2 does. The default initialization would give losses
    // of several hundred.
    for parameter in net.parameters().iter().filter(|parameter| parameter.dim() > 1) {
        let values = randn(parameter.size(), device)?.mul(0.02)?;
        no_grad(|| parameter.copy_(&values, false).map(drop))?;
    }
    if let (0, Some(path)) = (rank, &args.weights) {
        save_file(&net.state_dict(), path, ())?;
    }
    let net = Net::new(net, group)?;
    let mut adam = AdamW::new(net.parameters(), AdamWOptions::new().lr(LR))?;
    let mut losses = Vec::new();
    for step in 0..CHECKED_STEPS {
        let text = text(args, step * group.world_size() + rank);
        let text = tensor(text, device)?.view([args.batch as isize, args.length as isize + 1])?;
        let (tokens, targets) =
            (text.narrow(1, 0, args.length)?, text.narrow(1, 1, args.length)?.contiguous()?);
        adam.zero_grad()?;
        let loss = net.loss(&tokens, &targets)?;
        loss.backward()?;
        adam.step()?;
        let mean = loss.detach().copy()?;
        group.all_reduce(&mean, ReduceOp::Avg)?;
        losses.push(mean);
    }
    let losses = losses.iter().map(Tensor::item::<f32>).collect::<Result<Vec<_>>>()?;
    Ok(json!({ "losses": losses }))
}

/// Returns a batch of made-up text, `[batch * (length + 1)]`. PyTorch's script has the same formula.
fn text(args: &Args, batch: usize) -> Vec<i64> {
    let count = args.batch * (args.length + 1);
    let token = |place: usize| {
        let number = (batch * count + place) as u64;
        let mixed = (number.wrapping_mul(2_654_435_761) & 0xffff_ffff) ^ ((number & 0xff) << 20);
        ((mixed * args.vocabulary as u64) >> 32) as i64
    };
    (0..count).map(token).collect()
}
