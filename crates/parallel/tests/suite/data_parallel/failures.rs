//! Failing replicas.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::{
    Device, ErrorKind, ResultExt as _, Tensor, cuda, ones, runtime, tensor, with_runtime,
};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_parallel::{DataParallel, DataParallelError};

use super::nets::{Counts, FnModule};
use super::world::{SimBox, TestResult, values};

crate::on_both! {
    Auto([2, 4]) s28_the_first_error_in_replica_order gpu2_s28_the_first_error_in_replica_order => errors;
    Auto([2, 4]) s28_panics_are_resumed gpu2_s28_panics_are_resumed => panics;
    Auto([2]) s28_a_failed_index_is_reported_to_the_caller
        gpu2_s28_a_failed_index_is_reported_to_the_caller => failed_index;
}

/// A failed index check in a replica is reported to the thread that called `forward`, not to other threads.
fn failed_index(devices: usize) -> TestResult {
    let net = DataParallel::new(
        FnModule(|x: Tensor| {
            x.index_select(0, &tensor([9 * device_of(&x) as i64], x.device())?)?;
            Ok(x)
        }),
        (),
    )?;
    let runtime = runtime();
    for _ in 0..2 {
        net.forward(ones([devices], 0)?)?;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| with_runtime(&runtime, || cuda::synchronize(1)));
            other.join().expect("no panic")
        })?;
        let error = cuda::synchronize(1);
        assert!(matches!(error.kind(), Some(ErrorKind::IndexCheck { index: 9, .. })), "{error:?}");
        cuda::synchronize(1)?;
    }
    Ok(())
}

fn device_of(x: &Tensor) -> usize {
    x.device().index().expect("a GPU")
}

fn errors(devices: usize) -> TestResult {
    for first in 0..devices {
        let ran = Arc::new(AtomicUsize::new(0));
        let inside = Arc::clone(&ran);
        let net = DataParallel::new(
            FnModule(move |(x, fails): (Tensor, bool)| {
                let device = device_of(&x);
                // The failing replica with the lowest number fails last.
                if device == first && fails {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                inside.fetch_add(1, Ordering::SeqCst);
                match fails && device >= first {
                    true => x.reshape([1000 + device as isize]),
                    false => Ok(x),
                }
            }),
            (),
        )?;
        let error = net.forward((ones([devices], 0)?, true)).unwrap_err();
        assert_eq!(ran.load(Ordering::SeqCst), devices, "all have run");
        let text = error.to_string();
        let start = format!(
            "DataParallel: in replica {first} on device cuda:{first}: reshape: shape '[{}]'",
            1000 + first
        );
        assert!(text.starts_with(&start), "{text}");
        let Some(DataParallelError::Replica { replica, device, source }) = error.find() else {
            panic!("{error:?}");
        };
        assert_eq!((*replica, *device), (first, first));
        assert!(matches!(source.kind(), ErrorKind::InvalidReshape { .. }));
        let out = net.forward((ones([devices], 0)?, false))?;
        assert_eq!(values(&out)?, vec![1.0; devices], "usable as before");
    }
    // The error of a single replica also has the replica's number.
    let net = DataParallel::new(FnModule(|x: Tensor| x.reshape([7])), ())?;
    let text = net.forward(ones([1], 0)?).unwrap_err().to_string();
    assert!(text.starts_with("DataParallel: in replica 0 on device cuda:0: "), "{text}");
    Ok(())
}

fn panics(devices: usize) -> TestResult {
    for first in 0..devices {
        let ran = Arc::new(AtomicUsize::new(0));
        let inside = Arc::clone(&ran);
        let net = DataParallel::new(
            FnModule(move |(x, panics): (Tensor, bool)| {
                inside.fetch_add(1, Ordering::SeqCst);
                assert!(!panics || device_of(&x) != first, "replica {first} panics");
                // The error of a later replica is ignored.
                if panics && device_of(&x) > first { x.reshape([1000]) } else { Ok(x) }
            }),
            (),
        )?;
        let x = ones([devices], 0)?;
        let caught = catch_unwind(AssertUnwindSafe(|| net.forward((x.clone(), true))));
        let panic = caught.expect_err("a panic");
        let text = panic.downcast_ref::<String>().expect("its message");
        assert_eq!(*text, format!("replica {first} panics"));
        assert_eq!(ran.load(Ordering::SeqCst), devices, "all have run");
        assert_eq!(values(&net.forward((x, false))?)?, vec![1.0; devices], "usable as before");
    }
    Ok(())
}

/// The next forward pass repeats a copy that the driver refused.
#[test]
fn failed_copies_are_repeated_by_the_next_forward_pass() {
    for failing in 0..6 {
        let world = SimBox::lazy(3);
        world.enter(|| {
            let net = DataParallel::new(Counts::new(0)?, ())?;
            let x = ones([3], 0)?;
            for round in 0..2 {
                net.module().weight.fill_(5.0 + f64::from(round))?;
                let fault = Fault::new(CallKind::MemcpyAsync, CudaCode::INVALID_VALUE);
                world.sim.inject(fault.after(failing));
                let error = net.forward(x.clone()).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Driver), "{failing}: {error}");
                net.module().count.zero_()?;
                let out = values(&net.forward(x.clone())?)?;
                assert_eq!(out, [6.0 + round as f32; 3], "copy {failing} failed");
            }
            Ok(())
        });
    }
}

/// The input, the module and the caller must have the same runtime.
#[test]
fn runtimes_do_not_mix() {
    let (here, there) = (SimBox::lazy(2), SimBox::lazy(2));
    here.enter(|| {
        let net = DataParallel::new(Counts::new(0)?, ())?;
        let x = ones([2], 0)?;
        there.enter(|| {
            let theirs = ones([2], 0)?;
            for x in [x.clone(), theirs.clone()] {
                let error = net.forward(x).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::RuntimeMismatch), "{error:?}");
            }
            Ok(())
        });
        let theirs = warpline::with_runtime(&there.runtime, || ones([2], Device::cuda(0)))?;
        assert!(net.forward(theirs).is_err());
        assert_eq!(values(&net.forward(x)?)?, [3.0; 2]);
        Ok(())
    });
}
