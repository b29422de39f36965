//! Tests of copies of pageable memory, which several threads stage in page-locked pieces.

use std::panic::Location;

use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault};
use warpline_runtime::Storage;

use super::*;

/// Copies bytes that depend on `number` to the device and back. Returns the number of failed
/// copies.
fn copies(runtime: &Runtime, number: i64) -> usize {
    let stream = stream(runtime);
    let device = Storage::device(runtime, BYTES, &stream).unwrap();
    let host = Storage::pageable(runtime, BYTES).unwrap();
    let mut failed = 0;
    for round in 0..2 {
        let sent = number * 10 + round;
        launch::write_bytes((&host, 0), &bytes_of(sent)).unwrap();
        let there = copy(&stream, &device, &host, random(2) == 0);
        // The copy must have read the source before it returned.
        launch::write_bytes((&host, 0), &bytes_of(99)).unwrap();
        let back = copy(&stream, &host, &device, false);
        for error in [&there, &back].into_iter().filter_map(|copied| copied.as_ref().err()) {
            let code = error.driver_error().and_then(|e| e.code());
            assert_eq!(code, Some(CudaCode::UNKNOWN), "{error}");
            failed += 1;
        }
        if there.is_ok() && back.is_ok() {
            assert_eq!(value(&host), sent);
        }
    }
    failed
}

#[test]
fn copies_of_several_threads_do_not_mix() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let tasks = (1..=3).map(|number| {
            let runtime = runtime.clone();
            move || assert_eq!(copies(&runtime, number), 0)
        });
        let tasks: Vec<_> = tasks.collect();
        drop(runtime);
        together(tasks);
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// A piece of a copy fails. The copy reports the failure. Its other pieces, which may still be in
/// flight, affect no other copy.
#[test]
fn a_piece_that_fails_harms_no_other_copy() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let calls = [CallKind::MemcpyAsync, CallKind::EventRecord, CallKind::EventSynchronize];
        let call = calls[random(3)];
        sim.inject(Fault::new(call, CudaCode::UNKNOWN).after(random(12)));
        let tasks = (1..=2).map(|number| {
            let runtime = runtime.clone();
            move || copies(&runtime, number)
        });
        let tasks: Vec<_> = tasks.collect();
        drop(runtime);
        let failed: usize = together(tasks).into_iter().sum();
        assert!(failed <= 1, "one failed call made {failed} copies fail");
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// A thread begins to capture the stream while another thread stages a copy. The copy runs or is
/// rejected, and is never captured.
#[test]
fn a_staged_copy_is_never_captured() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let stream = stream(&runtime);
        let device = device_memory(&stream, &runtime, 1);
        let host = host_memory(Storage::pageable(&runtime, BYTES).unwrap(), 2);
        let captures = {
            let (runtime, stream) = (runtime.clone(), stream.clone());
            move || {
                let pool = warpline_runtime::graph::GraphPool::new(gpu(&runtime));
                let begun = warpline_runtime::graph::Capturing::begin(&runtime, &stream, &pool);
                drop(begun.unwrap());
                true
            }
        };
        let copies = {
            let (stream, device) = (stream.clone(), device.clone());
            move || match launch::copy_bytes(
                &stream,
                (&device, 0),
                (&host, 0),
                BYTES,
                false,
                Location::caller(),
            ) {
                Ok(()) => true,
                Err(error) if is_capture(error.kind()) => false,
                Err(error) => panic!("{error}"),
            }
        };
        let tasks: [Box<dyn FnOnce() -> bool + Send>; 2] = [Box::new(captures), Box::new(copies)];
        let copied = together(tasks)[1];
        if copied {
            assert_eq!(value_of(&stream, &device), 2);
        }
    });
}
