//! Tests of failed allocations, launches and copies, and of operands that cannot be combined. Each
//! failure is a typed error that states the facts. Existing tensors remain usable, and the memory
//! counters return to their initial values.

use warpline::{
    DType, Error, ErrorKind, Result, RuntimeConfig, Tensor, TensorOptions, cuda, empty, full,
    linspace, ones, rand, tensor, with_runtime, zeros,
};
use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};

use crate::boxes::{SimBox, schedules};
use crate::common::World;

crate::rows! {
    worlds(1) bad_arguments_change_nothing gpu_bad_arguments_change_nothing => arguments;
    worlds(1) more_than_an_exabyte_is_refused gpu_more_than_an_exabyte_is_refused => exabyte;
    worlds(1) tensors_of_two_runtimes gpu_tensors_of_two_runtimes => two_runtimes;
    worlds(2) tensors_of_two_devices gpu2_tensors_of_two_devices => two_devices;
}

/// Checks the variant of an error, and that its text contains the facts.
macro_rules! refused {
    ($result:expr, $op:literal: $kind:pat, $($fact:expr),*) => {{
        let result = $result;
        assert_eq!(result.as_ref().map(drop).map_err(|e| e.op()), Err($op));
        refused!(result, $kind, $($fact),*);
    }};
    ($result:expr, $kind:pat, $($fact:expr),*) => {{
        let error = ($result).map(|_| ()).expect_err(stringify!($result));
        assert!(matches!(error.kind(), $kind), "{}: {error}", stringify!($result));
        let text = error.to_string();
        $(assert!(text.contains($fact), "no `{}` in: {text}", $fact);)*
    }};
}

/// Runs `body` while a tensor exists on `device`. Checks that the tensor does not change, and that
/// the memory counters return to their initial values.
fn harmless(device: usize, body: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
    let kept = full([100], 3.0, device)?;
    let before = (cuda::memory_allocated(device)?, kept.data_ptr());
    body(&kept)?;
    cuda::synchronize(device)?;
    assert_eq!((cuda::memory_allocated(device)?, kept.data_ptr()), before);
    assert_eq!((&kept + 1.0)?.to_vec::<f32>()?, [4.0; 100]);
    assert_eq!(cuda::memory_allocated(device)?, before.0);
    Ok(())
}

