//! Tests of rows S1–S4: the current device, and the devices of tensors and results.

use warpline::{DType, Device, ErrorKind, Result, ResultExt, cuda, full, ones, zeros};

use crate::common::{self, World};

rows! {
    worlds(1) s01_device_guard_restores gpu_s01_device_guard_restores => guards;
    worlds(1) s01_each_thread_has_its_own_current_device gpu_s01_each_thread_has_its_own_current_device => threads;
    worlds(1) s02_cuda_is_the_current_device gpu_s02_cuda_is_the_current_device => lands;
    worlds(1) s03_ops_run_where_their_inputs_are gpu_s03_ops_run_where_their_inputs_are => ops;
    worlds(2) s04_mixed_devices_are_refused gpu2_s04_mixed_devices_are_refused => mixed;
    worlds(1) s04_scalars_of_the_cpu_may_mix gpu_s04_scalars_of_the_cpu_may_mix => scalars;
}

fn guards(world: &World) -> Result<()> {
    let last = world.devices - 1;
    assert_eq!(cuda::device_count()?, world.devices);
    assert_eq!(cuda::current_device()?, 0);
    {
        let _outer = cuda::device(last)?;
        assert_eq!(cuda::current_device()?, last);
        {
            let _inner = cuda::device("cuda:0")?;
            assert_eq!(cuda::current_device()?, 0);
        }
        assert_eq!(cuda::current_device()?, last);
        assert_eq!(cuda::with_device(0, cuda::current_device)?, 0);
        assert_eq!(cuda::current_device()?, last);
    }
    assert_eq!(cuda::current_device()?, 0);
    cuda::set_device(last)?;
    assert_eq!(cuda::current_device()?, last);
    // A panic in the closure also restores the device.
    let inside = std::panic::catch_unwind(|| {
        let _ = cuda::with_device(0, || -> Result<()> { panic!("on purpose") });
    });
    assert!(inside.is_err());
    assert_eq!(cuda::current_device()?, last);
    // A refused device leaves the current device unchanged.
    assert!(matches!(cuda::set_device(world.devices).kind(), Some(ErrorKind::NoSuchDevice { .. })));
    assert!(cuda::device("cpu").is_err());
    assert_eq!(cuda::current_device()?, last);
    cuda::set_device(0)
}

fn threads(world: &World) -> Result<()> {
    let last = world.devices - 1;
    cuda::set_device(last)?;
    let runtime = world.runtime.clone();
    let elsewhere = std::thread::spawn(move || {
        let inside = warpline::with_runtime(&runtime, cuda::current_device);
        (inside, warpline::runtime().same_as(&runtime))
    });
    let (inside, inherited) = elsewhere.join().expect("no panic");
    assert_eq!(inside?, 0, "a new thread starts at device 0");
    assert!(!inherited, "a new thread does not inherit the runtime");
    assert_eq!(cuda::current_device()?, last);
    cuda::set_device(0)
}

fn lands(world: &World) -> Result<()> {
    for i in 0..world.devices {
        let _guard = cuda::device(i)?;
        assert_eq!(ones([2], "cuda")?.device(), Device::cuda(i));
        assert_eq!(ones([2], ())?.cuda()?.device(), Device::cuda(i));
        assert_eq!(ones([2], ())?.to("cuda")?.device(), Device::cuda(i));
        assert_eq!(ones([2], ())?.device(), Device::Cpu);
        for j in 0..world.devices {
            assert_eq!(ones([2], j)?.device(), Device::cuda(j));
            assert_eq!(ones([2], format!("cuda:{j}"))?.device(), Device::cuda(j));
        }
    }
    Ok(())
}

