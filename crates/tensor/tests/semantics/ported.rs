//! Ported PyTorch tests that belong to no single row. Most inspect the simulated driver.

use warpline::{
    DType, ErrorKind, Result, RuntimeConfig, SyncPolicy, arange, cuda, empty, full, ones, zeros,
};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig};

use crate::boxes::SimBox;

fn small(capacity: usize) -> SimBox {
    let config = SimConfig { schedule: Schedule::Lazy, capacity, ..SimConfig::new(1) };
    SimBox::new(config, &RuntimeConfig::default())
}

/// PyTorch's tests `copy_non_blocking`, `to_non_blocking` and `to_cpu_blocking_by_default`. After
/// an asynchronous copy the stream is busy; after all other copies it is idle.
#[test]
fn copies_are_asynchronous_only_between_pinned_memory_and_a_device() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let pinned = arange(1000, ())?.pin_memory()?;
        let busy = |f: &dyn Fn() -> Result<warpline::Tensor>| -> Result<bool> {
            cuda::synchronize(0)?;
            let made = f()?;
            let busy = world.sim.pending() > 0;
            let start = if made.numel() == 1000 { 0 } else { 10 };
            let expected: Vec<i64> = (start..start + made.numel() as i64).collect();
            assert_eq!(made.to_vec::<i64>()?, expected);
            Ok(busy)
        };
        let device = pinned.to(0)?;
        let pageable = arange(1000, ())?;
        let offset = |t: &warpline::Tensor| t.narrow(0, 10, 500);
        assert!(busy(&|| pinned.to_non_blocking(0))?);
        assert!(busy(&|| offset(&pinned)?.to_non_blocking(0))?);
        assert!(busy(&|| device.to_non_blocking("cpu"))?);
        assert!(busy(&|| offset(&device)?.to_non_blocking("cpu"))?);
        assert!(!busy(&|| pinned.to(0))?);
        assert!(!busy(&|| device.cpu())?);
        assert!(!busy(&|| pageable.to_non_blocking(0))?);
        assert!(!busy(&|| {
            let out = empty([1000], DType::I64)?;
            out.copy_(&device, true)?;
            Ok(out)
        })?);
        // The destination is part of a page-locked tensor.
        let into = zeros([1000], DType::I64)?.pin_memory()?;
        assert!(busy(&|| {
            let slot = into.narrow(0, 300, 500)?;
            slot.copy_(&offset(&device)?, true)?;
            Ok(slot)
        })?);
        Ok(())
    });
}

/// PyTorch's tests `caching_pinned_memory` and `caching_pinned_memory_multi_gpu`. A page-locked
/// block is reused only after its copies have finished.
#[test]
fn a_pinned_block_is_used_again_once_its_copies_are_done() {
    for device in 0..2 {
        let world = SimBox::lazy(2);
        world.enter(|| {
            let pin = || ones([1000], ())?.pin_memory();
            let first = pin()?;
            let address = first.data_ptr();
            drop(first);
            let again = pin()?;
            assert_eq!(again.data_ptr(), address, "never used by a device");
            let copies =
                (0..10).map(|_| again.to_non_blocking(device)).collect::<Result<Vec<_>>>()?;
            drop(again);
            let other = pin()?;
            assert_ne!(other.data_ptr(), address, "a copy still reads it");
            cuda::synchronize(device)?;
            assert_eq!(pin()?.data_ptr(), address);
            assert_eq!(copies[9].sum(())?.item::<f32>()?, 1000.0);
            Ok(())
        });
    }
}

/// PyTorch's test `caching_allocator_record_stream_oom`. Before an allocation fails, the allocator
/// waits for memory that other streams still use.
#[test]
fn pending_frees_are_reclaimed_under_pressure() {
    let world = small(256 << 20);
    world.enter(|| {
        let s = cuda::Stream::new(0)?;
        let x = zeros([10 << 20], 0)?; // 40 MiB
        for _ in 0..20 {
            let y = &x + 1.0;
            let y = y?;
            cuda::with_stream(&s, || y.add_(1.0).map(drop))?;
            // `y` is freed while `s` still uses it. Without a wait for freed memory, the next
            // tensor would not fit.
        }
        cuda::synchronize(0)?;
        assert_eq!(x.sum(())?.item::<f32>()?, 0.0);
        Ok(())
    });
}

