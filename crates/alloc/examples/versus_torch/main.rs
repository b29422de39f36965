//! Measures the calls of the allocator and prints JSON lines; `compare.py` sets PyTorch's figures
//! beside them.

#![allow(dead_code, unreachable_pub)] // the modules are shared

#[path = "../replay/moe.rs"]
mod moe;
#[path = "../replay/policy.rs"]
mod policy;
#[path = "../replay/run.rs"]
mod run;
#[path = "../replay/trace.rs"]
mod trace;
mod work;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use warpline_alloc::{CudaAllocator, CudaBackend};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_cuda_sys_safe::owned::Stream;
use warpline_cuda_sys_safe::{Driver, StreamFlags, open};

use crate::policy::Policy;
use crate::trace::Trace;
use crate::work::{LIVE, Mixed, SIZES, THREADS, cached, threads};

/// Measures the allocator in the same way as `torch_alloc.cpp` measures PyTorch's.
#[derive(Debug, Parser)]
struct Options {
    /// Traces, or `moe:SHAPE:SEED:STEPS` for a generated trace of a mixture of experts.
    traces: Vec<PathBuf>,
    /// Prints the lines of the first trace, which is a generated one, and exits.
    #[arg(long)]
    text: bool,
    /// Policy of the allocator.
    #[arg(long, value_enum, default_value = "default")]
    policy: Policy,
    /// Further options of the allocator, such as `headroom_percent:5`.
    #[arg(long, default_value = "")]
    options: String,
    /// Driver that provides the memory.
    #[arg(long, value_enum, default_value = "cuda")]
    driver: DriverKind,
    /// Measurements to run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "cached,threads,mixed,trace")]
    only: Vec<Only>,
    /// Rounds of each measurement, after a round that is not counted; their median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Allocations of each measurement and thread.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DriverKind {
    /// The machine's first GPU.
    Cuda,
    /// A simulated GPU.
    Sim,
    /// A driver that does nothing.
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Only {
    Cached,
    Threads,
    Mixed,
    Trace,
    Fresh,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.text {
        let name = options.traces.first().map(|path| path.to_string_lossy());
        print!("{}", moe::generate(&name.unwrap_or_default())?);
        return Ok(());
    }
    let driver: Arc<dyn Driver> = match options.driver {
        DriverKind::Cuda => open(Some("cuda"), None)?,
        DriverKind::Sim => open(Some("sim"), None)?,
        DriverKind::Null => Arc::new(NullDriver::new(1)),
    };
    let bench = Bench { options, driver };
    bench.options.only.iter().try_for_each(|only| match only {
        Only::Cached => bench.cached(),
        Only::Threads => bench.threads(),
        Only::Mixed => bench.mixed(),
        Only::Trace => bench.traces(),
        Only::Fresh => bench.fresh(),
    })
}

struct Bench {
    options: Options,
    driver: Arc<dyn Driver>,
}

impl Bench {
    /// Makes an allocator with an empty cache.
    fn allocator(&self) -> Result<CudaAllocator> {
        let backend = CudaBackend::new(Arc::clone(&self.driver), 0);
        Ok(CudaAllocator::new(backend, self.options.policy.config_with(&self.options.options)?))
    }

    fn streams(&self, count: usize) -> Result<Vec<Stream>> {
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        Ok((0..count)
            .map(|_| Stream::new(&self.driver, 0, flags))
            .collect::<std::result::Result<_, _>>()?)
    }

    /// Returns the median time per operation over the rounds, in nanoseconds. A first round is not
    /// counted.
    fn measure(&self, operations: usize, mut run: impl FnMut() -> Result<Duration>) -> Result<f64> {
        run()?;
        median_per(operations, self.options.rounds, run)
    }

    fn times(&self) -> usize {
        self.options.times as usize
    }

    fn cached(&self) -> Result<()> {
        let stream = Stream::default_of(&self.driver, 0);
        for bytes in SIZES {
            let allocator = self.allocator()?;
            let ns = self
                .measure(self.times(), || Ok(cached(&allocator, &stream, bytes, self.times())?))?;
            print(json!({"bench": "cached", "bytes": bytes, "ns_per_op": ns}));
        }
        Ok(())
    }

    fn threads(&self) -> Result<()> {
        for bytes in SIZES {
            for count in THREADS {
                let (allocator, streams) = (self.allocator()?, self.streams(count)?);
                let ns = self.measure(self.times() * count, || {
                    Ok(threads(&allocator, &streams, bytes, self.times())?)
                })?;
                print(json!({
                    "bench": "threads", "bytes": bytes, "threads": count,
                    "ns_per_op": ns, "ns_per_op_of_a_thread": ns * count as f64,
                }));
            }
        }
        Ok(())
    }

    fn mixed(&self) -> Result<()> {
        let stream = Stream::default_of(&self.driver, 0);
        for live in LIVE {
            let allocator = self.allocator()?;
            let mut mixed = Mixed::new(&allocator, &stream, live, self.times())?;
            let ns = self.measure(self.times(), || Ok(mixed.run(&allocator, &stream)?))?;
            print(json!({"bench": "mixed", "live": live, "ns_per_op": ns}));
        }
        Ok(())
    }

    /// Returns a stream for each stream of a trace.
    fn streams_of(&self, trace: &Trace) -> Result<Vec<Stream>> {
        let others = self.streams(trace.streams.len())?;
        let default = Stream::default_of(&self.driver, 0);
        let own = |(&number, stream)| if number == 0 { default.clone() } else { stream };
        Ok(trace.streams.iter().zip(others).map(own).collect())
    }

    fn traces(&self) -> Result<()> {
        for path in &self.options.traces {
            let trace = Trace::open(path)?;
            let streams = self.streams_of(&trace)?;
            let allocator = self.allocator()?;
            let ns = self.measure(trace.ops.len(), || {
                Ok(run::replay(&allocator, &trace, &streams, &mut (), &mut |_| {})?.time)
            })?;
            let name = trace.name.split('.').next();
            print(json!({"bench": "trace", "trace": name, "ns_per_op": ns}));
        }
        Ok(())
    }

    /// Measures replays that each start with an empty cache, and the memory that they reserve.
    fn fresh(&self) -> Result<()> {
        for path in &self.options.traces {
            let trace = Trace::open(path)?;
            let streams = self.streams_of(&trace)?;
            let mut reserved = 0.0;
            let operations = trace.ops.len() - trace.ops.len() / 4;
            let ns = median_per(operations, self.options.rounds, || {
                let allocator = self.allocator()?;
                let outcome = run::replay(&allocator, &trace, &streams, &mut (), &mut |_| {})?;
                let stats = allocator.memory_stats();
                let [held, asked] =
                    [stats.reserved_bytes, stats.requested_bytes].map(|it| it.all.peak as f64);
                reserved = held / asked;
                Ok(outcome.late)
            })?;
            let name = trace.name.split('.').next();
            print(json!({
                "bench": "fresh", "trace": name, "ns_per_op": ns, "reserved": reserved,
            }));
        }
        Ok(())
    }
}

/// Returns the median time per operation over the rounds, in nanoseconds.
fn median_per(
    operations: usize,
    rounds: usize,
    mut run: impl FnMut() -> Result<Duration>,
) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..rounds.max(1) {
        times.push(run()?.as_nanos() as f64 / operations.max(1) as f64);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok((times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0)
}

fn print(line: Value) {
    println!("{line}");
}
