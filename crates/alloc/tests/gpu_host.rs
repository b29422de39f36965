//! Measures the cost of page-locked memory on a real GPU.
//!
//! `cargo test --release -p warpline-alloc --test gpu_host -- --ignored --nocapture gpu_`
#![cfg(feature = "cuda")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline_alloc::{CudaHostBackend, CudaHostCache, HostConfig};
use warpline_cuda_sys_safe::owned::HostMemory;
use warpline_cuda_sys_safe::{PointerKind, real};

/// Compares the first pin of 1 GiB with `cuMemHostAlloc` and with a block from the cache.
#[test]
#[ignore = "needs a GPU"]
fn gpu_a_pinned_block_of_one_gib_is_reused() {
    const GIB: usize = 1 << 30;
    let driver = real::load().expect("this test needs a GPU");
    // Create the context first, so that the first measurement does not include its creation.
    drop(HostMemory::pinned(&driver, 0, 4096).unwrap());
    let timed = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    let (mut theirs, mut ours, mut cached) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        let mut memory = None;
        theirs.push(timed(&mut || memory = Some(HostMemory::pinned(&driver, 0, GIB).unwrap())));
        drop(memory);
        let cache =
            CudaHostCache::new(CudaHostBackend::new(Arc::clone(&driver), 0), HostConfig::default());
        let mut block = None;
        ours.push(timed(&mut || block = Some(cache.alloc(GIB).unwrap())));
        let start = block.as_ref().unwrap().as_ptr();
        let kind = driver.pointer_kind((start.addr().get() + GIB - 1) as u64).unwrap();
        assert_eq!(kind, PointerKind::Pinned);
        drop(block.take());
        cached.push(timed(&mut || block = Some(cache.alloc(GIB).unwrap())));
        assert_eq!(block.unwrap().as_ptr(), start);
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let [theirs, ours, cached] = [&mut theirs, &mut ours, &mut cached].map(median);
    println!(
        "1 GiB: cuMemHostAlloc {theirs:.3} s, first pin {ours:.3} s ({:.2} of it), cached {cached:.6} s",
        ours / theirs
    );
    for threads in [1, 2, 4, 8, 16, 32] {
        let mut times: Vec<_> = (0..3)
            .map(|_| {
                let mut memory = None;
                let time = timed(&mut || {
                    memory = Some(HostMemory::registered_by(&driver, 0, GIB, threads).unwrap());
                });
                drop(memory);
                time
            })
            .collect();
        println!("  {threads} threads: {:.3} s", median(&mut times));
    }
    assert!(ours <= 0.55 * theirs, "{ours} s against {theirs} s");
    assert!(cached <= 0.030, "{cached} s from the cache");
}
