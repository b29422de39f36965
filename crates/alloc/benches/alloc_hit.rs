//! Measures allocations that the cache serves, with a backend that does nothing: the time per
//! malloc and free. With several threads, the time is divided by the operations of all threads.
#![allow(dead_code, unreachable_pub)] // modules that are shared with the examples

mod common;
#[path = "../examples/replay/moe.rs"]
mod moe;
#[path = "../examples/replay/run.rs"]
mod run;
#[path = "../examples/replay/trace.rs"]
mod trace;
#[path = "../examples/versus_torch/work.rs"]
mod work;

use std::path::Path;
use std::time::Duration;

use common::Null;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use trace::Trace;
use work::{LIVE, Mixed, SIZES, THREADS, cached, threads};

const POLICIES: [(&str, &str); 2] = [("default", "policy:default"), ("torch", "policy:torch")];

/// Steps of a run over mixed sizes.
const STEPS: usize = 10_000;

fn size_name(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Allocates and frees one block.
fn one_block(c: &mut Criterion) {
    for (policy, options) in POLICIES {
        let mut group = c.benchmark_group(format!("cached, {policy}"));
        for bytes in SIZES.into_iter().chain([1 << 10, 16 << 20]) {
            let allocator = Null::allocator(options);
            group.bench_function(size_name(bytes), |b| {
                b.iter_custom(|times| cached(&allocator, &0, bytes, times as usize).unwrap());
            });
        }
        group.finish();
    }
}

/// Allocates and frees in several threads, each on its own stream.
fn several_threads(c: &mut Criterion) {
    for (policy, options) in POLICIES {
        let mut group = c.benchmark_group(format!("threads, {policy}"));
        for count in THREADS {
            let allocator = Null::allocator(options);
            let streams: Vec<u64> = (1..=count as u64).collect();
            group.bench_function(BenchmarkId::from_parameter(count), |b| {
                b.iter_custom(|times| {
                    // Enough iterations that starting the threads does not count.
                    let each = (times as usize).div_ceil(count).max(20_000);
                    let all = threads(&allocator, &streams, 4 << 10, each).unwrap();
                    all.mul_f64(times as f64 / (each * count) as f64)
                });
            });
        }
        group.finish();
    }
}

/// Blocks of 512 bytes to 32 MiB: each step frees one block and allocates one.
fn mixed_sizes(c: &mut Criterion) {
    for (policy, options) in POLICIES {
        let mut group = c.benchmark_group(format!("mixed sizes, {policy}"));
        group.throughput(Throughput::Elements(STEPS as u64)).sample_size(20);
        for live in LIVE {
            let allocator = Null::allocator(options);
            let mut mixed = Mixed::new(&allocator, &0, live, STEPS).unwrap();
            mixed.run(&allocator, &0).unwrap();
            group.bench_function(format!("{live} live"), |b| {
                b.iter_custom(|times| {
                    (0..times).map(|_| mixed.run(&allocator, &0).unwrap()).sum::<Duration>()
                });
            });
        }
        group.finish();
    }
}

/// Replays recorded traces with the cache that an earlier replay left.
fn warm_replays(c: &mut Criterion) {
    let folder = Path::new("traces");
    let files =
        ["gpt2_var", "llama_lora_ckpt", "multistream_prefetch", "resnet50", "unet_multires"];
    let traces = files.map(|name| Trace::open(&folder.join(format!("{name}.csv.gz"))).unwrap());
    for (policy, options) in POLICIES {
        let mut group = c.benchmark_group(format!("warm replay, {policy}"));
        group.sample_size(10);
        for trace in &traces {
            let allocator = Null::allocator(options);
            let replay = || {
                run::replay(&allocator, trace, &trace.streams, &mut (), &mut |_| {}).unwrap().time
            };
            replay();
            group.throughput(Throughput::Elements(trace.ops.len() as u64));
            group.bench_function(&trace.name, |b| {
                b.iter_custom(|times| (0..times).map(|_| replay()).sum::<Duration>());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, one_block, several_threads, mixed_sizes, warm_replays);
criterion_main!(benches);
