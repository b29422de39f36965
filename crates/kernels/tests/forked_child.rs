//! Tests that a forked child can use CPU tensors, although the parent's threads do not exist in the
//! child.
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

/// Runs `f` in a forked child. Returns an error if the child fails or takes longer than one minute.
fn in_child(f: impl FnOnce()) -> Result<(), String> {
    // SAFETY: the child runs only `f`, and exits without the parent's destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(catch_unwind(AssertUnwindSafe(f)).is_err());
        // SAFETY: `_exit` has no conditions; it ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let (begun, mut status) = (Instant::now(), 0);
    // SAFETY: `child` is the process that was forked here, and `status` is valid for writes.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } != child {
        if begun.elapsed() > Duration::from_secs(60) {
            // SAFETY: `child` was forked here and not yet reaped, so its id is not reused.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: `child` is the process that was forked here, and `status` is valid for
            // writes.
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

/// Each test locks this mutex, so that no other test runs meanwhile: a child could wait forever for
/// a lock that a thread of another test held at the fork.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const N: usize = 512;

/// Runs ops of each kind that uses several threads, on `old` and on new storages.
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
        // Each row of a softmax sums to 1, and there are `N` rows.
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
    // This starts threads in the parent, which do not exist in the child.
    every_kind_of_op(&runtime, &old);
    let ended = in_child(|| {
        every_kind_of_op(&runtime, &old);
        in_child(|| every_kind_of_op(&runtime, &old)).unwrap();
    });
    ended.unwrap();
    every_kind_of_op(&runtime, &old);
}

#[test]
fn a_child_forked_from_a_rayon_thread_uses_cpu_tensors() {
    let _alone = alone();
    let runtime = Runtime::new(SimConfig::new(1).build(), RuntimeConfig::default()).unwrap();
    let old = Storage::pageable(&runtime, N * N * 4).unwrap();
    let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    threads.install(|| in_child(|| every_kind_of_op(&runtime, &old))).unwrap();
}

#[test]
fn a_child_forked_during_an_allocation_drops_memory_and_gets_none() {
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
                in_child(|| {
                    drop((pinned, device));
                    assert!(Storage::device(&runtime, 64, stream).is_err());
                })
            })
            .take_while(Result::is_ok)
            .collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ended.len(), 100);
    });
}

/// A thread of the parent, which does not exist in the child, may have held the lock of the host
/// cache at the fork.
#[test]
fn a_child_does_not_use_its_parents_cache_of_host_memory() {
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
    let memory = Storage::device(&runtime, 64, stream).unwrap();
    write_bytes((&pinned, 0), &[1; 64]).unwrap();
    // Put memory into the caches, which could hand it out without a call of the driver.
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
        forked(warpline_runtime::launch::copy_bytes(
            stream,
            (&memory, 0),
            (&own, 0),
            64,
            false,
            here,
        ));
        forked(Storage::device(&runtime, 64, stream).map(drop));
    });
    ended.unwrap();
    let mut bytes = [0; 64];
    read_bytes((&pinned, 0), &mut bytes).unwrap();
    assert_eq!(bytes, [1; 64]);
}
