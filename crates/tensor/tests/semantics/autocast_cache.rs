//! Tests of the converted copies of parameters in autocast regions.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use warpline::amp::{AutocastOptions, autocast, clear_autocast_cache, is_autocast_cache_enabled};
use warpline::autograd::no_grad;
use warpline::cuda::{
    self, Stream, max_memory_allocated, memory_allocated, reset_peak_memory_stats,
};
use warpline::{
    DType, Device, Error, Result, SyncPolicy, Tensor, full, ones, randperm, runtime, simulated,
    with_runtime,
};
use warpline_cuda_sys_safe::sim::CallKind;

use crate::autocast::{on_gpu, weight};
use crate::boxes::SimBox;
use crate::common::schedules;

#[test]
fn a_parameter_is_converted_once_until_it_changes() {
    on_gpu(|| {
        let (weight, x) = (weight([256, 256], "cuda")?, ones([1, 256], "cuda")?);
        let product =
            || Ok::<_, Error>(autocast("cuda", (), || x.matmul(&weight)?.to(DType::F32))?.detach());
        drop(product()?);
        let bytes = memory_allocated(0)?;
        let first = product()?;
        assert_eq!(memory_allocated(0)? - bytes, 1024, "only the result is new");
        drop(first);
        no_grad(|| weight.add_(1).map(drop))?;
        assert_eq!(product()?.to_vec::<f32>()?[0], 512.0);
        assert_eq!(memory_allocated(0)?, bytes, "the new copy replaced the old one");
        drop(weight);
        assert!(
            memory_allocated(0)? < bytes - 256 * 256 * 2 + 2048,
            "the copy goes with the parameter"
        );
        Ok(())
    });
}

#[test]
fn a_parameter_never_has_two_copies() {
    on_gpu(|| {
        let (weight, x) = (weight([1024, 1024], "cuda")?, ones([1, 1024], "cuda")?);
        let product = || autocast("cuda", (), || x.matmul(&weight).map(drop));
        product()?;
        let bytes = memory_allocated(0)?;
        for _ in 0..3 {
            no_grad(|| weight.add_(1).map(drop))?;
            reset_peak_memory_stats(0)?;
            product()?;
            let most = max_memory_allocated(0)? - bytes;
            assert!(most < 1024 * 1024, "{most} bytes more for a moment");
            assert_eq!(memory_allocated(0)?, bytes);
        }
        Ok(())
    });
}

#[test]
fn copies_are_found_although_other_threads_clear_the_cache() {
    on_gpu(|| {
        let (weight, x) = (weight([256, 256], "cuda")?, ones([1, 256], "cuda")?);
        clear_autocast_cache();
        let (bytes, world) = (memory_allocated(0)?, runtime());
        std::thread::scope(|scope| {
            scope.spawn(|| with_runtime(&world, || (0..300).for_each(|_| clear_autocast_cache())));
            for _ in 0..100 {
                no_grad(|| weight.add_(1).map(drop))?;
                autocast("cuda", (), || x.matmul(&weight).map(drop))?;
            }
            Ok::<_, Error>(())
        })?;
        clear_autocast_cache();
        assert_eq!(memory_allocated(0)?, bytes);
        Ok(())
    });
}

/// Each runtime finds the copies of its own parameters, also while another runtime clears its cache.
#[test]
fn a_cleared_cache_is_that_of_one_runtime() {
    let [one, other] = [1, 1].map(|devices| simulated(devices).expect("a runtime"));
    let converts = |weight: &Tensor| {
        autocast("cuda", (), || ones([1, 256], "cuda")?.matmul(weight).map(drop))?;
        memory_allocated(0)
    };
    let make = || weight([256, 256], "cuda");
    let kept = with_runtime(&other, make).expect("a weight");
    let bytes = with_runtime(&other, || converts(&kept)).expect("bytes");
    let is_done = AtomicBool::new(false);
    let mut failures = 0;
    std::thread::scope(|scope| {
        let clears = || {
            while !is_done.load(Ordering::Relaxed) {
                clear_autocast_cache()
            }
        };
        scope.spawn(move || with_runtime(&simulated(1).expect("a runtime"), clears));
        let result = with_runtime(&one, || {
            let weight = make()?;
            for _ in 0..300 {
                let bytes = converts(&weight)?;
                clear_autocast_cache();
                failures += u32::from(bytes - memory_allocated(0)? != 256 * 256 * 2);
            }
            Ok::<_, Error>(())
        });
        is_done.store(true, Ordering::Relaxed);
        result
    })
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(failures, 0);
    let freed = with_runtime(&other, || {
        assert_eq!(memory_allocated(0)?, bytes, "the copy of the other runtime is kept");
        clear_autocast_cache();
        Ok::<_, Error>(bytes - memory_allocated(0)?)
    });
    assert_eq!(freed.expect("bytes"), 256 * 256 * 2);
    // Products of one region share a conversion, so their gradients are added in `float16`, where 2048 + 1 is 2048.
    let gradient = with_runtime(&one, || {
        let weight = weight([1, 1], "cuda")?;
        let sum = autocast("cuda", DType::F16, || {
            let first = full([1, 1], 2048.0, "cuda")?.matmul(&weight)?;
            with_runtime(&other, clear_autocast_cache);
            first.add(&ones([1, 1], "cuda")?.matmul(&weight)?)?.sum(())
        })?;
        sum.backward()?;
        weight.grad().expect("a gradient").item::<f32>()
    });
    assert_eq!(gradient.expect("a number"), 2048.0);
}

