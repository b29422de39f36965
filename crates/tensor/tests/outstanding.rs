//! Tests that the memory that a call allocates does not grow with the amount of outstanding work. The driver completes
//! nothing, except in [`complete`]. `benches/outstanding.rs` measures the time of the same calls.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{DType, Result, Runtime, RuntimeConfig, Tensor, ones, with_runtime, zeros};
use warpline_cuda_sys_safe::null::NullDriver;

/// An allocator that forwards to the system's, and counts the bytes that were ever allocated and
/// those that still are.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both methods pass their arguments to `System`, which implements the trait.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller of `alloc` guarantees a layout of nonzero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `at` came from `System.alloc` with this layout, because `alloc` passes every
        // request on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of items per block. The counters are read after each of `BLOCKS` blocks.
const BLOCK: usize = 512;
const BLOCKS: usize = 32;

/// Runs `item` many times without a wait. From block to block, neither the bytes that a block of
/// items allocates, nor the bytes that remain allocated after it may grow. The test compares the lower medians of the
/// first and the second half, which ignore blocks in which a table doubles its size.
fn flat(name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
    let mut blocks = Vec::new();
    for _ in 0..BLOCKS {
        let before = (ALLOCATED.load(Relaxed), LIVE.load(Relaxed));
        (0..BLOCK).try_for_each(|_| item())?;
        let left = LIVE.load(Relaxed).saturating_sub(before.1);
        blocks.push([(ALLOCATED.load(Relaxed) - before.0) / BLOCK, left / BLOCK]);
    }
    println!("{name}: bytes allocated and left, per item: {blocks:?}");
    for which in 0..2 {
        let [early, late] = [&blocks[..BLOCKS / 2], &blocks[BLOCKS / 2..]].map(|half| {
            let mut bytes: Vec<_> = half.iter().map(|block| block[which]).collect();
            bytes.sort_unstable();
            bytes[(bytes.len() - 1) / 2]
        });
        assert!(late <= early * 3 / 2 + 64, "{name}: {early}, then {late} bytes per item");
    }
    Ok(())
}

/// Captures a graph like that of a decoder: it gathers a row, and each layer writes the row to a cache, and adds.
fn decoder(layers: usize) -> Result<CudaGraph> {
    let index = zeros([1], (DType::I64, 0))?;
    let table = ones([8, 4], 0)?;
    let make = |sizes: [usize; 2]| (0..layers).map(|_| zeros(sizes, 0)).collect::<Result<Vec<_>>>();
    let (caches, sums) = (make([8, 4])?, make([1, 4])?);
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        let mut row = table.index_select(0, &index)?;
        for (cache, sum) in caches.iter().zip(&sums) {
            cache.index_copy_(0, &index, &row)?;
            sum.add_(&cache.narrow(0, 0, 1)?)?;
            row = row.add(sum)?;
        }
        Ok(())
    })?;
    Ok(graph)
}

// Keep a single test in this binary: the counters are global to the process.
#[test]
fn the_memory_of_a_call_does_not_grow_with_outstanding_work() {
    let driver = Arc::new(NullDriver::without_completion(2));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, all).expect("no error");
    let driver = Arc::new(NullDriver::new(1));
    let runtime = Runtime::new(driver, RuntimeConfig::default()).expect("a runtime");
    with_runtime(&runtime, complete).expect("no error");
}

/// Completed replays leave no memory allocated, although the host never waits.
fn complete() -> Result<()> {
    let graph = decoder(1)?;
    (0..BLOCK).try_for_each(|_| graph.replay())?;
    let before = LIVE.load(Relaxed);
    (0..BLOCKS * BLOCK).try_for_each(|_| graph.replay())?;
    let left = LIVE.load(Relaxed).saturating_sub(before);
    println!("complete replays: {left} bytes left");
    assert!(left < BLOCKS * BLOCK, "complete replays leave {left} bytes");
    Ok(())
}

fn all() -> Result<()> {
    let x = ones([16], 0)?;
    let (table, index) = (ones([4, 4], 0)?, zeros([1], (DType::I64, 0))?);
    let row = ones([1, 4], 0)?;
    flat("add", || x.add(&x).map(drop))?;
    flat("add_", || x.add_(1.0).map(drop))?;
    flat("index_select", || table.index_select(0, &index).map(drop))?;
    flat("index_copy_", || table.index_copy_(0, &index, &row).map(drop))?;
    let sum = zeros([1, 4], 0)?;
    flat("index_select and add_", || sum.add_(&table.index_select(0, &index)?).map(drop))?;
    for layers in [1, 40] {
        let graph = decoder(layers)?;
        flat(&format!("replay of {layers} layers"), || graph.replay())?;
    }
    let [few, many] = [1, 400].map(|layers| -> Result<usize> {
        let graph = decoder(layers)?;
        (0..8).try_for_each(|_| graph.replay())?;
        let before = ALLOCATED.load(Relaxed);
        (0..BLOCK).try_for_each(|_| graph.replay())?;
        Ok((ALLOCATED.load(Relaxed) - before) / BLOCK)
    });
    let (few, many) = (few?, many?);
    println!("replay of 1 and of 400 layers: {few} and {many} bytes");
    assert!(many <= few + 256, "a replay looks at tensors that nothing else uses");
    let host = ones([16], ())?.pin_memory()?;
    flat("copy_", || x.copy_(&row.view([4])?.repeat([4])?, true).map(drop))?;
    flat("copy from pinned memory", || x.copy_(&host, true).map(drop))?;
    flat("copy to pinned memory", || host.copy_(&x, true).map(drop))?;
    flat("copy between devices", || x.to_non_blocking(1).map(drop))?;
    let mut pending = Vec::new();
    flat("copy to the host, kept", || {
        pending.push(x.cpu_async()?);
        Ok(())
    })?;
    let stream = cuda::current_stream(0)?;
    flat("event", || {
        let event = stream.record_event(None)?;
        event.query()?;
        Ok(())
    })?;
    let mut events = Vec::new();
    flat("event, kept", || {
        events.push(stream.record_event(None)?);
        Ok(())
    })?;
    let streams = (0..8).map(|_| Stream::new(0)).collect::<std::result::Result<Vec<_>, _>>()?;
    flat("wait for an event", || streams[0].wait_event(&stream.record_event(None)?))?;
    let mut turn = 0;
    let mut on_next = |t: &Tensor| {
        turn += 1;
        cuda::with_stream(&streams[turn % streams.len()], || t.add_(1.0).map(drop))
    };
    flat("streams in turns", || on_next(&x))?;
    flat("streams in turns on new tensors", || on_next(&x.add(1.0)?))?;
    let graph = decoder(4)?;
    flat("replays on streams in turns", || {
        streams[..2].iter().try_for_each(|stream| cuda::with_stream(stream, || graph.replay()))
    })?;
    flat("free that another stream waits for", || {
        let t = x.add(1.0)?;
        t.record_stream(&streams[1])
    })
}
