//! Computes how long a training step of `DistributedDataParallel` takes on several machines, on a simulated cluster
//! with virtual time:
//!
//! ```text
//! cargo run --release -p warpline-parallel --example ddp_machines
//! cargo run --release -p warpline-parallel --example ddp_machines -- --between 1.5 --latency 20
//! ```
//!
//! The model is a GPT-2 whose width and vocabulary are a 24th of those of GPT-2 124M, so that 64 ranks fit into this
//! computer. The links and the buckets are scaled by the same factor as the gradients, so an all-reduce takes the time
//! of GPT-2's gradients in `bfloat16`. Each kernel takes the same time, chosen so that a step of one GPU takes
//! `--compute` milliseconds. The simulation includes the order of the reductions, the waits between streams, and the
//! last rank of each collective. It does not include that collectives slow down other kernels, or that computers
//! differ.

#[path = "../../nn/examples/train_gpt/model.rs"]
mod model;

use std::sync::{Arc, Barrier};

use clap::Parser;
use warpline::DType;
use warpline::cuda::{Event, EventFlags};
use warpline::functional::cross_entropy;
use warpline::{Result, Runtime, RuntimeConfig, cuda, full, with_runtime, zeros};
use warpline_cuda_sys_safe::sim::{Link, Schedule, SimConfig, Topology};
use warpline_nn::Module;
use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer};
use warpline_parallel::distributed::{
    DdpOptions, DistributedDataParallel, HashStore, InitOptions, ProcessGroup, init_process_group,
};

use model::{Gpt, Sizes};

#[derive(Debug, Parser)]
struct Args {
    /// Numbers of machines.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    machines: Vec<usize>,
    /// Number of GPUs of each machine.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
    /// Time of a step on one GPU, in milliseconds.
    #[arg(long, default_value_t = 23.48)]
    compute: f64,
    /// Bandwidth between two GPUs of a machine, in GB/s.
    #[arg(long, default_value_t = 300.0)]
    within: f64,
    /// Bandwidth of each GPU's network adapter, in GB/s.
    #[arg(long, default_value_t = 50.0)]
    between: f64,
    /// Latency between two machines, in microseconds.
    #[arg(long, default_value_t = 5.0)]
    latency: f64,
    /// Gradients are views of the buckets, which saves the copies to the buckets and back.
    #[arg(long)]
    views: bool,
}

const SIZES: Sizes =
    Sizes { vocabulary: 2094, context: 8, width: 32, layers: 12, heads: 4, dropout: 0.0 };
/// Size of the gradients of GPT-2 124M in `bfloat16`, in bytes.
const GRADIENTS: f64 = 2.0 * 124.4e6;
/// Capacity of a bucket of that model, in MiB.
const BUCKET_CAP: f64 = 25.0;
const WARM_UP: usize = 2;
const STEPS: usize = 1;

/// Times of a rank, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    step: f64,
    /// Time of a step without reductions.
    no_sync: f64,
    /// Time of an all-reduce of all gradients alone.
    all_reduce: f64,
}

fn times(group: &ProcessGroup, enqueued: &Barrier, options: DdpOptions) -> Result<Times> {
    let device = group.device();
    cuda::set_device(device)?;
    let net = DistributedDataParallel::new(Gpt::new(&SIZES, device)?, group.clone(), options)?;
    let mut adam = AdamW::new(net.parameters(), AdamWOptions::new())?;
    let tokens = full([1, SIZES.context], 1.0, (DType::I64, device))?;
    let mut step = || -> Result<()> {
        adam.zero_grad()?;
        let logits = net.forward(tokens.clone())?.flatten((0, 1))?;
        cross_entropy(&logits, &tokens.flatten((0, 1))?, ())?.backward()?;
        adam.step()
    };
    let time = |count: usize, run: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let [begin, end] = [(); 2].map(|()| Event::new(EventFlags::new().enable_timing(true)));
        group.barrier()?;
        cuda::synchronize(device)?;
        begin.record(&cuda::current_stream(device)?)?;
        (0..count).try_for_each(|_| run())?;
        end.record(&cuda::current_stream(device)?)?;
        // A rank that waits runs the work of the others. A rank that then finds work complete whose end is later than
        // its own time would lose the time between.
        enqueued.wait();
        end.synchronize()?;
        Ok(f64::from(begin.elapsed_time(&end)?) / count as f64)
    };
    time(WARM_UP, &mut step)?;
    let with = time(STEPS, &mut step)?;
    let without = net.no_sync(|| time(STEPS, &mut step))?;
    let count: usize = net.parameters().iter().map(|parameter| parameter.numel()).sum();
    let flat = zeros([count], device)?;
    let all_reduce = time(1, &mut || group.all_reduce(&flat, ()).map(drop))?;
    group.barrier()?;
    Ok(Times { step: with, no_sync: without, all_reduce })
}

