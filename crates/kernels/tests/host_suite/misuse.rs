//! Regression tests: safe programs, on the layers below the tensor crate, that once read or freed
//! memory too early. Most of the simulated devices are lazy: work runs only when something waits for
//! it, so a missing wait is visible.

use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::PoolOptions;
use warpline_alloc::cuda::CudaBackend;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::{Driver, MemsetValue, StreamFlags, owned};
use warpline_runtime::graph::{Capturing, GraphPool};
use warpline_runtime::launch::{copy_bytes, memset, read_bytes, write_bytes};
use warpline_runtime::{Runtime, RuntimeConfig, Storage};
use warpline_stream::Stream;

const N: usize = 4096;

fn lazy() -> (Arc<SimDriver>, Runtime) {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    (sim, runtime)
}

fn device_filled(runtime: &Runtime, stream: &Stream, value: u8) -> Storage {
    let host = Storage::pageable(runtime, N).unwrap();
    write_bytes((&host, 0), &[value; N]).unwrap();
    let device = Storage::device(runtime, N, stream).unwrap();
    copy_bytes(stream, (&device, 0), (&host, 0), N, false, Location::caller()).unwrap();
    device
}

fn first(storage: &Storage) -> u8 {
    let mut out = [0; N];
    read_bytes((storage, 0), &mut out).unwrap();
    out[0]
}

/// A size, in bytes, that leaves no room for a second allocation of this size on a [`tight`]
/// device.
const MOST: usize = 44 << 20;

/// Creates a device with so little memory that each stream must reuse memory of other streams.
fn tight() -> Runtime {
    let sim = SimConfig { schedule: Schedule::Lazy, capacity: 64 << 20, ..SimConfig::new(1) };
    Runtime::new(sim.build(), RuntimeConfig::default()).unwrap()
}

fn fill(stream: &Stream, storage: &Storage, value: u8) {
    let (value, bytes) = (MemsetValue::U8(value), storage.bytes());
    memset(stream, (storage, 0), value, bytes, "memset", Location::caller()).unwrap();
}

/// Drops memory before the stream has run its pending write of sevens to it.
fn drop_after_fill(runtime: &Runtime, former: &Stream) {
    let dropped = Storage::device(runtime, MOST, former).unwrap();
    fill(former, &dropped, 7);
}

#[test]
fn either_wrapper_of_a_stream_waits_for_its_work() {
    let (sim, runtime) = lazy();
    let driver: Arc<dyn Driver> = runtime.driver().unwrap().clone();
    let device = runtime.device(0).unwrap().device();
    let here = Location::caller();
    let flags = StreamFlags { non_blocking: true, priority: 0 };
    let raw = owned::Stream::new(&driver, 0, flags).unwrap();
    let one = device.external_stream(raw.clone()).unwrap();
    let two = device.external_stream(raw).unwrap();
    let (seven, nine) = (device_filled(&runtime, &one, 7), device_filled(&runtime, &one, 9));
    let pinned = Storage::pinned(&runtime, N).unwrap();
    copy_bytes(&one, (&pinned, 0), (&nine, 0), N, true, here).unwrap();
    one.synchronize().unwrap();
    copy_bytes(&two, (&pinned, 0), (&seven, 0), N, true, here).unwrap();
    assert!(sim.pending() > 0, "nothing to wait for");
    assert_eq!(first(&pinned), 7);
}

