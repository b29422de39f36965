//! Tests of sticky errors: after an illegal address or a lost device, calls on every device of the
//! process fail with `DeviceLost` and the cause, as on hardware. CPU tensors remain usable, nothing
//! panics or hangs, and after all drops no driver object is alive. If the simulator isolates
//! faults, other devices remain usable.

use warpline::{Error, Result, RuntimeConfig, SyncPolicy, Tensor, cuda, full, ones, tensor, zeros};
use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, SimConfig};
use warpline_cuda_sys_safe::{CudaCode, DriverError};

use crate::boxes::{SimBox, schedules, within_a_minute};

/// The cause of the loss of a device.
#[derive(Clone, Copy, Debug)]
enum LossCause {
    Kernel,
    Copy,
    Gone,
}

impl LossCause {
    fn code(self) -> CudaCode {
        match self {
            Self::Kernel | Self::Copy => CudaCode::ILLEGAL_ADDRESS,
            Self::Gone => CudaCode::DEVICE_UNAVAILABLE,
        }
    }

    /// Injects a fault on cuda:0 and enqueues work that fails when it runs, or loses the device at once.
    fn inject(self, world: &SimBox, a: &Tensor) {
        let fault = |call| Fault::new(call, self.code()).at_run().on(0);
        match self {
            Self::Kernel => {
                world.sim.inject(fault(CallKind::Launch));
                // An eager schedule may report the failure here.
                let _ = a.mul_(2.0);
            }
            Self::Copy => {
                world.sim.inject(fault(CallKind::MemcpyAsync));
                let _ = tensor(vec![1f32; a.numel()], ()).and_then(|t| a.copy_(&t, ()).map(drop));
            }
            Self::Gone => world.sim.lose_device(0, self.code()),
        }
    }
}

/// Returns the driver error among the sources of an error.
fn driver_error(error: &Error) -> &DriverError {
    match error.find::<AllocError>() {
        Some(source) => source.backend().unwrap_or_else(|| panic!("not the driver's: {error}")),
        None => error.driver_error().unwrap_or_else(|| panic!("not the driver's: {error}")),
    }
}

fn assert_lost<T>(result: Result<T>, what: &str, loss: LossCause) {
    assert_lost_on(0, result, what, loss);
}

fn assert_lost_on<T>(on: usize, result: Result<T>, what: &str, loss: LossCause) {
    let Err(error) = result else { panic!("{what} succeeded on a lost device") };
    match driver_error(&error) {
        DriverError::DeviceLost { device, cause } if *device == on => {
            assert_eq!(cause.code, loss.code(), "{what}")
        }
        other => panic!("{what}: {other:?}"),
    }
    let text = error.to_string();
    let lost = format!("cuda:{on} is lost");
    for fact in [&lost, "the process has to end", loss.code().name()] {
        assert!(text.contains(fact), "{what}: no `{fact}` in: {text}");
    }
}

fn each(test: fn(&SimBox, LossCause) -> Result<()>) {
    each_with(false, test);
}

/// Runs a test with isolated faults, which do not exist on hardware.
fn each_isolated(test: fn(&SimBox, LossCause) -> Result<()>) {
    each_with(true, test);
}

fn each_with(isolate_faults: bool, test: fn(&SimBox, LossCause) -> Result<()>) {
    within_a_minute(move || {
        for loss in [LossCause::Kernel, LossCause::Copy, LossCause::Gone] {
            for schedule in schedules() {
                let config = SimConfig { schedule, isolate_faults, ..SimConfig::new(2) };
                let world = SimBox::new(config, &RuntimeConfig::default());
                let sim = world.sim.clone();
                world.enter(|| test(&world, loss));
                drop(world);
                let usage = sim.usage();
                assert!(usage.all_released(), "{loss:?}, {schedule:?}: {usage:#?}");
            }
        }
    });
}