#[test]
fn without_the_cache_no_conversion_is_kept() {
    on_gpu(|| {
        let (weight, x) = (weight([256, 256], "cuda")?, ones([1, 256], "cuda")?);
        let bytes = memory_allocated(0)?;
        let options = AutocastOptions::new().cache_enabled(false);
        drop(autocast("cuda", options, || x.matmul(&weight))?);
        assert_eq!(memory_allocated(0)?, bytes);
        drop(autocast("cuda", (), || x.matmul(&weight))?);
        assert!(memory_allocated(0)? > bytes);
        drop(autocast("cuda", options, || x.matmul(&weight))?);
        assert_eq!(memory_allocated(0)?, bytes, "the earlier region's copy is freed");
        Ok(())
    });
}

#[test]
fn copies_end_with_an_outermost_region_without_the_cache() {
    on_gpu(|| {
        let (weight, x) = (weight([256, 256], "cuda")?, ones([1, 256], "cuda")?);
        let bytes = memory_allocated(0)?;
        let product = || x.matmul(&weight)?.to(DType::F32)?.to_vec2::<f32>();
        let inner = AutocastOptions::new().cache_enabled(true);
        drop(autocast("cuda", (), || x.matmul(&weight))?);
        assert!(memory_allocated(0)? > bytes);
        autocast("cuda", AutocastOptions::new().cache_enabled(false), || {
            autocast("cuda", inner, || {
                let first = no_grad(product)?;
                assert_eq!(memory_allocated(0)? - bytes, 256 * 256 * 2, "one copy, in the region");
                assert_eq!(no_grad(product)?, first);
                assert_eq!(memory_allocated(0)? - bytes, 256 * 256 * 2, "one copy in the region");
                Ok(())
            })
        })?;
        assert_eq!(memory_allocated(0)?, bytes);
        Ok(())
    });
}

/// Copies of parameters are a cache, so an allocation takes their memory before it fails.
#[test]
fn an_allocation_frees_the_copies_that_it_needs() {
    on_gpu(|| {
        let (weight, x) = (weight([4096, 4096], "cuda")?, ones([1, 4096], "cuda")?);
        let product = || autocast("cuda", (), || x.matmul(&weight)?.sum(())?.item::<f32>());
        let sum = no_grad(product)?;
        let (total, copy) = (cuda::mem_get_info(0)?.total, 4096 * 4096 * 2);
        let limit = memory_allocated(0)? + copy / 2;
        cuda::empty_cache();
        cuda::set_per_process_memory_fraction(limit as f64 / total as f64, 0)?;
        let large = ones([copy], (DType::U8, Device::cuda(0)))?;
        assert!(no_grad(product).is_err(), "the copy does not fit");
        drop(large);
        assert_eq!(no_grad(product)?, sum);
        // Scratch memory of an op takes it, too.
        let limit = cuda::memory_reserved(0)? + (14 << 20);
        cuda::set_per_process_memory_fraction(limit as f64 / total as f64, 0)?;
        randperm(1 << 20, Device::cuda(0)).map(drop)
    });
}

