//! A forked child may use CPU tensors, although its parent's threads are gone in it.
#![cfg(unix)]

use std::panic::Location;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::sim::SimConfig;
use warpline_kernels::elementwise;
use warpline_kernels::fill::fill;
use warpline_kernels::matmul::matmul;
use warpline_kernels::random::{normal, randperm};
use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_kernels::softmax::softmax;
use warpline_runtime::launch::{read_bytes, write_bytes};
use warpline_runtime::{
    DType, Error, HostCacheStats, Layout, Runtime, RuntimeConfig, Scalar, Storage, Target, View,
};

/// Runs `f` in a forked child, which has a minute for it, and says how that ended.
fn in_child(f: impl FnOnce()) -> Result<(), String> {
    // SAFETY: the child runs what this test is about, and ends without the parent's cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(catch_unwind(AssertUnwindSafe(f)).is_err());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != child {
        if begun.elapsed() > Duration::from_secs(60) {
            // SAFETY: the child made above, which nobody has waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return Err("it hangs".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(());
    }
    Err(format!("it ended with status {status:#x}"))
}

/// Held by each test: a child may wait for what another thread was in the middle of.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const N: usize = 512;

/// Ops of each kind that spreads over threads, on tensors from before and of its own.
fn every_kind_of_op(runtime: &Runtime, old: &Storage) {
    let target = Target::Cpu(runtime);
    let layout = Layout::contiguous(&[N, N]).unwrap();
    let own = Storage::pageable(runtime, N * N * 4).unwrap();
    let sums = Storage::pageable(runtime, N * N * 8).unwrap();
    let (one, flat) = (Layout::contiguous(&[]).unwrap(), Layout::contiguous(&[N * N]).unwrap());
    for dtype in [DType::F32, DType::F16] {
        let [a, b] = [old, &own].map(|storage| View { storage, layout: &layout, dtype });
        let c = View { storage: &sums, ..a };
        fill(target, a, Scalar::Float(-1.0)).unwrap();
        elementwise::apply(target, &elementwise::NEG, dtype, &[a.into()], b).unwrap();
        matmul(target, a, b, c).unwrap();
        softmax(target, c, 1, b, false).unwrap();
        normal(target, a, 0.0, 1.0).unwrap();
        let total = View { storage: &sums, layout: &one, dtype };
        reduce(target, ReduceOp::Sum, b, &[0, 1], total).unwrap();
        let mut bytes = [0; 4];
        read_bytes((&sums, 0), &mut bytes[..dtype.size()]).unwrap();
        // Each row of a softmax sums up to 1.
        let expected: &[u8] = match dtype {
            DType::F32 => &(N as f32).to_ne_bytes(),
            _ => &0x6000u16.to_ne_bytes(),
        };
        assert_eq!(&bytes[..dtype.size()], expected, "{dtype}");
    }
    let order = View { storage: &sums, layout: &flat, dtype: DType::I64 };
    randperm(target, order).unwrap();
    reduce(target, ReduceOp::Max, order, &[0], View { storage: &own, layout: &one, ..order })
        .unwrap();
    let mut largest = [0; 8];
    read_bytes((&own, 0), &mut largest).unwrap();
    assert_eq!(i64::from_ne_bytes(largest), (N * N - 1) as i64);
}

#[test]
fn a_forked_child_uses_cpu_tensors() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let old = Storage::pageable(&runtime, N * N * 4).unwrap();
    // So that there are threads which the child has not.
    every_kind_of_op(&runtime, &old);
    let ended = in_child(|| {
        every_kind_of_op(&runtime, &old);
        in_child(|| every_kind_of_op(&runtime, &old)).unwrap();
    });
    ended.unwrap();
    every_kind_of_op(&runtime, &old);
}

#[test]
fn a_child_of_one_of_rayons_threads_uses_cpu_tensors() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let old = Storage::pageable(&runtime, N * N * 4).unwrap();
    let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    threads.install(|| in_child(|| every_kind_of_op(&runtime, &old))).unwrap();
}

#[test]
fn a_child_drops_memory_while_its_parent_was_allocating() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let stream = runtime.device(0).unwrap().device().default_stream();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop((Storage::pinned(&runtime, 64), Storage::device(&runtime, 64, stream)));
                }
            });
        }
        let ended: Vec<_> = (0..100)
            .map(|_| {
                let pinned = Storage::pinned(&runtime, 64).unwrap();
                let device = Storage::device(&runtime, 64, stream).unwrap();
                in_child(move || drop((pinned, device)))
            })
            .take_while(Result::is_ok)
            .collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ended.len(), 100);
    });
}

/// The cache of large blocks may be locked by a thread that is not in the child.
#[test]
fn a_child_does_without_its_parents_cache_of_host_memory() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(Storage::pageable(&runtime, 1 << 20));
            }
        });
        let ended: Vec<_> = (0..100)
            .map(|_| {
                let (old, runtime) = (Storage::pageable(&runtime, 1 << 20).unwrap(), &runtime);
                in_child(move || {
                    drop((old, Storage::pageable(runtime, 1 << 20).unwrap()));
                    runtime.empty_host_cache();
                    assert_eq!(runtime.host_cache_stats(), HostCacheStats::default());
                })
            })
            .take_while(Result::is_ok)
            .collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ended.len(), 100);
    });
    assert!(runtime.host_cache_stats().num_reused > 0);
}

#[test]
fn page_locked_memory_and_cuda_are_refused_in_a_forked_child() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().default_stream();
    let pinned = Storage::pinned(&runtime, 64).unwrap();
    write_bytes((&pinned, 0), &[1; 64]).unwrap();
    // Memory that the caches would give without asking the driver.
    drop((
        Storage::pinned(&runtime, 4096).unwrap(),
        Storage::device(&runtime, 4096, stream).unwrap(),
    ));
    let layout = Layout::contiguous(&[64]).unwrap();
    let ended = in_child(|| {
        let forked = |result: Result<(), Error>| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("forked child"), "{text}");
        };
        forked(read_bytes((&pinned, 0), &mut [0; 64]));
        forked(write_bytes((&pinned, 0), &[2; 64]));
        let view = View { storage: &pinned, layout: &layout, dtype: DType::U8 };
        forked(fill(Target::Cpu(&runtime), view, Scalar::Int(3)));
        forked(Storage::pinned(&runtime, 4096).map(drop));
        let own = Storage::pageable(&runtime, 64).unwrap();
        let here = Location::caller();
        if let Ok(memory) = Storage::device(&runtime, 64, stream) {
            forked(warpline_runtime::launch::copy_bytes(
                stream,
                (&memory, 0),
                (&own, 0),
                64,
                false,
                here,
            ));
        }
    });
    ended.unwrap();
    let mut bytes = [0; 64];
    read_bytes((&pinned, 0), &mut bytes).unwrap();
    assert_eq!(bytes, [1; 64]);
}
