//! The cost of a collective does not grow with the collectives that are outstanding. The driver
//! completes nothing, and the cost is counted in allocations: lists that grow have to be allocated anew.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use warpline::cuda::CudaGraph;
use warpline::{Result, Runtime, RuntimeConfig, ones, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_parallel::distributed::{HashStore, InitOptions, ReduceOp, init_process_group};

/// The system's allocator, which counts bytes.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const BLOCK: usize = 512;
const BLOCKS: usize = 8;

/// Runs `item` many times without a wait. The median of the bytes that a block of items allocates may
/// not grow.
fn flat(name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
    let mut blocks = Vec::new();
    for _ in 0..BLOCKS {
        let before = ALLOCATED.load(Relaxed);
        (0..BLOCK).try_for_each(|_| item())?;
        blocks.push((ALLOCATED.load(Relaxed) - before) / BLOCK);
    }
    println!("{name}: bytes allocated per item: {blocks:?}");
    let [early, late] = [&blocks[..BLOCKS / 2], &blocks[BLOCKS / 2..]].map(|half| {
        let mut half = half.to_vec();
        half.sort_unstable();
        half[half.len() / 2]
    });
    assert!(late <= early * 3 / 2 + 64, "{name}: {early}, then {late} bytes per item");
    Ok(())
}

// One test, since the counter is the process's.
#[test]
fn the_cost_of_collectives_does_not_grow_with_those_that_are_outstanding() {
    let driver = Arc::new(NullDriver::without_completion(1));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, all).expect("no error");
}

fn all() -> Result<()> {
    let mut options = InitOptions::new(Arc::new(HashStore::new()), 0, 1);
    options.device = Some(0);
    let group = init_process_group(options)?;
    let x = ones([16], 0)?;
    flat("all_reduce", || group.all_reduce(&x, ReduceOp::Sum, true).map(drop))?;
    let mut works = Vec::new();
    flat("all_reduce, kept", || {
        works.push(group.all_reduce(&ones([16], 0)?, ReduceOp::Sum, true)?);
        Ok(())
    })?;
    flat("all_reduce, used", || {
        group.all_reduce(&x, ReduceOp::Sum, false)?;
        x.add_(1.0).map(drop)
    })?;
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        group.all_reduce(&x, ReduceOp::Sum, false).expect("it is captured");
        Ok(())
    })?;
    flat("replay", || graph.replay())?;
    Ok(())
}