fn arguments(world: &World) -> Result<()> {
    let last = world.devices - 1;
    harmless(last, |kept| {
        refused!(
            zeros([2], "cudaa"),
            ErrorKind::InvalidDeviceString { .. },
            "'cudaa'",
            "begins with cpu or cuda"
        );
        refused!(kept.to("cuda:-1"), ErrorKind::InvalidDeviceString { .. }, "'cuda:-1'");
        let absent = format!("cuda:{}", last + 1);
        let visible = format!("{} device(s)", last + 1);
        refused!(zeros([2], &absent), ErrorKind::NoSuchDevice { .. }, &absent, &visible);
        refused!(kept.to(&absent), ErrorKind::NoSuchDevice { .. }, &absent);
        refused!(cuda::set_device(last + 1), ErrorKind::NoSuchDevice { .. }, &absent);
        refused!(cuda::memory_allocated(99), ErrorKind::NoSuchDevice { .. }, "cuda:99");

        let on = |sizes: &[usize]| zeros(sizes, last);
        refused!(on(&[2, 3])?.add(&on(&[4])?), ErrorKind::BroadcastMismatch { .. }, "(3)", "(4)");
        refused!(on(&[2, 3])?.matmul(&on(&[2, 3])?), ErrorKind::ShapeMismatch { .. }, "2x3");
        refused!(kept.copy_(&on(&[7])?, ()), ErrorKind::ExpandMismatch { .. }, "[7]", "[100]");
        refused!(kept.reshape([-7]), ErrorKind::InvalidReshape { .. }, "[-7]", "100");
        refused!(kept.select(0, 100), ErrorKind::IndexOutOfRange { .. }, "100", "dimension 0");
        refused!(kept.narrow(0, 90, 11), ErrorKind::IndexOutOfRange { .. }, "90", "11", "100");
        refused!(kept.sum(1), ErrorKind::DimOutOfRange { .. }, "1");
        refused!(empty([usize::MAX, 2], last), ErrorKind::SizeOverflow { .. }, "addressed");
        refused!(kept.pin_memory(), ErrorKind::CannotPin { .. }, "cuda:");
        refused!(
            zeros([1], TensorOptions::new().device(last).pin_memory(true)),
            ErrorKind::CannotPin { .. },
            "only CPU tensors"
        );

        let nan = f64::NAN;
        refused!(linspace(0.0, f64::INFINITY, 3, last), ErrorKind::InvalidArgument { .. }, "inf");
        refused!(warpline::arange(nan, last), ErrorKind::InvalidArgument { .. }, "finite");
        let huge = usize::MAX;
        refused!(linspace(0.0, 1.0, huge, last), ErrorKind::SizeOverflow { .. }, "addressed");
        refused!(warpline::eye(huge, last), ErrorKind::SizeOverflow { .. }, "addressed");
        refused!(warpline::randperm(1 << 62, last), ErrorKind::SizeOverflow { .. }, "addressed");
        refused!(warpline::arange(1e300, last), ErrorKind::InvalidArgument { .. }, "too many");
        refused!(kept.uniform_((nan, 1.0)), ErrorKind::InvalidArgument { .. }, "from", "NaN");
        refused!(kept.uniform_((2.0, 1.0)), ErrorKind::InvalidArgument { .. }, "from=2", "to=1");
        refused!(kept.normal_((0.0, -1.0)), ErrorKind::InvalidArgument { .. }, "std -1");
        refused!(kept.normal_((nan, 1.0)), ErrorKind::InvalidArgument { .. }, "mean");
        refused!(kept.normal_((0.0, f64::INFINITY)), ErrorKind::InvalidArgument { .. }, "std");
        refused!(kept.exponential_(0.0), ErrorKind::InvalidArgument { .. }, "lambda");
        refused!(kept.bernoulli_(1.5), ErrorKind::InvalidArgument { .. }, "p=1.5");
        refused!(kept.random_(5, 5), ErrorKind::InvalidArgument { .. }, "from=5");
        refused!(
            on(&[2])?.to(DType::I64)?.normal_(()),
            ErrorKind::UnsupportedDType { .. },
            "int64"
        );
        refused!(rand([2], (DType::I64, last)), ErrorKind::UnsupportedDType { .. }, "int64");
        refused!(
            ones([2], (DType::I8, last))?.fill_(1000),
            ErrorKind::InvalidArgument { .. },
            "1000"
        );
        refused!(on(&[1])?.expand([5])?.fill_(1.0), ErrorKind::OverlappingWrite, "`copy()`");
        Ok(())
    })
}

fn exabyte(world: &World) -> Result<()> {
    for device in 0..world.devices {
        harmless(device, |_| {
            let error = empty([1 << 60], (DType::U8, device)).expect_err("1 EB");
            let source = error.find().unwrap_or_else(|| panic!("{error}"));
            assert!(matches!(*source, AllocError::TooLarge { requested } if requested == 1 << 60));
            assert!(error.to_string().contains("more than 1EB"), "{error}");
            assert!(empty([1 << 60], (DType::U8, "cpu")).is_err());
            Ok(())
        })?;
    }
    Ok(())
}

