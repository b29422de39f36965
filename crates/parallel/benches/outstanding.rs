//! Measures the host's cost of a collective while other collectives are outstanding.
//!
//! `cargo bench -p warpline-parallel --bench outstanding` runs on a driver that completes nothing. With
//! `WARPLINE_DRIVER=cuda` it runs on the machine's GPUs, in a group with one rank per GPU. Each rank is a thread. The
//! times are those of rank 0.

use std::sync::Arc;
use std::time::Instant;

use warpline::{Result, Runtime, RuntimeConfig, cuda, ones, runtime, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_parallel::distributed::{HashStore, InitOptions, ReduceOptions, init_process_group};

fn main() -> Result<()> {
    if std::env::var_os("WARPLINE_DRIVER").is_some() {
        return growth();
    }
    let driver = Arc::new(NullDriver::without_completion(1));
    let runtime = Runtime::new(driver, RuntimeConfig::default())?;
    with_runtime(&runtime, growth)
}

/// Calls `item` in loops of several lengths, and prints the time per call on rank 0, in nanoseconds.
fn row(rank: usize, name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
    (0..100).try_for_each(|_| item())?;
    let mut line = format!("{name:30}");
    let mut first = None;
    for items in [1_000, 10_000, 100_000] {
        cuda::synchronize(rank)?;
        let start = Instant::now();
        (0..items).try_for_each(|_| item())?;
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(items);
        line +=
            &format!("  {items:>6}: {each:>7.0} ns ({:.1} x)", each / *first.get_or_insert(each));
    }
    if rank == 0 {
        println!("{line}");
    }
    cuda::synchronize(rank)
}

fn growth() -> Result<()> {
    let (runtime, store) = (runtime(), HashStore::new());
    let ranks = cuda::device_count()?;
    println!("ranks: {ranks}");
    std::thread::scope(|scope| {
        let start = |rank| {
            let options = InitOptions::new(Arc::new(store.clone()), rank, ranks).device(rank);
            scope.spawn(|| with_runtime(&runtime, || growth_of_rank(options)))
        };
        let ranks: Vec<_> = (0..ranks).map(start).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
    })
}

fn growth_of_rank(options: InitOptions) -> Result<()> {
    let group = init_process_group(options)?;
    let rank = group.rank();
    let x = ones([1024], rank)?;
    row(rank, "all_reduce", || group.all_reduce(&x, ()).map(drop))?;
    row(rank, "all_reduce, async_op", || {
        group.all_reduce(&x, ReduceOptions::new().async_op(true)).map(drop)
    })?;
    row(rank, "all_reduce, add_", || {
        group.all_reduce(&x, ())?;
        x.add_(1.0).map(drop)
    })
}
