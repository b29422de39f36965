//! Tests of launches that must be ordered or rejected.

use std::panic::Location;

use warpline_cuda_sys_safe::MemsetValue;
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig};

use super::*;
use crate::Site;
use crate::graph::{Capturing, GraphPool};
use crate::testing::small_sim;
use crate::{ErrorKind, ResultExt, RuntimeConfig, SyncPolicy};

fn runtime(sync_policy: SyncPolicy) -> Runtime {
    let driver = SimConfig { schedule: Schedule::Lazy, ..small_sim(1) }.build();
    Runtime::new(driver, RuntimeConfig { sync_policy, ..RuntimeConfig::default() }).unwrap()
}

fn set(stream: &Stream, storage: &Storage, value: u8) {
    let here = Location::caller();
    memset(stream, (storage, 0), MemsetValue::U8(value), storage.bytes(), "fill_", here).unwrap();
}

#[test]
fn host_reads_wait_for_unordered_copies_under_manual_sync() {
    let runtime = runtime(SyncPolicy::Manual);
    let device = runtime.device(0).unwrap().device();
    let (a, b) = (device.stream_from_pool(0).unwrap(), device.stream_from_pool(0).unwrap());
    let host = Storage::pinned(&runtime, 64).unwrap();
    write_bytes((&host, 0), &[0; 64]).unwrap();
    let (x, y) = (Storage::device(&runtime, 64, &a).unwrap(), Storage::device(&runtime, 64, &b));
    let y = y.unwrap();
    set(&a, &x, 1);
    set(&b, &y, 2);
    let here = Location::caller();
    // Copy into one buffer on two streams, without order. The second write replaces the first in
    // `Uses`, so the second write must wait for the first.
    copy_bytes(&a, (&host, 0), (&x, 0), 64, true, here).unwrap();
    copy_bytes(&b, (&host, 0), (&y, 0), 64, true, here).unwrap();
    assert_eq!(runtime.take_races().len(), 1);
    let mut bytes = [0; 64];
    read_bytes((&host, 0), &mut bytes).unwrap();
    assert_eq!(bytes, [2; 64]);
    assert!(a.query().unwrap(), "a copy into the buffer runs while the host reads it");
    a.synchronize().unwrap();
    read_bytes((&host, 0), &mut bytes).unwrap();
    assert_eq!(bytes, [2; 64]);
}

#[test]
fn memory_of_another_runtime_is_refused() {
    let (here, there) = (runtime(SyncPolicy::Auto), runtime(SyncPolicy::Auto));
    let ours = here.device(0).unwrap().device().default_stream();
    let theirs = there.device(0).unwrap().device().default_stream();
    let x = Storage::device(&here, 64, ours).unwrap();
    let y = Storage::device(&there, 64, theirs).unwrap();
    let location = Location::caller();
    let mixed = [
        copy_bytes(ours, (&x, 0), (&y, 0), 64, true, location),
        copy_bytes(theirs, (&x, 0), (&x, 32), 32, true, location),
        memset(ours, (&y, 0), MemsetValue::U8(1), 64, "zero_", location),
    ];
    for answer in mixed {
        assert!(matches!(answer.kind(), Some(ErrorKind::RuntimeMismatch)), "{answer:?}");
    }
    let (x, y) = (Storage::pageable(&here, 64).unwrap(), Storage::pageable(&there, 64).unwrap());
    let layout = crate::Layout::contiguous(&[16]).unwrap();
    let view = crate::View { storage: &x, layout: &layout, dtype: crate::DType::F32 };
    let answer =
        crate::testing::copy(Target::Cpu(&here), crate::View { storage: &y, ..view }, view);
    assert!(matches!(answer.kind(), Some(ErrorKind::RuntimeMismatch)), "{answer:?}");
}

#[test]
fn errors_of_inner_functions_have_the_location_of_the_call() {
    let runtime = Runtime::new(small_sim(2).build(), RuntimeConfig::default()).unwrap();
    let stream = runtime.device(0).unwrap().device().default_stream();
    let elsewhere = runtime.device(1).unwrap().device().default_stream();
    let near = Storage::device(&runtime, 64, stream).unwrap();
    let far = Storage::device(&runtime, 64, elsewhere).unwrap();
    let host = Storage::pageable(&runtime, 64).unwrap();
    let layout = crate::Layout::contiguous(&[16]).unwrap();
    let view = |storage| crate::View { storage, layout: &layout, dtype: crate::DType::F32 };
    let device = runtime.device(0).unwrap();
    for (target, from) in [
        (Target::Cuda(&runtime, device, stream), &far),
        (Target::Cuda(&runtime, device, elsewhere), &near),
        (Target::Cuda(&runtime, device, stream), &host),
    ] {
        let (line, refused) = (line!(), crate::testing::copy(target, view(from), view(&near)));
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DeviceMismatch { .. }), "{error}");
        let location = error.location().unwrap();
        assert_eq!((location.file(), location.line()), (file!(), line), "{error}");
    }
}