/// PyTorch's test `set_per_process_memory_fraction`.
#[test]
fn the_memory_fraction_holds() {
    let world = small(1 << 30);
    world.enter(|| {
        cuda::set_per_process_memory_fraction(0.5, 0)?;
        let total = cuda::mem_get_info(0)?.total;
        let bytes = |share: f64| (total as f64 * share) as usize;
        drop(empty([bytes(0.499)], (DType::I8, 0))?);
        cuda::empty_cache();
        let error = empty([bytes(0.5) + (2 << 20)], (DType::I8, 0)).expect_err("over the limit");
        assert!(matches!(error.kind(), ErrorKind::Alloc), "{error:?}");
        assert!(error.to_string().contains("allowed by the memory fraction"), "{error}");
        drop(empty([bytes(0.499)], (DType::I8, 0))?);
        Ok(())
    });
}

/// PyTorch's test `memory_stats_multigpu`: each device has its own counters.
#[test]
fn devices_are_counted_apart() {
    crate::common::worlds(2, |world| {
        let mut held = vec![Vec::new(); world.devices];
        let mut expected = vec![0usize; world.devices];
        for step in 0..40 {
            let device = (step * 7 + step / 3) % world.devices;
            if step % 4 == 3
                && let Some(t) = held[device].pop()
            {
                let t: warpline::Tensor = t;
                expected[device] -= (t.numel() * 4).next_multiple_of(512);
            } else {
                held[device].push(full([1 + step * 333], 1.0, device)?);
                expected[device] += ((1 + step * 333) * 4).next_multiple_of(512);
            }
            for (device, &expected) in expected.iter().enumerate() {
                assert_eq!(cuda::memory_allocated(device)?, expected, "after step {step}");
            }
        }
        Ok(())
    });
}

/// PyTorch's test `mem_get_info`.
#[test]
fn free_memory_is_the_drivers_figure() {
    let world = SimBox::lazy(2);
    world.enter(|| {
        for device in 0..2 {
            let before = cuda::mem_get_info(device)?;
            let t = empty([100 << 20], (DType::U8, device))?;
            let after = cuda::mem_get_info(device)?;
            assert_eq!(before.free - after.free, 100 << 20);
            assert_eq!(before.total, after.total);
            drop(t);
            assert_eq!(cuda::mem_get_info(device)?.free, after.free, "cached counts as used");
            cuda::empty_cache();
            assert_eq!(cuda::mem_get_info(device)?.free, before.free);
        }
        Ok(())
    });
}

/// PyTorch's test `cuda_init_race`: several threads may use devices for the first time at the same time.
#[test]
fn devices_may_be_used_first_at_once() {
    for seed in 0..8 {
        let world = SimBox::with(3, Schedule::Seeded(seed), SyncPolicy::Auto);
        let runtime = &world.runtime;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|i| {
                    scope.spawn(move || {
                        warpline::with_runtime(runtime, || {
                            let t = full([100], i as f64, (DType::F32, i % 3))?;
                            t.matmul(&t)?.item::<f32>()
                        })
                    })
                })
                .collect();
            for (i, thread) in threads.into_iter().enumerate() {
                let dot = thread.join().expect("no panic").expect("no failure");
                assert_eq!(dot, 100.0 * (i * i) as f32);
            }
        });
    }
}

/// All threads share one cache: a thread may reuse page-locked memory that another thread freed.
#[test]
fn threads_share_tensors_and_caches() {
    for seed in 0..4 {
        let world = SimBox::with(2, Schedule::Seeded(seed), SyncPolicy::Auto);
        let runtime = &world.runtime;
        let shared = warpline::with_runtime(runtime, || zeros([50], 0)).expect("a tensor");
        std::thread::scope(|scope| {
            for i in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    warpline::with_runtime(runtime, || -> Result<()> {
                        let s = cuda::Stream::new(0)?;
                        let _on_s = cuda::stream(&s)?;
                        for _ in 0..10 {
                            shared.add_(1.0)?;
                            let pinned = full([50], i as f64, ())?.pin_memory()?;
                            let there = pinned.to_non_blocking(i % 2)?;
                            assert_eq!(there.sum(())?.item::<f32>()?, 50.0 * i as f32);
                        }
                        Ok(())
                    })
                    .expect("no failure");
                });
            }
        });
        let sum = warpline::with_runtime(runtime, || shared.sum(())?.item::<f32>());
        assert_eq!(sum.expect("a sum"), 50.0 * 40.0);
        assert!(world.count(CallKind::HostAlloc) <= 8, "page-locked memory is cached");
    }
}