#[test]
fn memory_of_an_abandoned_capture_is_free_for_reuse() {
    let (sim, runtime) = lazy();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let source = device_filled(&runtime, &stream, 7);
    let pinned = Storage::pinned(&runtime, N).unwrap();
    let capture = Capturing::begin(&runtime, &stream, &GraphPool::new(device)).unwrap();
    copy_bytes(&stream, (&pinned, 0), (&source, 0), N, true, Location::caller()).unwrap();
    drop(capture);
    let address = pinned.address();
    drop(pinned);
    let other = Storage::pinned(&runtime, N).unwrap();
    assert_eq!(other.address(), address, "the capture kept the memory");
    write_bytes((&other, 0), &[1; N]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((first(&other), sim.usage().devices[0].graphs), (1, 0));
}

#[test]
fn a_second_wrapper_of_a_captured_stream_enqueues_nothing() {
    let (_sim, runtime) = lazy();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let (seven, nine) = (device_filled(&runtime, &stream, 7), device_filled(&runtime, &stream, 9));
    let pinned = Storage::pinned(&runtime, N).unwrap();
    let pool = GraphPool::new(device);
    let capture = Capturing::begin(&runtime, &stream, &pool).unwrap();
    let twin = stream.captured().unwrap().twin().clone();
    let takes_twins =
        || Storage::device(&runtime, N, &twin).is_ok() || seven.record_stream(&twin).is_ok();
    assert!(!takes_twins());
    drop(capture);
    // The twin stays unusable after the capture, because it would number its uses from 1 again.
    assert!(!takes_twins());
    // These calls fail, because the twin would report work of the stream with the same numbers as
    // complete.
    assert!(twin.query().is_err() && twin.synchronize().is_err());
    let copy = |stream: &Stream, from: &Storage| {
        copy_bytes(stream, (&pinned, 0), (from, 0), N, true, Location::caller())
    };
    copy(&stream, &nine).unwrap();
    stream.synchronize().unwrap();
    // The copy fails, because it would have the number of the stream's first operation, which is
    // already complete.
    assert!(copy(&twin, &seven).is_err());
    assert_eq!(first(&pinned), 9);
    // The capture fails, because the first wrapper would not know that work of its stream is captured,
    // and would not keep the memory alive.
    assert!(Capturing::begin(&runtime, &twin, &pool).is_err());
    copy(&stream, &seven).unwrap();
    assert_eq!(first(&pinned), 7);
}

#[test]
fn a_stream_does_not_continue_the_numbers_of_another() {
    let (_sim, runtime) = lazy();
    let driver: Arc<dyn Driver> = runtime.driver().unwrap().clone();
    let device = runtime.device(0).unwrap().device();
    let flags = StreamFlags { non_blocking: true, priority: 0 };
    let [one, two] = [(); 2].map(|()| owned::Stream::new(&driver, 0, flags).unwrap());
    drop(device.external_stream(one.clone()).unwrap());
    two.numbering().set(Arc::clone(one.numbering().get().unwrap())).unwrap();
    assert!(device.external_stream(two).is_err());
    assert_eq!(device.external_stream(one.clone()).unwrap().raw(), &one);
}

#[test]
fn a_graph_keeps_memory_of_the_programs_own_pool() {
    let (_sim, runtime) = lazy();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let (seven, one) = (device_filled(&runtime, &stream, 7), device_filled(&runtime, &stream, 1));
    let copy = |to: &Storage, from: &Storage| {
        copy_bytes(&stream, (to, 0), (from, 0), N, true, Location::caller()).unwrap();
    };
    let own = device.allocator().new_pool(PoolOptions::default());
    let in_own = || {
        let _route = device.allocator().use_pool(&own);
        Storage::device(&runtime, N, &stream).unwrap()
    };
    let capture = Capturing::begin(&runtime, &stream, &GraphPool::new(device)).unwrap();
    // A capture gets its own route in the allocator at its first allocation.
    drop(Storage::device(&runtime, N, &stream).unwrap());
    let captured = in_own();
    copy(&captured, &seven);
    let graph = capture.end().unwrap();
    drop(captured);
    let other = in_own();
    copy(&other, &one);
    graph.replay(&stream).unwrap();
    let pinned = Storage::pinned(&runtime, N).unwrap();
    copy(&pinned, &other);
    assert_eq!(first(&pinned), 1);
    drop((other, own));
    device.allocator().empty_cache();
    graph.replay(&stream).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn reused_memory_waits_for_its_last_user_on_any_first_stream() {
    let (_sim, runtime) = lazy();
    let device = runtime.device(0).unwrap().device();
    let [home, other] = [(); 2].map(|()| device.stream_from_pool(0).unwrap());
    let dropped = device_filled(&runtime, &home, 7);
    let pinned = Storage::pinned(&runtime, N).unwrap();
    let here = Location::caller();
    copy_bytes(&home, (&pinned, 0), (&dropped, 0), N, true, here).unwrap();
    let address = dropped.address();
    drop(dropped);
    let again = Storage::device(&runtime, N, &home).unwrap();
    assert_eq!(again.address(), address);
    memset(&other, (&again, 0), MemsetValue::U8(1), N, "memset", here).unwrap();
    other.synchronize().unwrap();
    assert_eq!(first(&pinned), 7);
    copy_bytes(&other, (&pinned, 0), (&again, 0), N, true, here).unwrap();
    assert_eq!(first(&pinned), 1);
}

#[test]
fn memory_of_another_device_is_not_mistaken_for_own_memory() {
    let (_sim, runtime) = lazy();
    let two = SimConfig::new(2).build();
    let device = runtime.device(0).unwrap();
    let stream = device.device().default_stream();
    let seven = device_filled(&runtime, stream, 7);
    let foreign: Arc<dyn Driver> = two.clone();
    let pool =
        device.allocator().new_pool_over(CudaBackend::new(foreign, 0), PoolOptions::default());
    let route = device.allocator().use_pool(&pool);
    // Memory of the other driver could have the same address as memory of this one.
    let nine = device_filled(&runtime, stream, 9);
    drop(route);
    assert_eq!(two.usage().devices[0].allocations, 0);
    let pinned = Storage::pinned(&runtime, N).unwrap();
    for (storage, value) in [(&seven, 7), (&nine, 9)] {
        copy_bytes(stream, (&pinned, 0), (storage, 0), N, true, Location::caller()).unwrap();
        assert_eq!(first(&pinned), value);
    }
}

#[test]
fn remapped_pages_are_used_after_their_last_user_on_any_stream() {
    let runtime = tight();
    let device = runtime.device(0).unwrap().device();
    let [former, home, other] = [(); 3].map(|()| device.stream_from_pool(0).unwrap());
    drop_after_fill(&runtime, &former);
    // The allocator makes `home` wait for `former`. This wait has no operation number.
    // `Storage::device` therefore records a use of the memory on `home`, and `other` waits for that
    // use.
    let again = Storage::device(&runtime, MOST, &home).unwrap();
    fill(&other, &again, 1);
    other.synchronize().unwrap();
    former.synchronize().unwrap();
    let pinned = Storage::pinned(&runtime, N).unwrap();
    copy_bytes(&other, (&pinned, 0), (&again, 0), N, true, Location::caller()).unwrap();
    assert_eq!(first(&pinned), 1);
}

#[test]
fn memory_allocated_before_a_capture_waits_for_its_last_user() {
    let runtime = tight();
    let gpu = runtime.device(0).unwrap();
    let [former, home, other] = [(); 3].map(|()| gpu.device().stream_from_pool(0).unwrap());
    drop_after_fill(&runtime, &former);
    let small = Storage::device(&runtime, N, &home).unwrap();
    fill(&home, &small, 0);
    // The allocator makes `home` wait for `former`. This wait is not a numbered operation of
    // `home`.
    let again = Storage::device(&runtime, MOST, &home).unwrap();
    let capture = Capturing::begin(&runtime, &home, &GraphPool::new(gpu)).unwrap();
    fill(&other, &again, 1);
    other.synchronize().unwrap();
    drop(capture);
    former.synchronize().unwrap();
    let pinned = Storage::pinned(&runtime, N).unwrap();
    for at in (0..MOST).step_by(1 << 20) {
        copy_bytes(&other, (&pinned, 0), (&again, at), N, true, Location::caller()).unwrap();
        assert_eq!(first(&pinned), 1, "at {at}");
    }
}

#[test]
fn memory_that_two_captures_used_waits_for_both() {
    for seed in 0..16 {
        let sim = SimConfig { schedule: Schedule::Seeded(seed), ..SimConfig::new(1) }.build();
        let runtime = Runtime::new(sim, RuntimeConfig::default()).unwrap();
        let gpu = runtime.device(0).unwrap();
        let [a, b, joins] = [(); 3].map(|()| gpu.device().stream_from_pool(0).unwrap());
        let [seen, elsewhere] = [(); 2].map(|()| device_filled(&runtime, &a, 0));
        let fill = |storage: &Storage, value| {
            let (value, here) = (MemsetValue::U8(value), Location::caller());
            memset(&b, (storage, 0), value, N, "memset", here).unwrap();
        };
        let copy = |stream: &Stream, to: &Storage, from: &Storage| {
            copy_bytes(stream, (to, 0), (from, 0), N, true, Location::caller()).unwrap();
        };
        let pool = GraphPool::new(gpu);
        let other = Capturing::begin(&runtime, &a, &pool).unwrap();
        let capture = Capturing::begin(&runtime, &b, &pool).unwrap();
        let made = Storage::device(&runtime, N, &b).unwrap();
        fill(&made, 7);
        joins.wait_stream(&b).unwrap();
        copy(&a, &elsewhere, &made);
        copy(&joins, &seen, &made);
        drop(made);
        drop(other.end().unwrap());
        // If this allocation reused the memory of `made`, the fill could write it before a replay
        // copies it to `seen`.
        fill(&Storage::device(&runtime, N, &b).unwrap(), 9);
        capture.end().unwrap().replay(&a).unwrap();
        let pinned = Storage::pinned(&runtime, N).unwrap();
        copy(&a, &pinned, &seen);
        assert_eq!(first(&pinned), 7, "seed {seed}");
    }
}

#[test]
fn dropping_memory_of_another_device_invalidates_no_capture() {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(2) }.build();
    let runtime = Runtime::new(sim, RuntimeConfig::default()).unwrap();
    let gpus = [0, 1].map(|index| runtime.device(index).unwrap());
    let [one, two] = gpus.map(|gpu| gpu.device().stream_from_pool(0).unwrap());
    let (seven, copied) = (device_filled(&runtime, &one, 7), device_filled(&runtime, &two, 0));
    copy_bytes(&two, (&copied, 0), (&seven, 0), N, true, Location::caller()).unwrap();
    let capture = Capturing::begin(&runtime, &two, &GraphPool::new(gpus[1])).unwrap();
    drop(seven);
    // This allocation makes the allocator query whether the captured stream has completed its use of
    // the dropped memory.
    drop(Storage::device(&runtime, N, &one).unwrap());
    capture.end().unwrap();
    let pinned = Storage::pinned(&runtime, N).unwrap();
    copy_bytes(&two, (&pinned, 0), (&copied, 0), N, true, Location::caller()).unwrap();
    assert_eq!(first(&pinned), 7);
    gpus[0].allocator().empty_cache();
    assert_eq!(gpus[0].allocator().memory_reserved(), 0);
}