/// A runtime has no record of the work on streams of another runtime of the same driver.
#[test]
fn streams_of_another_runtime_are_refused_before_anything_is_allocated() {
    let driver = small_sim(1).build();
    let runtime = || Runtime::new(driver.clone(), RuntimeConfig::default()).unwrap();
    let (ours, theirs) = (runtime(), runtime());
    let devices = [&ours, &theirs].map(|runtime| runtime.device(0).unwrap());
    let [here, there] = devices.map(|device| device.device().stream_from_pool(0).unwrap());
    let location = Location::caller();

    let x = Storage::device(&ours, 64, &here).unwrap();
    let (near, far) = (Storage::pinned(&ours, 64).unwrap(), Storage::pageable(&ours, 64).unwrap());
    let [pool, other_pool] = devices.map(GraphPool::new);
    pool.stream(devices[0]).unwrap();
    let capturing = Capturing::begin(&ours, &here, &pool).unwrap();
    set(&here, &x, 1);
    let graph = capturing.end().unwrap();
    let layout = crate::Layout::contiguous(&[8]).unwrap();
    let out = crate::View { storage: &x, layout: &layout, dtype: crate::DType::I64 };
    let state = || format!("{:?}", devices[0].generator());

    let counted = || {
        let reserved = devices.map(|device| device.allocator().memory_reserved());
        let usage = driver.usage();
        let calls = [CallKind::Launch, CallKind::MemcpyAsync, CallKind::HostAlloc];
        (reserved, calls.map(|call| usage.count(call)), state())
    };
    let before = counted();
    let big = 64 << 20;
    let mixed = [Target::Cuda(&ours, devices[0], &there), Target::Cuda(&ours, devices[1], &there)];
    let ops = mixed.into_iter().flat_map(|target| {
        [
            crate::testing::fill(target, out, 1),
            crate::testing::copy(target, out, out),
            target.check("random_"),
        ]
    });
    let answers = [
        Storage::device(&ours, big, &there).map(drop),
        Storage::device(&theirs, big, &here).map(drop),
        x.record_stream(&there),
        near.record_stream(&there),
        copy_bytes(&there, (&x, 0), (&near, 0), 64, true, location),
        copy_bytes(&there, (&x, 0), (&far, 0), 64, false, location),
        copy_bytes(&there, (&x, 0), (&x, 32), 32, true, location),
        memset(&there, (&x, 0), MemsetValue::U8(1), 64, "zero_", location),
        Capturing::begin(&ours, &there, &pool).map(drop),
        Capturing::begin(&ours, &here, &other_pool).map(drop),
        pool.stream(devices[1]).map(drop),
        graph.replay(&there),
    ];
    for (i, answer) in ops.chain(answers).enumerate() {
        assert!(matches!(answer.kind(), Some(ErrorKind::RuntimeMismatch)), "{i}: {answer:?}");
    }
    assert_eq!(counted(), before);
    // The pool is still usable after the refusal.
    Capturing::begin(&theirs, &there, &other_pool).unwrap().end().unwrap();
}

#[test]
fn a_replay_that_uses_results_of_a_graph_without_a_replay_is_refused() {
    for (one_pool, dropped) in [(true, false), (true, true), (false, false), (false, true)] {
        let runtime = runtime(SyncPolicy::Auto);
        let device = runtime.device(0).unwrap();
        let stream = device.device().stream_from_pool(0).unwrap();
        let (pool, other) = (GraphPool::new(device), GraphPool::new(device));
        let z = Storage::device(&runtime, 64, &stream).unwrap();
        set(&stream, &z, 1);
        let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
        let y = Storage::device(&runtime, 64, &stream).unwrap();
        set(&stream, &y, 7);
        let producer = capturing.end().unwrap();
        let second = if one_pool { &pool } else { &other };
        let capturing = Capturing::begin(&runtime, &stream, second).unwrap();
        copy_bytes(&stream, (&z, 0), (&y, 0), 64, true, Location::caller()).unwrap();
        let consumer = capturing.end().unwrap();
        if dropped {
            drop(y);
        }
        let refused = consumer.replay(&stream);
        assert!(matches!(refused.kind(), Some(ErrorKind::NotReplayed)), "{refused:?}");
        producer.replay(&stream).unwrap();
        consumer.replay(&stream).unwrap();
        let near = Storage::pageable(&runtime, 64).unwrap();
        copy_bytes(&stream, (&near, 0), (&z, 0), 64, false, Location::caller()).unwrap();
        let mut bytes = [0; 64];
        read_bytes((&near, 0), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64]);
    }
}