/// Returns the times of the slowest rank.
fn simulate(
    ranks: usize,
    topology: Topology,
    kernel_time: f64,
    options: &DdpOptions,
) -> Result<Times> {
    let schedule = Schedule::Lazy;
    let capacity = 1 << 30;
    let config = SimConfig { topology, kernel_time, schedule, capacity, ..SimConfig::new(ranks) };
    let runtime = Runtime::new(config.build(), RuntimeConfig::default())?;
    let (store, enqueued) = (Arc::new(HashStore::new()), Barrier::new(ranks));
    let all = std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (runtime, store, enqueued) = (&runtime, Arc::clone(&store), &enqueued);
            let options = options.clone();
            scope.spawn(move || {
                with_runtime(runtime, || {
                    let init = InitOptions::new(store, rank, ranks).device(rank);
                    times(&init_process_group(init)?, enqueued, options)
                })
            })
        };
        let threads: Vec<_> = (0..ranks).map(rank).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Times>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let most = |of: fn(&Times) -> f64| all.iter().map(of).fold(0.0, f64::max);
    Ok(Times {
        step: most(|times| times.step),
        no_sync: most(|times| times.no_sync),
        all_reduce: most(|times| times.all_reduce),
    })
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let most = args.machines.iter().max().copied().unwrap_or(0).saturating_mul(args.gpus);
    anyhow::ensure!(
        !args.machines.contains(&0) && args.gpus > 0 && most <= 64,
        "there must be between one and 64 GPUs, and at least one machine"
    );
    let count: usize = {
        let gpt = Gpt::new(&SIZES, warpline::Device::Cpu)?;
        gpt.parameters().iter().map(|parameter| parameter.numel()).sum()
    };
    let scale = GRADIENTS / (4.0 * count as f64);
    let topology = |machines| Topology {
        machines,
        within: Link { bandwidth: args.within / scale, ..Topology::default().within },
        between: Link { bandwidth: args.between / scale, latency: args.latency },
    };
    let options =
        DdpOptions::new().bucket_cap_mb(BUCKET_CAP / scale).gradient_as_bucket_view(args.views);
    // A step of one GPU takes a time that is proportional to that of a kernel, if kernels are longer than calls.
    let probe = 100.0;
    let alone = simulate(1, topology(1), probe, &options)?;
    let kernel_time = probe * args.compute / alone.no_sync;
    println!(
        "one GPU: {:.2} ms, kernels of {kernel_time:.1} µs",
        simulate(1, topology(1), kernel_time, &options)?.no_sync
    );
    println!(
        "machines | GPUs | all-reduce of all gradients: formula, simulated | step | not hidden | scaling"
    );
    for &machines in &args.machines {
        let (ranks, topology) = (machines * args.gpus, topology(machines));
        let found = simulate(ranks, topology, kernel_time, &options)?;
        let formula = topology.all_reduce_time(ranks, machines, 4 * count) / 1e3;
        println!(
            "{machines:8} | {ranks:4} | {formula:.3} ms, {:.3} ms | {:.2} ms | {:.2} ms | {:.3}",
            found.all_reduce,
            found.step,
            found.step - found.no_sync,
            args.compute / found.step
        );
    }
    Ok(())
}
