//! The memory that a collective allocates does not grow with the number of outstanding collectives. The driver
//! completes no work. `benches/outstanding.rs` measures the time of the same calls.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use warpline::cuda::CudaGraph;
use warpline::{Result, Runtime, RuntimeConfig, ones, with_runtime};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_parallel::distributed::{HashStore, InitOptions, ReduceOptions, init_process_group};

/// The system's allocator, with a counter of allocated bytes.
struct CountingAllocator;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to `System` with the same arguments, and `System` is a valid allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller guarantees that `layout` has a nonzero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `alloc` returned `at` for `layout`; `alloc` returns memory of `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BLOCK: usize = 512;
const BLOCKS: usize = 32;

/// Calls `item` many times without waiting. Asserts that the number of bytes allocated per call does not grow: the
/// median over the later blocks of calls may exceed the median over the earlier blocks by half of it plus 64 bytes.
fn assert_constant_cost(name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
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

// This file has a single test, because the whole process shares the counter.
#[test]
fn the_memory_of_a_collective_does_not_depend_on_outstanding_collectives() {
    let driver = Arc::new(NullDriver::without_completion(1));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, all).expect("no error");
}

fn all() -> Result<()> {
    let options = InitOptions::new(Arc::new(HashStore::new()), 0, 1).device(0);
    let group = init_process_group(options)?;
    let x = ones([16], 0)?;
    assert_constant_cost("all_reduce", || {
        group.all_reduce(&x, ReduceOptions::new().async_op(true)).map(drop)
    })?;
    let mut works = Vec::new();
    assert_constant_cost("all_reduce, kept", || {
        works.push(group.all_reduce(&ones([16], 0)?, ReduceOptions::new().async_op(true))?);
        Ok(())
    })?;
    assert_constant_cost("all_reduce, used", || {
        group.all_reduce(&x, ())?;
        x.add_(1.0).map(drop)
    })?;
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        group.all_reduce(&x, ()).expect("it is captured");
        Ok(())
    })?;
    assert_constant_cost("replay", || graph.replay())?;
    Ok(())
}