#[test]
fn a_kernel_does_not_receive_memory_of_another_device() {
    let sim = SimConfig { schedule: Schedule::Lazy, ..small_sim(2) }.build();
    let runtime = Runtime::new(sim, RuntimeConfig::default()).unwrap();
    let (first, second) = (runtime.device(0).unwrap(), runtime.device(1).unwrap());
    let (here, there) = (first.device().default_stream(), second.device().default_stream());
    let storage = Storage::device(&runtime, 64, there).unwrap();
    let layout = crate::Layout::contiguous(&[16]).unwrap();
    let view = crate::View { storage: &storage, layout: &layout, dtype: crate::DType::F32 };
    let answer = crate::testing::fill(Target::Cuda(&runtime, first, here), view, 1);
    assert!(matches!(answer.kind(), Some(ErrorKind::DeviceMismatch { .. })), "{answer:?}");
    crate::testing::fill(Target::Cuda(&runtime, second, there), view, 1).unwrap();
}

#[test]
fn layouts_that_overflow_are_refused() {
    use smallvec::smallvec;

    use crate::{DType, Layout, View};

    let config = RuntimeConfig::default();
    let reason = DriverError::NoDevice { reason: "this test runs on the CPU".into() };
    let runtime = Runtime::without_cuda(reason, &config);
    let storage = Storage::pageable(&runtime, 64).unwrap();
    let other = Storage::pageable(&runtime, 64).unwrap();
    for layout in [
        // The number of elements overflows, and all of them are the first element.
        Layout::from_parts(smallvec![usize::MAX, 2], smallvec![0, 0], 0),
        Layout::from_parts(smallvec![4], smallvec![1], isize::MAX as usize),
        Layout::from_parts(smallvec![0], smallvec![1], isize::MAX as usize),
        Layout::from_parts(smallvec![2], smallvec![isize::MIN], 0),
    ] {
        let view = View { storage: &storage, layout: &layout, dtype: DType::F64 };
        let target = Target::Cpu(&runtime);
        let error = crate::testing::copy(target, view, View { storage: &other, ..view });
        assert!(error.is_err(), "{layout:?}");
        let same = Layout::contiguous(&[1]).unwrap();
        let plain = View { storage: &storage, layout: &same, dtype: DType::F64 };
        assert!(crate::testing::copy(target, plain, view).is_err(), "{layout:?}");
        assert!(view.check_inside("test").is_err(), "{layout:?}");
    }
}

#[test]
fn a_target_is_one_device_of_one_runtime() {
    let sim = SimConfig { schedule: Schedule::Lazy, ..small_sim(2) }.build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    let elsewhere = self::runtime(SyncPolicy::Auto);
    let (first, second) = (runtime.device(0).unwrap(), runtime.device(1).unwrap());
    let here = first.device().stream_from_pool(0).unwrap();
    let there = second.device().stream_from_pool(0).unwrap();
    let foreign = elsewhere.device(0).unwrap();
    let storage = Storage::device(&runtime, 64, &here).unwrap();
    let layout = crate::Layout::contiguous(&[4, 4]).unwrap();
    let view = crate::View { storage: &storage, layout: &layout, dtype: crate::DType::F32 };
    let product = Storage::device(&runtime, 64, &here).unwrap();
    let product = crate::View { storage: &product, ..view };
    crate::testing::fill(Target::Cuda(&runtime, first, &here), view, 1).unwrap();
    for target in [
        Target::Cuda(&runtime, foreign, &here),
        Target::Cuda(&runtime, first, &there),
        Target::Cuda(&elsewhere, foreign, &here),
    ] {
        let filled = crate::testing::fill(target, view, 2);
        let copied = crate::testing::copy(target, view, product);
        for answer in [filled, copied] {
            let refused = matches!(
                answer.kind(),
                Some(ErrorKind::RuntimeMismatch | ErrorKind::DeviceMismatch { .. })
            );
            assert!(refused, "{answer:?}");
        }
    }
    here.synchronize().unwrap();
    there.synchronize().unwrap();
}