fn ops(world: &World) -> Result<()> {
    for at in world.places() {
        let a = full([2, 2], 3.0, at)?;
        for current in 0..world.devices {
            let _guard = cuda::device(current)?;
            let results = [
                (&a + &a)?,
                (&a * 2.0)?,
                a.exp()?.log()?,
                a.sum(())?,
                a.matmul(&a)?,
                a.t()?.contiguous()?,
                a.to(warpline::DType::F64)?,
                a.ones_like(())?,
                warpline::cat(&[&a, &a], 0)?,
            ];
            for result in &results {
                assert_eq!(result.device(), at);
            }
            assert_eq!(results[0].to_vec::<f32>()?, [6.0; 4]);
            assert_eq!(results[4].to_vec::<f32>()?, [18.0; 4]);
            assert_eq!(cuda::current_device()?, current);
        }
    }
    Ok(())
}

fn mixed(_: &World) -> Result<()> {
    let (a, b, c) = (ones([2], 0)?, ones([2], 1)?, ones([2], ())?);
    let text = "Expected all tensors to be on the same device, but found at least two devices, ";
    for (x, y, names) in [
        (&a, &b, "cuda:0 and cuda:1!"),
        (&b, &a, "cuda:1 and cuda:0!"),
        (&a, &c, "cuda:0 and cpu!"),
    ] {
        let error = (x + y).expect_err("different devices");
        assert!(error.to_string().starts_with(&format!("add: {text}{names}")), "{error}");
        for result in [x.lt(y), x.matmul(y), warpline::cat(&[x, y], 0)] {
            assert!(matches!(result.kind(), Some(ErrorKind::DeviceMismatch { .. })));
        }
        assert!(matches!(x.add_(y).kind(), Some(ErrorKind::DeviceMismatch { .. })));
    }
    // The refused ops changed nothing.
    assert_eq!(a.to_vec::<f32>()?, [1.0; 2]);
    let other = warpline::simulated(1)?;
    let foreign = warpline::with_runtime(&other, || zeros([2], 0))?;
    assert!(matches!((&a + &foreign).kind(), Some(ErrorKind::RuntimeMismatch)));
    assert!(matches!(a.copy_(&foreign, ()).kind(), Some(ErrorKind::RuntimeMismatch)));
    // The value of a foreign tensor without dimensions is not read either, although it could stand for a number.
    let foreign = warpline::with_runtime(&other, || full([], 0.5, DType::F16))?;
    for device in [Device::Cpu, Device::cuda(0)] {
        let half = ones([2], (DType::F16, device))?;
        assert!(matches!(half.div(&foreign).kind(), Some(ErrorKind::RuntimeMismatch)));
    }
    Ok(())
}

fn scalars(_: &World) -> Result<()> {
    let a = full([2], 3.0, "cuda")?;
    let half = full([], 0.5, ())?;
    let sum = (&a + &half)?;
    assert_eq!((sum.device(), sum.to_vec::<f32>()?), (Device::cuda(0), vec![3.5; 2]));
    assert_eq!((&half - &a)?.to_vec::<f32>()?, [-2.5; 2]);
    // A tensor without dimensions counts as a number only if it is on the CPU. A tensor without
    // dimensions on a GPU cannot be an operand of an op on the CPU.
    assert!(matches!(
        (&ones([2], ())? + &half.cuda()?).kind(),
        Some(ErrorKind::DeviceMismatch { .. })
    ));
    Ok(())
}

#[test]
fn s03_without_cuda_the_cpu_works_and_cuda_says_why() {
    common::cpu(|_| {
        assert!(!cuda::is_available()?);
        assert_eq!(cuda::device_count()?, 0);
        assert_eq!((ones([2], ())? + 1.0)?.to_vec::<f32>()?, [2.0; 2]);
        for error in [
            ones([2], "cuda").err(),
            ones([2], ())?.cuda().err(),
            ones([2], ())?.pin_memory().err(),
            cuda::current_device().err(),
            cuda::memory_allocated(()).err(),
        ] {
            let error = error.expect("there is no CUDA");
            assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error}");
            assert!(error.to_string().contains("hidden by a test"), "{error}");
        }
        Ok(())
    });
}