#[test]
fn sticky_the_device_answers_with_its_cause_for_good() {
    each(|world, loss| {
        let s = cuda::Stream::new(0)?;
        let event = cuda::Event::default();
        let a = ones([1000], 0)?;
        let pinned = ones([1000], ())?.pin_memory()?;
        let b = cuda::with_stream(&s, || a.add(1.0))?;
        event.record(&s)?;
        cuda::synchronize(0)?;
        loss.inject(world, &a);
        let first = cuda::synchronize(0).expect_err("the device is lost");
        assert_eq!(driver_error(&first).code(), Some(loss.code()), "{first}");
        for _ in 0..2 {
            assert_lost(cuda::synchronize(0), "synchronize", loss);
            assert_lost(a.to_vec::<f32>(), "to_vec", loss);
            assert_lost(&a + &b, "add", loss);
            assert_lost(a.zero_(), "zero_", loss);
            assert_lost(a.sum(()), "sum", loss);
            assert_lost(b.cpu(), "cpu", loss);
            assert_lost_on(1, b.to("cuda:1"), "to a peer", loss);
            assert_lost(pinned.to_non_blocking("cuda:0"), "to", loss);
            assert_lost(zeros([50 << 20], 0), "an allocation", loss);
            assert_lost(s.synchronize(), "stream.synchronize", loss);
            assert_lost(s.query(), "stream.query", loss);
            assert_lost(event.record(&s), "event.record", loss);
            assert_lost(s.record_event(None), "record_event", loss);
            assert_lost(cuda::exclusive_stream(0, 0), "a new stream", loss);
        }
        // Calls that do not call the driver for a device still succeed.
        assert!(cuda::is_available()?);
        assert_eq!(cuda::current_device()?, 0);
        assert!(cuda::memory_allocated(0)? > 0);
        assert_eq!(a.size(), [1000]);
        cuda::empty_cache();
        Ok(())
    });
}

#[test]
fn sticky_all_devices_go_and_cpu_tensors_stay() {
    each(|world, loss| {
        let host = ones([10], ())?;
        let (other, lost) = (ones([10], 1)?, ones([10], 0)?);
        let s = cuda::Stream::new(1)?;
        cuda::synchronize(0)?;
        cuda::synchronize(1)?;
        loss.inject(world, &lost);
        assert!(cuda::synchronize(0).is_err());
        for _ in 0..2 {
            assert_lost_on(1, cuda::synchronize(1), "synchronize", loss);
            assert_lost_on(1, other.sum(()), "sum", loss);
            assert_lost_on(1, other.to_vec::<f32>(), "to_vec", loss);
            assert_lost_on(1, host.to(1), "to", loss);
            assert_lost_on(1, zeros([50 << 20], 1), "an allocation", loss);
            assert_lost_on(1, s.synchronize(), "stream.synchronize", loss);
            assert!(host.pin_memory().is_err(), "nothing can be page-locked any more");
            assert_eq!((&host + 1.0)?.sum(())?.item::<f32>()?, 20.0);
            assert_eq!(host.matmul(&full([10], 2.0, ())?)?.item::<f32>()?, 20.0);
            assert_eq!(warpline::arange(3.0, ())?.to_vec::<f32>()?, [0.0, 1.0, 2.0]);
        }
        drop((lost, other));
        assert_eq!((cuda::memory_allocated(0)?, cuda::memory_allocated(1)?), (0, 0));
        cuda::empty_cache();
        assert_eq!(cuda::memory_reserved(1)?, 0);
        Ok(())
    });
}

#[test]
fn sticky_other_devices_stay_usable_with_isolated_faults() {
    each_isolated(|world, loss| {
        let host = ones([10], ())?;
        let pinned = ones([10], ())?.pin_memory()?;
        let other = ones([10], 1)?;
        let lost = ones([10], 0)?;
        cuda::synchronize(0)?;
        loss.inject(world, &lost);
        assert!(cuda::synchronize(0).is_err());
        for _ in 0..3 {
            assert_eq!((&host + 1.0)?.sum(())?.item::<f32>()?, 20.0);
            assert_eq!((&other + &pinned.to(1)?)?.sum(())?.item::<f32>()?, 20.0);
            let s = cuda::Stream::new(1)?;
            let sum = cuda::with_stream(&s, || other.add(1.0)?.sum(()))?;
            assert_eq!(sum.item::<f32>()?, 20.0);
            assert!(lost.sum(()).is_err());
        }
        assert_eq!(zeros([2], "cuda:1")?.to_non_blocking("cpu")?.to_vec::<f32>()?, [0.0; 2]);
        // The cache can reuse page-locked memory that was allocated before the fault.
        drop(pinned);
        assert_eq!(host.pin_memory()?.to_non_blocking(1)?.to_vec::<f32>()?, [1.0; 10]);
        cuda::synchronize(1)?;
        drop((lost, other));
        assert_eq!((cuda::memory_allocated(0)?, cuda::memory_allocated(1)?), (0, 0));
        cuda::empty_cache();
        assert_eq!(cuda::memory_reserved(1)?, 0);
        Ok(())
    });
}