/// The number of waits does not depend on the order in which the storages are locked.
#[test]
fn uses_on_one_stream_take_one_wait() {
    let sim = SimConfig { schedule: Schedule::Lazy, ..small_sim(1) }.build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap().device();
    let [a, b] = [0, 0].map(|p| device.stream_from_pool(p).unwrap());
    let [x, y] = [(); 2].map(|()| Storage::device(&runtime, 64, &b).unwrap());
    for (first, last) in [(&x, &y), (&y, &x)] {
        set(&b, first, 1);
        set(&b, last, 2);
        let before = sim.usage().count(CallKind::StreamWaitEvent);
        let site = Site::here("add_");
        let touches = [(&x, true), (&y, true)].into_iter();
        enqueue(&a, touches, site, |_| Ok(())).unwrap();
        assert_eq!(sim.usage().count(CallKind::StreamWaitEvent) - before, 1);
    }
}

/// The driver call returns after the copy is complete, so no event is recorded.
#[test]
fn a_copy_to_pageable_memory_is_done_when_it_returns() {
    for schedule in [Schedule::Lazy, Schedule::Eager, Schedule::Seeded(3)] {
        let sim = SimConfig { schedule, ..small_sim(1) }.build();
        let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
        let device = runtime.device(0).unwrap().device();
        let [a, b] = [0, 0].map(|p| device.stream_from_pool(p).unwrap());
        let x = Storage::device(&runtime, 64, &a).unwrap();
        set(&a, &x, 7);
        b.wait_stream(&a).unwrap();
        let (earlier, before) = (a.last_op(), sim.usage().count(CallKind::EventRecord));
        let near = Storage::pageable(&runtime, 64).unwrap();
        copy_bytes(&b, (&near, 0), (&x, 0), 64, false, Location::caller()).unwrap();
        assert_eq!(sim.usage().count(CallKind::EventRecord), before, "{schedule:?}");
        assert!(b.is_known_done(b.last_op()) && a.is_known_done(earlier), "{schedule:?}");
        let mut bytes = [0; 64];
        read_bytes((&near, 0), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 64], "{schedule:?}");
    }
}

#[test]
fn operands_that_overlap_or_leave_their_storage_are_refused() {
    let runtime = runtime(SyncPolicy::Auto);
    let [x, y] = [(); 2].map(|()| Storage::pageable(&runtime, 64).unwrap());
    let row = crate::Layout::contiguous(&[8]).unwrap();
    let at = |offset: usize, stride: isize| {
        crate::Layout::from_parts([8].as_slice().into(), [stride].as_slice().into(), offset)
    };
    let (later, twice, far) = (at(8, 1), at(0, 0), at(9, 1));
    let of = |storage, layout| crate::View { storage, layout, dtype: crate::DType::F32 };
    let check = |operands: &[Operand<'_>]| check_operands("op", operands);
    let out = of(&x, &row).write();
    check(&[of(&x, &later).read(), of(&y, &row).read(), out]).unwrap();
    check(&[of(&y, &row).read(), of(&y, &row).read(), of(&y, &twice).read()]).unwrap();
    let refused = check(&[of(&x, &row).read(), out]);
    assert!(
        refused
            .as_ref()
            .is_err_and(|e| matches!((e.op(), e.kind()), ("op", ErrorKind::OverlappingOperands))),
        "{refused:?}"
    );
    let refused = check(&[out, of(&x, &row).read_write()]);
    assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingOperands)), "{refused:?}");
    let refused = check(&[of(&x, &twice).read_write()]);
    assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingWrite)), "{refused:?}");
    let refused = check(&[of(&y, &far).read(), out]);
    assert!(matches!(refused.kind(), Some(ErrorKind::OutOfStorage { .. })), "{refused:?}");
}

/// The host lock of the storage is held while the closure runs.
#[test]
fn a_closure_that_fills_bytes_and_reads_a_storage_gets_an_error_and_does_not_hang() {
    let (done, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = runtime(SyncPolicy::Auto);
        let [own, other] = [(); 2].map(|()| Storage::pageable(&runtime, 64).unwrap());
        let read = fill_bytes((&own, 0), 64, |bytes| {
            bytes.fill(7);
            [&own, &other].map(|storage| read_bytes((storage, 0), &mut [0; 64]).is_err())
        });
        let mut bytes = [0; 64];
        read_bytes((&own, 0), &mut bytes).unwrap();
        done.send((read.unwrap(), bytes)).unwrap();
    });
    let limit = std::time::Duration::from_secs(20);
    let read = read.recv_timeout(limit).expect("the closure waits for its own lock");
    assert_eq!(read, ([true; 2], [7; 64]));
}