fn two_runtimes(world: &World) -> Result<()> {
    let other = warpline::simulated(1)?;
    let (foreign, foreign_host) =
        with_runtime(&other, || Ok::<_, Error>((ones([100], "cuda")?, ones([100], "cpu")?)))?;
    harmless(world.devices - 1, |kept| {
        refused!(
            kept.add(&foreign),
            "add": ErrorKind::RuntimeMismatch,
            "different runtimes"
        );
        refused!(kept.mul_(&foreign), ErrorKind::RuntimeMismatch, "different runtimes");
        refused!(kept.copy_(&foreign, ()), "copy_": ErrorKind::RuntimeMismatch, "copy_");
        refused!(kept.copy_(&foreign_host, ()), ErrorKind::RuntimeMismatch, "copy_");
        refused!(kept.matmul(&foreign), ErrorKind::RuntimeMismatch, "matmul");
        refused!(warpline::cat(&[kept, &foreign], 0), ErrorKind::RuntimeMismatch, "cat");
        refused!(ones([1], "cpu")?.add(&foreign_host), ErrorKind::RuntimeMismatch, "add");
        Ok(())
    })?;
    // An op on a tensor runs in the runtime of the tensor.
    assert_eq!((&foreign + 1.0)?.sum(())?.item::<f32>()?, 200.0);
    assert!(foreign.cpu()?.storage().runtime().same_as(&other));
    Ok(())
}

fn two_devices(world: &World) -> Result<()> {
    let last = world.devices - 1;
    let other = ones([100], 0)?;
    harmless(last, |kept| {
        let names = format!("cuda:0 and cuda:{last}");
        refused!(
            other.add(kept),
            "add": ErrorKind::DeviceMismatch { .. },
            "Expected all tensors to be on the same device",
            &names
        );
        refused!(other.matmul(kept), "matmul": ErrorKind::DeviceMismatch { .. }, &names);
        refused!(warpline::cat(&[&other, kept], 0), ErrorKind::DeviceMismatch { .. }, &names);
        refused!(kept.add_(&other), ErrorKind::DeviceMismatch { .. }, "cuda:0");
        refused!(kept.add(&ones([100], "cpu")?), ErrorKind::DeviceMismatch { .. }, "cpu");
        Ok(())
    })
}

/// Opens a box with 64 MiB per device.
fn small(schedule: Schedule) -> SimBox {
    let config = SimConfig { schedule, capacity: 64 << 20, ..SimConfig::new(2) };
    SimBox::new(config, &warpline::RuntimeConfig::default())
}

#[test]
fn a_failed_allocation_states_the_facts() {
    for schedule in schedules() {
        small(schedule).enter(|| {
            let elsewhere = full([4], 2.0, 1)?;
            harmless(0, |kept| {
                let error = empty([75 << 20], (DType::U8, 0)).expect_err("75 of 64 MiB");
                let source = error.find().unwrap_or_else(|| panic!("{error}"));
                let AllocError::OutOfMemory(facts) = source else { panic!("{source:?}") };
                assert_eq!(facts.requested, 75 << 20);
                assert_eq!(facts.total, Some(64 << 20));
                assert_eq!(facts.allocated, cuda::memory_allocated(0)?);
                let text = error.to_string();
                for fact in ["out of memory", "cuda:0", "75.00 MiB", "64.00 MiB"] {
                    assert!(text.contains(fact), "no `{fact}` in: {text}");
                }
                // The result of this op does not fit.
                let big = ones([38 << 18], 0)?;
                refused!(&big + 1.0, ErrorKind::Alloc, "38.00 MiB");
                assert_eq!(big.sum(())?.item::<f32>()?, (38 << 18) as f32);
                drop(big);
                // After the drop, the cached memory can be allocated again.
                assert_eq!(ones([50 << 18], 0)?.sum(())?.item::<f32>()?, (50 << 18) as f32);
                assert_eq!(kept.sum(())?.item::<f32>()?, 300.0);
                Ok(())
            })?;
            assert_eq!(elsewhere.to_vec::<f32>()?, [2.0; 4]);
            Ok(())
        });
    }
}