/// A thread that finds no memory waits for the memory that another thread is freeing.
#[test]
fn threads_that_run_out_of_memory_at_once_share_the_freed_copies() {
    on_gpu(|| {
        let weights: Vec<Tensor> =
            (0..64).map(|_| weight([256, 512], "cuda")).collect::<Result<_>>()?;
        let (x, total) = (ones([1, 256], "cuda")?, cuda::mem_get_info(0)?.total);
        for _ in 0..20 {
            cuda::set_per_process_memory_fraction(1.0, 0)?;
            cuda::empty_cache();
            for weight in &weights {
                drop(no_grad(|| autocast("cuda", (), || x.matmul(weight)))?);
            }
            let limit = cuda::memory_reserved(0)? + (2 << 20);
            cuda::set_per_process_memory_fraction(limit as f64 / total as f64, 0)?;
            let (runtime, start) = (runtime(), Barrier::new(4));
            let allocate = || {
                with_runtime(&runtime, || {
                    start.wait();
                    warpline::empty([750_000], Device::cuda(0))
                })
            };
            let made: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(allocate)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            made.into_iter().collect::<Result<Vec<_>>>()?;
        }
        Ok(())
    });
}

#[test]
fn a_cleared_cache_frees_the_copies_of_all_parameters() {
    on_gpu(|| {
        let parameters = [weight([256, 256], "cuda")?, weight([256, 256], "cuda")?];
        let x = ones([1, 256], "cuda")?;
        let bytes = memory_allocated(0)?;
        let product = |w: &Tensor| autocast("cuda", (), || x.matmul(w)).map(|y| y.detach());
        parameters.iter().try_for_each(|w| product(w).map(drop))?;
        assert_eq!(memory_allocated(0)? - bytes, 2 * 256 * 256 * 2);
        clear_autocast_cache();
        assert_eq!(memory_allocated(0)?, bytes);
        autocast("cuda", (), || {
            assert!(is_autocast_cache_enabled());
            drop(x.matmul(&parameters[0])?);
            clear_autocast_cache();
            assert_eq!(memory_allocated(0)?, bytes, "the region's record is gone, too");
            x.matmul(&parameters[0]).map(drop)
        })?;
        let off = AutocastOptions::new().cache_enabled(false);
        assert!(!autocast("cuda", off, || Ok(is_autocast_cache_enabled()))?);
        Ok(())
    });
}

#[test]
fn a_parameter_that_stops_requiring_a_gradient_frees_its_conversion() {
    on_gpu(|| {
        let weight = weight([256, 256], "cuda")?;
        drop(autocast("cuda", (), || ones([1, 256], "cuda")?.matmul(&weight))?);
        let bytes = memory_allocated(0)?;
        weight.requires_grad_(false)?;
        assert_eq!(bytes - memory_allocated(0)?, 256 * 256 * 2);
        Ok(())
    });
}

/// The other stream waits for the conversion, and launches none of its own.
#[test]
fn streams_share_a_conversion() {
    let machine = SimBox::lazy(1);
    machine.enter(|| {
        let (weight, x) = (weight([2, 2], "cuda")?, ones([1, 2], "cuda")?);
        let launches_of_a_product = || {
            let before = machine.count(CallKind::Launch);
            let product = || autocast("cuda", (), || x.matmul(&weight)?.to(DType::F32));
            assert_eq!(no_grad(product)?.to_vec::<f32>()?, [2.0; 2]);
            Ok::<_, Error>(machine.count(CallKind::Launch) - before)
        };
        let first = launches_of_a_product()?;
        let second = launches_of_a_product()?;
        assert!(second < first);
        assert_eq!(cuda::with_stream(&Stream::new(0)?, launches_of_a_product)?, second);
        Ok(())
    });
}

/// Under `SyncPolicy::Manual`, a stream reads only conversions that it made itself. Otherwise the
/// race detector would report a race.
#[test]
fn a_stream_does_not_read_what_another_one_converted() {
    schedules(1, SyncPolicy::Manual, |world| {
        for device in 0..world.devices {
            let (weight, x) = (weight([2, 2], device)?, ones([1, 2], device)?);
            cuda::synchronize(device)?;
            let product = || autocast("cuda", (), || x.matmul(&weight)?.to(DType::F32));
            let first = product()?;
            let side = Stream::new(device)?;
            let second = cuda::with_stream(&side, product)?;
            cuda::synchronize(device)?;
            assert_eq!(first.to_vec::<f32>()?, second.to_vec::<f32>()?);
            let races = cuda::take_races();
            assert!(races.is_empty(), "{races:#?}");
        }
        Ok(())
    });
}
