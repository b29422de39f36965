//! Measures the host's cost of a collective while other collectives are outstanding.
//!
//! `cargo bench -p warpline-parallel --bench outstanding` runs on a driver that completes nothing. With
//! `WARPLINE_DRIVER=cuda` it runs on the machine's first GPU, in a group of one rank.

use std::sync::Arc;
use std::time::Instant;

use warpline::{Result, Runtime, RuntimeConfig, cuda, ones, with_runtime};
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

/// Prints the time per item, in nanoseconds, for several numbers of items.
fn row(name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
    (0..100).try_for_each(|_| item())?;
    print!("{name:30}");
    let mut first = None;
    for items in [1_000, 10_000, 100_000] {
        cuda::synchronize(0)?;
        let start = Instant::now();
        (0..items).try_for_each(|_| item())?;
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(items);
        print!("  {items:>6}: {each:>7.0} ns ({:.1} x)", each / *first.get_or_insert(each));
    }
    println!();
    cuda::synchronize(0)
}

fn growth() -> Result<()> {
    let options = InitOptions::new(Arc::new(HashStore::new()), 0, 1).device(0);
    let group = init_process_group(options)?;
    let x = ones([1024], 0)?;
    row("all_reduce", || group.all_reduce(&x, ()).map(drop))?;
    row("all_reduce, async_op", || {
        group.all_reduce(&x, ReduceOptions::new().async_op(true)).map(drop)
    })?;
    row("all_reduce, add_", || {
        group.all_reduce(&x, ())?;
        x.add_(1.0).map(drop)
    })
}