/// Threads wait for a lost device, and use memory of its stream.
#[test]
fn sticky_waits_for_a_lost_device_end() {
    each(|world, loss| {
        let s = cuda::Stream::new(0)?;
        let a = ones([1000], 0)?;
        let b = cuda::with_stream(&s, || a.add(1.0))?;
        loss.inject(world, &a);
        let runtime = &world.runtime;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    warpline::with_runtime(runtime, || {
                        // The calls may fail, but they return.
                        let _ = cuda::synchronize(0);
                        let _ = s.synchronize();
                        let _ = a.to_vec::<f32>();
                        while !s.query().unwrap_or(true) {}
                        drop(ones([1000], 0));
                    });
                });
            }
        });
        drop((a, b)); // pending uses by `s` must not keep the memory forever
        assert_eq!(cuda::memory_allocated(0)?, 0);
        Ok(())
    });
}

/// The host may write to page-locked sources of pending copies of a lost device. Reads of page-locked
/// destinations fail, unless the copy is complete.
#[test]
fn sticky_page_locked_memory_is_the_hosts_again() {
    each_isolated(|world, loss| {
        let source = ones([10], ())?.pin_memory()?;
        let (there, a) = (source.to_non_blocking(0)?, ones([10], 0)?);
        let back = a.to_non_blocking("cpu")?;
        let moved = a.to(1)?;
        loss.inject(world, &a);
        // A wait of another device for the lost device ends, but the work of the lost device does
        // not count as complete.
        cuda::synchronize(1)?;
        assert!(cuda::synchronize(0).is_err());
        assert_eq!(source.to_vec::<f32>()?, [1.0; 10]);
        source.fill_(2.0)?;
        source.copy_(&full([10], 3.0, 1)?, true)?;
        assert_eq!(source.to_vec::<f32>()?, [3.0; 10]);
        match back.to_vec::<f32>() {
            Ok(values) => assert_eq!(values, [1.0; 10], "{loss:?}"),
            Err(error) => assert_lost::<()>(Err(error), "a copy's result", loss),
        }
        drop((there, a, back, moved));
        assert!(source.pin_memory()?.is_pinned());
        Ok(())
    });
}

/// Another device may overwrite memory that a pending copy of the lost device would have read.
#[test]
fn sticky_another_device_may_overwrite_a_source_of_a_lost_copy() {
    each_isolated(|world, loss| {
        let pinned = ones([10], ())?.pin_memory()?;
        let (there, a) = (pinned.to_non_blocking(0)?, ones([10], 0)?);
        let other = full([10], 3.0, 1)?;
        loss.inject(world, &a);
        pinned.copy_(&other, true)?;
        assert_eq!(pinned.to_vec::<f32>()?, [3.0; 10]);
        assert!(cuda::synchronize(0).is_err());
        drop(there);
        Ok(())
    });
}

/// A tensor may be the last live object of its runtime.
#[test]
fn sticky_a_tensor_may_be_the_last_to_go() {
    within_a_minute(|| {
        for lose in [false, true] {
            for schedule in schedules() {
                let world = SimBox::with(1, schedule, SyncPolicy::Auto);
                let sim = world.sim.clone();
                let mut kept = None;
                world.enter(|| {
                    let t = ones([1000], 0)?;
                    kept = Some((t.add(1.0)?, t.cpu()?.pin_memory()?));
                    Ok(())
                });
                drop(world);
                assert!(!sim.usage().all_released());
                if lose {
                    sim.lose_device(0, CudaCode::DEVICE_UNAVAILABLE);
                } else {
                    let (t, pinned) = kept.as_ref().expect("tensors");
                    assert_eq!(t.sum(()).and_then(|s| s.item::<f32>()).expect("a sum"), 2000.0);
                    assert_eq!(pinned.to_vec::<f32>().expect("values"), [1.0; 1000]);
                }
                drop(kept);
                let usage = sim.usage();
                assert!(usage.all_released(), "lose {lose}, {schedule:?}: {usage:#?}");
            }
        }
    });
}

/// After all drops, no driver object is alive on a machine without faults.
#[test]
fn nothing_is_alive_when_all_is_dropped() {
    for schedule in schedules() {
        let world = SimBox::with(3, schedule, SyncPolicy::Auto);
        let sim = world.sim.clone();
        world.enter(|| {
            for device in 0..3 {
                let s = cuda::Stream::new(device)?;
                let a = warpline::randn([100, 100], device)?;
                let b = cuda::with_stream(&s, || a.matmul(&a)?.softmax(-1))?;
                let pinned = b.to_non_blocking("cpu")?;
                assert!(pinned.is_pinned());
                let moved = b.to((device + 1) % 3)?;
                assert!(moved.sum(())?.item::<f32>()?.is_finite());
            }
            Ok(())
        });
        drop(world);
        let usage = sim.usage();
        assert!(usage.all_released(), "{schedule:?}: {usage:#?}");
        assert!(sim.overruns().is_empty(), "{:?}", sim.overruns());
    }
}