#[test]
fn an_injected_failure_of_an_allocation_is_harmless() {
    for (policy, call, name) in [
        ("policy:torch", CallKind::MemAlloc, "cuMemAlloc"),
        ("policy:default", CallKind::MemCreate, "cuMemCreate"),
    ] {
        let allocator = warpline::cuda::AllocatorConfig::parse(policy).expect("options");
        let config = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) };
        let world = SimBox::new(config, &RuntimeConfig { allocator, ..RuntimeConfig::default() });
        world.enter(|| {
            harmless(0, |kept| {
                // Make both attempts fail: the first, and the second after the cache was emptied.
                world.sim.inject(Fault::new(call, CudaCode::OUT_OF_MEMORY).times(5));
                refused!(empty([50 << 20], 0), ErrorKind::Alloc, "out of memory");
                world.sim.clear_faults();
                world.sim.inject(Fault::new(call, CudaCode::NOT_PERMITTED).times(5));
                refused!(empty([50 << 20], 0), ErrorKind::Alloc, "CUDA_ERROR_NOT_PERMITTED", name);
                world.sim.clear_faults();
                world.sim.inject(Fault::new(CallKind::HostAlloc, CudaCode::OUT_OF_MEMORY).times(5));
                refused!(ones([1 << 20], "cpu")?.pin_memory(), ErrorKind::Alloc, "memory");
                world.sim.clear_faults();
                assert!(empty([50 << 20], 0)?.numel() == 50 << 20);
                assert!(kept.cpu()?.pin_memory()?.is_pinned());
                Ok(())
            })
        });
    }
}

#[test]
fn a_rejected_launch_is_harmless() {
    for schedule in schedules() {
        let world = SimBox::with(1, schedule, warpline::SyncPolicy::Auto);
        world.enter(|| {
            harmless(0, |kept| {
                assert_eq!(kept.mul(1.0)?.numel(), 100); // loads the kernel
                let fault = Fault::new(CallKind::Launch, CudaCode::LAUNCH_OUT_OF_RESOURCES);
                world.sim.inject(fault);
                let (line, result) = (line!(), kept.mul(2.0));
                let site = format!("{}:{line}:", file!());
                refused!(
                    result,
                    "mul": ErrorKind::Driver,
                    "mul",
                    "cuLaunchKernel",
                    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
                    "too many resources",
                    "cuda:0",
                    &site
                );
                assert_eq!(kept.mul(2.0)?.to_vec::<f32>()?, [6.0; 100]);
                // A failed in-place op leaves its tensor unchanged.
                world.sim.inject(fault);
                assert!(kept.add_(1.0).is_err());
                assert_eq!(kept.to_vec::<f32>()?, [3.0; 100]);
                Ok(())
            })
        });
    }
}

/// Each kind of driver call fails once. The next run of the program succeeds.
#[test]
fn one_failed_call_of_any_kind_is_survived() {
    let program = || -> Result<Vec<f32>> {
        let s = cuda::Stream::new(0)?;
        let a = tensor([1f32, 2.0, 3.0], ())?.pin_memory()?.to_non_blocking("cuda")?;
        let b = cuda::with_stream(&s, || a.add(1.0)?.sum(()))?;
        let c = (&a * &b)?.to("cuda:1")?;
        c.to_vec()
    };
    let expected = [9.0, 18.0, 27.0];
    let used = {
        let world = SimBox::lazy(2);
        world.enter(|| {
            assert_eq!(program()?, expected);
            Ok(())
        });
        world.sim.usage().calls
    };
    assert!(used.contains_key(&CallKind::Launch) && used.contains_key(&CallKind::MemcpyAsync));
    for (&call, &times) in &used {
        for after in 0..times.min(6) as usize {
            let world = SimBox::lazy(2);
            world.enter(|| {
                let fault = Fault::new(call, CudaCode::INVALID_VALUE).after(after);
                world.sim.inject(fault);
                match program() {
                    // Some failures, such as that of a query, cause no error.
                    Ok(values) => assert_eq!(values, expected, "{call:?} after {after}"),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("CUDA_ERROR_INVALID_VALUE"), "{call:?}: {text}");
                    }
                }
                world.sim.clear_faults();
                assert_eq!(program()?, expected, "after {call:?} had failed");
                cuda::synchronize(0)?;
                cuda::synchronize(1)?;
                assert_eq!(cuda::memory_allocated(0)?, 0, "{call:?} after {after} leaks");
                assert_eq!(cuda::memory_allocated(1)?, 0, "{call:?} after {after} leaks");
                Ok(())
            });
        }
    }
}
