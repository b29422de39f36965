//! Tests of row S19: `is_available`, and a program for CPU and CUDA with a flag like
//! `--disable-cuda`.

use warpline::{
    Device, Error, ErrorKind, Result, ResultExt, Runtime, RuntimeConfig, cuda, tensor,
    with_runtime, zeros,
};
use warpline_cuda_sys_safe::{DriverError, real};

use crate::common::World;

crate::rows! {
    worlds(1) s19_one_program_on_either gpu_s19_one_program_on_either => either;
}

/// The device-agnostic program of PyTorch's note on CUDA semantics. It chooses the device once.
fn program(disable_cuda: bool) -> Result<(Device, Vec<f32>)> {
    let device =
        if !disable_cuda && cuda::is_available()? { Device::Cuda(None) } else { Device::Cpu };
    let x = tensor([[1f32, 2.0], [3.0, 4.0]], device)?;
    let w = zeros([2, 2], device)?;
    w.fill_(0.5)?;
    let y = x.matmul(&w)?.add(&x)?;
    Ok((y.device(), y.to_vec()?))
}

const EXPECTED: [f32; 4] = [2.5, 3.5, 6.5, 7.5];

fn either(world: &World) -> Result<()> {
    assert!(cuda::is_available()?);
    assert_eq!(cuda::device_count()?, world.devices);
    assert_eq!(program(false)?, (Device::cuda(0), EXPECTED.to_vec()));
    assert_eq!(program(true)?, (Device::Cpu, EXPECTED.to_vec()));
    let last = world.devices - 1;
    cuda::with_device(last, || {
        assert_eq!(program(false)?, (Device::cuda(last), EXPECTED.to_vec()));
        Ok(())
    })
}

#[test]
fn s19_the_program_runs_without_cuda() {
    crate::common::cpu(|_| {
        assert!(!cuda::is_available()?);
        assert_eq!(cuda::device_count()?, 0);
        assert_eq!(program(false)?, (Device::Cpu, EXPECTED.to_vec()));
        // Without a device, these calls neither fail nor panic.
        cuda::empty_cache();
        cuda::manual_seed_all(1);
        assert!(cuda::take_races().is_empty());
        Ok(())
    });
}

/// Queries create no context, as in PyTorch's tests `lazy_init` and `is_pinned_no_context`.
#[test]
fn s19_asking_makes_no_context() {
    let world = crate::boxes::SimBox::lazy(2);
    world.enter(|| {
        use warpline_cuda_sys_safe::Driver;
        assert!(cuda::is_available()?);
        assert_eq!(cuda::current_device()?, 0);
        assert!(!cuda::get_device_name(1)?.is_empty());
        assert!(!tensor([1f32], ())?.is_pinned());
        cuda::set_device(1)?;
        let active = |d| world.sim.primary_context_active(d).expect("an answer");
        assert!(!active(0) && !active(1));
        let t = zeros([2], "cuda")?;
        assert!(!active(0) && active(1), "only the device that was used");
        assert!(!t.is_pinned());
        assert!(t.to_non_blocking("cpu")?.is_pinned());
        assert!(!active(0), "host memory is locked through a device that is in use");
        Ok(())
    });
}

/// Without libcuda, nothing panics, and the error states the reason and the remedy.
#[test]
fn s19_without_libcuda_the_error_says_why() {
    let missing = std::path::PathBuf::from("/nonexistent/libcuda.so.1");
    let reason = real::load_from(&[missing]).expect_err("no library");
    assert!(matches!(reason, DriverError::LibraryNotFound { .. }), "{reason:?}");
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    with_runtime(&runtime, || {
        assert!(!cuda::is_available()?);
        assert_eq!(cuda::device_count()?, 0);
        let error = zeros([2], "cuda").expect_err("no CUDA");
        assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error:?}");
        let text = error.to_string();
        for fact in ["CUDA is not available", "/nonexistent/libcuda.so.1", "'cpu'", "sim:N"] {
            assert!(text.contains(fact), "no `{fact}` in: {text}");
        }
        let host = zeros([2], ())?;
        let unavailable = |result: Result<()>| {
            assert!(matches!(result.kind(), Some(ErrorKind::CudaUnavailable { .. })), "{result:?}");
        };
        unavailable(zeros([2], "cuda:3").map(drop));
        unavailable(host.cuda().map(drop));
        unavailable(host.to("cuda:0").map(drop));
        unavailable(host.pin_memory().map(drop));
        unavailable(cuda::synchronize(()));
        unavailable(cuda::set_device(0));
        unavailable(cuda::current_device().map(drop));
        unavailable(cuda::device(0).map(drop));
        unavailable(cuda::Stream::new(()).map(drop));
        unavailable(cuda::memory_allocated(()).map(drop));
        unavailable(cuda::memory_summary(0).map(drop));
        unavailable(cuda::mem_get_info(()).map(drop));
        unavailable(cuda::manual_seed(1));
        assert_eq!(host.add(1.0)?.to_vec::<f32>()?, [1.0; 2]);
        Ok::<_, Error>(())
    })
    .expect("CPU tensors work");
}
