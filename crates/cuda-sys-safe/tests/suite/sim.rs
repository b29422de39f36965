//! Rules of the simulated driver that cannot be checked on a GPU.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline_cuda_sys_safe::owned::{DeviceMemory, Event, HostMemory, LaunchToken, Stream};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

fn sim(devices: usize, schedule: Schedule) -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig { schedule, ..SimConfig::new(devices) }.build();
    (sim.clone(), sim)
}

fn non_blocking(driver: &Arc<dyn Driver>, device: usize) -> Stream {
    Stream::new(driver, device, StreamFlags { non_blocking: true, priority: 0 }).unwrap()
}

fn end(memory: &DeviceMemory) -> CopyEnd {
    CopyEnd::Device { device: memory.device(), ptr: memory.ptr() }
}

fn set(stream: &Stream, memory: &DeviceMemory, value: u8) {
    let value = MemsetValue::U8(value);
    // SAFETY: the memory outlives its work in every test here.
    unsafe { stream.driver().memset_async(memory.ptr(), value, memory.bytes(), stream.handle()) }
        .unwrap();
}

fn copy(stream: &Stream, dst: CopyEnd, src: CopyEnd, bytes: usize) -> Result<()> {
    // SAFETY: both ends outlive their work in every test here.
    unsafe { stream.driver().memcpy_async(&Copy { dst, src, bytes }, stream.handle()) }
}

fn read(memory: &DeviceMemory, driver: &Arc<dyn Driver>) -> Result<Vec<u8>> {
    let mut out = vec![0u8; memory.bytes()];
    let dst = CopyEnd::Host(NonNull::new(out.as_mut_ptr()).unwrap());
    let request = Copy { dst, src: end(memory), bytes: out.len() };
    // SAFETY: `out` has this many bytes, and the copy is synchronous.
    unsafe { driver.memcpy(memory.device(), &request) }?;
    Ok(out)
}

#[test]
fn a_missing_wait_shows_as_wrong_data() {
    let (_, driver) = sim(1, Schedule::Lazy);
    let (a, b) = (non_blocking(&driver, 0), non_blocking(&driver, 0));
    let from = DeviceMemory::new(&driver, 0, 64).unwrap();
    let to = DeviceMemory::new(&driver, 0, 64).unwrap();
    set(&a, &from, 7);
    copy(&b, end(&to), end(&from), 64).unwrap();
    b.synchronize().unwrap();
    assert_eq!(read(&to, &driver).unwrap(), [0; 64], "the copy did not wait");

    let event = Event::new(&driver, 0, EventFlags::default()).unwrap();
    event.record(&a).unwrap();
    b.wait_event(&event).unwrap();
    copy(&b, end(&to), end(&from), 64).unwrap();
    b.synchronize().unwrap();
    assert_eq!(read(&to, &driver).unwrap(), [7; 64], "the copy waited");
}

#[test]
fn seeds_differ_and_repeat() {
    let run = |seed| {
        let (_, driver) = sim(1, Schedule::Seeded(seed));
        let streams: Vec<_> = (0..4).map(|_| non_blocking(&driver, 0)).collect();
        let memory = DeviceMemory::new(&driver, 0, 1).unwrap();
        for round in 0..8 {
            for (i, stream) in streams.iter().enumerate() {
                set(stream, &memory, (round * 4 + i) as u8);
            }
        }
        driver.synchronize(0).unwrap();
        read(&memory, &driver).unwrap()[0]
    };
    let outcomes: std::collections::BTreeSet<u8> = (0..32).map(run).collect();
    assert!(outcomes.len() > 1, "{outcomes:?}");
    assert!((0..32).all(|seed| run(seed) == run(seed)));
}

#[test]
fn polling_ends_under_the_laziest_schedule() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let stream = non_blocking(&driver, 0);
    let memory = DeviceMemory::new(&driver, 0, 8).unwrap();
    (0..5).for_each(|i| set(&stream, &memory, i));
    assert_eq!(sim.pending(), 5);
    let mut polls = 0;
    while !stream.query().unwrap() {
        polls += 1;
    }
    assert_eq!(polls, 4);
    assert_eq!(sim.usage().host_waits, 0, "a query is not a wait");
}

#[test]
fn a_device_pointer_is_no_host_pointer() {
    let (_, driver) = sim(1, Schedule::Eager);
    let memory = DeviceMemory::new(&driver, 0, 64).unwrap();
    let stream = non_blocking(&driver, 0);
    let forged = NonNull::new(memory.ptr().addr() as *mut u8).unwrap();
    let error = copy(&stream, end(&memory), CopyEnd::Host(forged), 64).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::INVALID_VALUE));
    assert!(error.to_string().contains("device address"), "{error}");
}

#[test]
fn copies_beyond_an_allocation_are_refused_when_called() {
    let (_, driver) = sim(2, Schedule::Lazy);
    let memory = DeviceMemory::new(&driver, 0, 100).unwrap();
    let other = DeviceMemory::new(&driver, 0, 200).unwrap();
    let stream = non_blocking(&driver, 0);
    let refused = |r: Result<()>| assert_eq!(r.unwrap_err().code(), Some(CudaCode::INVALID_VALUE));
    refused(copy(&stream, end(&memory), end(&other), 101));
    let wrong = CopyEnd::Device { device: 1, ptr: memory.ptr() };
    refused(copy(&stream, wrong, end(&other), 1));
    copy(&stream, end(&memory), end(&other), 100).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn faults_hit_the_call_they_name() {
    let (sim, driver) = sim(2, Schedule::Eager);
    for &call in CallKind::ALL {
        sim.inject(Fault::new(call, CudaCode::UNKNOWN).on(1));
    }
    DeviceMemory::new(&driver, 0, 1).unwrap();
    let error = DeviceMemory::new(&driver, 1, 1).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::UNKNOWN));
    assert!(error.to_string().contains("cuMemAlloc_v2 failed on cuda:1"), "{error}");
    assert!(error.to_string().contains("tests/suite/sim.rs"), "{error}");
    DeviceMemory::new(&driver, 1, 1).unwrap();
    assert!(driver.lost(1).is_none(), "not sticky");
}

#[test]
fn an_asynchronous_fault_loses_every_device() {
    for isolate_faults in [false, true] {
        let config = SimConfig { isolate_faults, schedule: Schedule::Lazy, ..SimConfig::new(2) };
        let sim = config.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let kept = DeviceMemory::new(&driver, 0, 8).unwrap();
        let (memory, other) = (DeviceMemory::new(&driver, 1, 8).unwrap(), non_blocking(&driver, 0));
        let stream = non_blocking(&driver, 1);
        let fault = Fault::new(CallKind::MemsetAsync, CudaCode::ILLEGAL_ADDRESS).after(1).at_run();
        sim.inject(fault);
        (0..3).for_each(|i| set(&stream, &memory, i));
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(error, DriverError::Cuda(_)), "{error}");
        assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(error, DriverError::DeviceLost { device: 1, .. }), "{error}");
        assert!(driver.lost(1).is_some());
        if isolate_faults {
            assert!(driver.lost(0).is_none());
            assert_eq!(read(&kept, &driver).unwrap(), [0; 8], "the other device works");
        } else {
            for error in [
                driver.lost(0).unwrap(),
                other.synchronize().unwrap_err(),
                driver.properties(0).unwrap_err(),
                read(&kept, &driver).unwrap_err(),
                DeviceMemory::new(&driver, 0, 8).unwrap_err(),
            ] {
                let DriverError::DeviceLost { device: 0, cause } = &error else {
                    panic!("{error}")
                };
                assert_eq!((cause.code, cause.device), (CudaCode::ILLEGAL_ADDRESS, Some(1)));
                assert!(error.to_string().contains("the process has to end"), "{error}");
            }
            let unknown = driver.pointer_kind(kept.ptr().addr()).unwrap_err();
            assert!(matches!(unknown, DriverError::DeviceLost { .. }), "{unknown}");
            // A lost device accepts every release, even of an invalid address. The real driver is
            // not called in this state.
            // SAFETY: the device is lost, so nothing is freed.
            unsafe { driver.mem_free(0, kept.ptr().offset(4)) }.unwrap();
        }
        drop((kept, memory, other, stream));
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
        assert_eq!(sim.pending(), 0);
    }
}

/// The first call after a fault returns the fault's code, whatever its device. All later calls
/// report a lost device.
#[test]
fn the_first_call_on_any_device_returns_the_fault() {
    let (sim, driver) = sim(2, Schedule::Lazy);
    let (here, there) = (non_blocking(&driver, 0), non_blocking(&driver, 1));
    sim.lose_device(1, CudaCode::DEVICE_UNAVAILABLE);
    let first = here.synchronize().unwrap_err();
    assert!(matches!(first, DriverError::Cuda(_)), "{first}");
    assert_eq!(first.code(), Some(CudaCode::DEVICE_UNAVAILABLE));
    let then = there.synchronize().unwrap_err();
    assert!(matches!(then, DriverError::DeviceLost { device: 1, .. }), "{then}");
}

#[test]
fn host_functions_run_in_order_unlocked_and_may_not_call() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let stream = non_blocking(&driver, 0);
    let hits = Arc::new(AtomicUsize::new(0));
    for i in 0..3 {
        let (hits, driver) = (hits.clone(), driver.clone());
        let f = move || {
            assert_eq!(hits.fetch_add(1, Ordering::SeqCst), i);
            let error = driver.mem_alloc(0, 8).unwrap_err();
            assert_eq!(error.code(), Some(CudaCode::NOT_PERMITTED));
        };
        // SAFETY: the stream is alive.
        unsafe { stream.driver().launch_host_func(stream.handle(), Box::new(f)) }.unwrap();
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
    stream.synchronize().unwrap();
    assert_eq!(hits.load(Ordering::SeqCst), 3);
    // SAFETY: the stream is alive.
    unsafe { driver.launch_host_func(stream.handle(), Box::new(|| panic!("in a callback"))) }
        .unwrap();
    stream.synchronize().expect("the driver never sees a panic");
    drop(stream);
    drop(driver);
    assert!(sim.usage().all_released());
}

#[test]
fn pinned_copies_read_when_they_run_and_freed_memory_is_refused() {
    let (_, driver) = sim(1, Schedule::Lazy);
    let stream = non_blocking(&driver, 0);
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    let host = HostMemory::pinned(&driver, 0, 4).unwrap();
    copy(&stream, end(&memory), CopyEnd::Host(host.as_ptr()), 4).unwrap();
    // SAFETY: under this schedule the copy has not run. The test shows the race with the copy.
    unsafe { host.as_ptr().as_ptr().write_bytes(9, 4) };
    stream.synchronize().unwrap();
    assert_eq!(read(&memory, &driver).unwrap(), [9; 4]);
    let ptr = host.as_ptr();
    drop(host);
    let error = copy(&stream, end(&memory), CopyEnd::Host(ptr), 4).unwrap_err();
    assert!(error.to_string().contains("freed"), "{error}");
}

#[test]
fn allocations_count_against_the_capacity() {
    let sim = SimConfig { capacity: 1 << 20, ..SimConfig::new(1) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let half = DeviceMemory::new(&driver, 0, 1 << 19).unwrap();
    assert!(DeviceMemory::new(&driver, 0, (1 << 19) + 1).unwrap_err().is_out_of_memory());
    assert!(DeviceMemory::new(&driver, 0, usize::MAX).unwrap_err().is_out_of_memory());
    assert_eq!(driver.mem_info(0).unwrap(), MemInfo { free: 1 << 19, total: 1 << 20 });
    assert_eq!(driver.process_memory(0), Some(1 << 19));
    assert_eq!(sim.usage().devices[0].allocated_bytes, 1 << 19);
    drop(half);
    assert!(sim.usage().all_released());
    assert_eq!(sim.usage().count(CallKind::MemAlloc), 3);
    let full_size = SimConfig::new(1).build();
    let all = full_size.mem_info(0).unwrap().free;
    let ptr = full_size.mem_alloc(0, all).unwrap();
    // SAFETY: the memory was just allocated.
    unsafe { full_size.mem_free(0, ptr) }.unwrap();
}

#[test]
fn contexts_are_created_on_first_use() {
    let (_, driver) = sim(2, Schedule::Eager);
    driver.properties(1).unwrap();
    driver.pointer_kind(0x1000).unwrap();
    driver.can_access_peer(1, 0).unwrap();
    assert!(!driver.primary_context_active(1).unwrap());
    driver.mem_info(1).unwrap();
    assert!(driver.primary_context_active(1).unwrap());
    assert!(!driver.primary_context_active(0).unwrap());
}

#[test]
fn visible_devices_are_chosen_and_ordered() {
    let build = |text: &str| SimConfig { visible: Some(text.into()), ..SimConfig::new(3) }.build();
    let uuid = |sim: &SimDriver, d| sim.properties(d).unwrap().uuid;
    let all = SimConfig::new(3).build();
    let swapped = build("2,0");
    assert_eq!(swapped.device_count(), 2);
    assert_eq!(uuid(&swapped, 0), uuid(&all, 2));
    assert_eq!(uuid(&swapped, 1), uuid(&all, 0));
    let none = build("");
    assert_eq!(none.device_count(), 0);
    let error = none.mem_alloc(0, 1).unwrap_err();
    assert!(matches!(error, DriverError::InvalidDevice { device: 0, count: 0 }));
}

#[test]
fn blocking_launches_wait() {
    let sim = SimConfig { launch_blocking: true, schedule: Schedule::Lazy, ..SimConfig::new(1) };
    let sim = sim.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let stream = non_blocking(&driver, 0);
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    set(&stream, &memory, 1);
    assert_eq!(sim.pending(), 0);
    sim.inject(Fault::new(CallKind::MemsetAsync, CudaCode::LAUNCH_FAILED).at_run());
    let value = MemsetValue::U8(1);
    // SAFETY: the memory is alive.
    let error = unsafe { driver.memset_async(memory.ptr(), value, 4, stream.handle()) };
    assert_eq!(error.unwrap_err().code(), Some(CudaCode::LAUNCH_FAILED));
}

fn timing(driver: &Arc<dyn Driver>) -> Event {
    Event::new(driver, 0, EventFlags { timing: true, ..EventFlags::default() }).unwrap()
}

#[test]
fn a_wait_keeps_its_record_when_the_event_is_recorded_again() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let (a, b) = (non_blocking(&driver, 0), non_blocking(&driver, 0));
    let (x, y) =
        (DeviceMemory::new(&driver, 0, 4).unwrap(), DeviceMemory::new(&driver, 0, 4).unwrap());
    let (event, start) = (timing(&driver), timing(&driver));
    set(&a, &x, 1);
    event.record(&a).unwrap();
    start.record(&a).unwrap();
    b.wait_event(&event).unwrap();
    set(&a, &x, 2);
    event.record(&a).unwrap();
    copy(&b, end(&y), end(&x), 4).unwrap();
    b.synchronize().unwrap();
    assert_eq!(sim.pending(), 3, "only the first record was waited for");
    let code = start.elapsed(&event).unwrap_err().code();
    assert_eq!(code, Some(CudaCode::NOT_READY));
    event.synchronize().unwrap();
    assert!(start.elapsed(&event).unwrap() > 0.0);
    assert_eq!(read(&y, &driver).unwrap(), [1; 4]);
    assert_eq!(read(&x, &driver).unwrap(), [2; 4]);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let default = Stream::default_of(&driver, 0);
    let blocking = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let free = non_blocking(&driver, 0);
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    set(&free, &memory, 1);
    set(&blocking, &memory, 2);
    set(&default, &memory, 3);
    default.synchronize().unwrap();
    assert_eq!(sim.pending(), 1, "the blocking stream's work was waited for");
    set(&default, &memory, 4);
    set(&blocking, &memory, 5);
    blocking.synchronize().unwrap();
    assert_eq!(sim.pending(), 1, "the default stream's work was waited for");
}

#[test]
fn frees_wait_for_the_device() {
    let (sim, driver) = sim(2, Schedule::Lazy);
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    let other = DeviceMemory::new(&driver, 0, 4).unwrap();
    let far = DeviceMemory::new(&driver, 1, 4).unwrap();
    set(&non_blocking(&driver, 0), &memory, 1);
    set(&non_blocking(&driver, 1), &far, 1);
    drop(other);
    assert_eq!(sim.pending(), 1, "the free waited for another device, too");
    assert_eq!(sim.usage().host_waits, 1);
}

#[test]
fn unmapping_under_unfinished_work_faults() {
    let (_, driver) = sim(1, Schedule::Lazy);
    let page = driver.mem_granularity(0).unwrap();
    let stream = non_blocking(&driver, 0);
    let base = driver.address_reserve(0, page).unwrap();
    let piece = driver.mem_create(0, page).unwrap();
    let set = |base| {
        // SAFETY: the simulator checks the access. The mapping has no access on purpose.
        unsafe { driver.memset_async(base, MemsetValue::U8(1), 4, stream.handle()) }
    };
    // SAFETY: the handles are live. The simulator refuses the access when the work runs.
    unsafe {
        driver.mem_map(base, page, 0, piece).unwrap();
        let error = set(base).and_then(|()| stream.synchronize()).unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS), "no access was set");
    }
    let (sim, driver) = self::sim(1, Schedule::Lazy);
    let stream = non_blocking(&driver, 0);
    let base = driver.address_reserve(0, page).unwrap();
    let piece = driver.mem_create(0, page).unwrap();
    // SAFETY: the handles are live. The memory is unmapped too early on purpose, and the simulator
    // refuses the access when the work runs.
    unsafe {
        driver.mem_map(base, page, 0, piece).unwrap();
        driver.mem_set_access(0, base, page, &[(0, MemAccess::ReadWrite)]).unwrap();
        driver.memset_async(base, MemsetValue::U8(1), 4, stream.handle()).unwrap();
        driver.mem_unmap(0, base, page).unwrap();
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
        driver.mem_release(piece).unwrap();
        driver.address_free(0, base, page).unwrap();
    }
    drop(stream);
    assert!(sim.usage().all_released(), "releases on a lost device succeed");
}

#[test]
fn pool_memory_lives_in_stream_order() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let (a, b) = (non_blocking(&driver, 0), non_blocking(&driver, 0));
    let pool = driver.mempool_create(0).unwrap();
    // SAFETY: the handles are live. The missing wait is the point of the test.
    unsafe {
        let ptr = driver.mem_alloc_async(pool, 1000, a.handle()).unwrap();
        assert_eq!(sim.usage().devices[0].used_bytes, 1024);
        driver.mem_free_async(ptr, a.handle()).unwrap();
        let twice = driver.mem_free_async(ptr, a.handle()).unwrap_err();
        assert_eq!(twice.code(), Some(CudaCode::INVALID_VALUE));
        a.synchronize().unwrap();
        assert_eq!(sim.usage().devices[0].used_bytes, 0, "returned by the synchronization");
        driver.mempool_release_threshold(pool, 2048).unwrap();
        let ptr = driver.mem_alloc_async(pool, 1000, a.handle()).unwrap();
        driver.mem_free_async(ptr, a.handle()).unwrap();
        a.synchronize().unwrap();
        assert_eq!(sim.usage().devices[0].used_bytes, 1024, "kept up to the threshold");
        driver.mempool_trim(pool, 0).unwrap();
        assert_eq!(sim.usage().devices[0].used_bytes, 0, "trimmed");
        let ptr = driver.mem_alloc_async(pool, 1000, a.handle()).unwrap();
        driver.memset_async(ptr, MemsetValue::U8(1), 4, b.handle()).unwrap();
        let error = b.synchronize().unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
        assert!(driver.lost(0).unwrap().to_string().contains("stream order"));
    }
}

#[test]
fn virtual_time_shows_overlap() {
    let time = |streams: usize| {
        let (sim, driver) = sim(1, Schedule::Seeded(1));
        let streams: Vec<_> = (0..streams).map(|_| non_blocking(&driver, 0)).collect();
        let bytes = 1 << 20;
        let memory = DeviceMemory::new(&driver, 0, 8 * bytes).unwrap();
        let host = HostMemory::pinned(&driver, 0, bytes).unwrap();
        for i in 0..8 {
            let ptr = memory.range(i * bytes, bytes).unwrap();
            let dst = CopyEnd::Device { device: 0, ptr };
            let stream = &streams[i % streams.len()];
            copy(stream, dst, CopyEnd::Host(host.as_ptr()), bytes).unwrap();
        }
        driver.synchronize(0).unwrap();
        sim.virtual_time(0)
    };
    assert!(time(4) < 0.5 * time(1), "{} {}", time(4), time(1));
}

#[test]
fn handles_for_other_processes_do_not_open_here() {
    let (_, driver) = sim(1, Schedule::Lazy);
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    // SAFETY: the memory is alive.
    let handle = unsafe { driver.ipc_mem_handle(0, memory.ptr()) }.unwrap();
    let error = driver.ipc_open_mem(0, handle).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::INVALID_CONTEXT));
    // SAFETY: the driver refuses the address.
    unsafe { driver.ipc_mem_handle(0, DevicePtr::NULL) }.unwrap_err();
}

#[cfg(unix)]
#[test]
fn calls_in_a_forked_child_name_the_fork() {
    let (_, driver) = sim(1, Schedule::Lazy);
    // SAFETY: the child makes only one call, which returns before it takes a lock, and then exits.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let refused = matches!(driver.mem_info(0), Err(DriverError::ForkedChild { .. }));
            libc::_exit(if refused { 0 } else { 1 });
        }
        let mut status = -1;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!(status, 0);
    driver.mem_info(0).unwrap();
}

#[test]
fn unlinked_peers_have_no_access() {
    let config = SimConfig { unlinked_peers: vec![(0, 2)], ..SimConfig::new(3) };
    let sim = SimConfig { visible: Some("2,1,0".into()), ..config }.build();
    assert!(!sim.can_access_peer(0, 2).unwrap() && !sim.can_access_peer(2, 0).unwrap());
    assert!(sim.can_access_peer(0, 1).unwrap());
    let error = sim.enable_peer_access(2, 0).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::PEER_ACCESS_UNSUPPORTED));
    let error = sim.enable_peer_access(2, 3).unwrap_err();
    assert!(matches!(error, DriverError::InvalidDevice { device: 3, count: 3 }));
}

#[test]
fn host_functions_of_a_lost_device_are_dropped() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let stream = non_blocking(&driver, 0);
    let host = HostMemory::pinned(&driver, 0, 4).unwrap();
    let (say, heard) = std::sync::mpsc::channel::<()>();
    let f = move || {
        let _keep = &host;
        say.send(()).unwrap();
    };
    // SAFETY: the stream is alive.
    unsafe { driver.launch_host_func(stream.handle(), Box::new(f)) }.unwrap();
    sim.lose_device(0, CudaCode::DEVICE_UNAVAILABLE);
    assert!(heard.recv().is_err(), "dropped, not run");
    assert_eq!(sim.usage().host_allocations, 0, "the function's memory was not released");
}

#[test]
fn objects_of_two_drivers_do_not_mix() {
    let (_, here) = sim(1, Schedule::Lazy);
    let (_, there) = sim(1, Schedule::Lazy);
    let (ours, theirs) = (non_blocking(&here, 0), non_blocking(&there, 0));
    let flags = EventFlags { timing: true, ..EventFlags::default() };
    let (a, b) = (Event::new(&here, 0, flags).unwrap(), Event::new(&there, 0, flags).unwrap());
    a.record(&ours).unwrap();
    b.record(&theirs).unwrap();
    // SAFETY: the capture contains no work.
    let token = unsafe { LaunchToken::new() };
    let graph = ours.begin_capture(CaptureMode::Relaxed, token).unwrap().end().unwrap();
    let exec = graph.instantiate().unwrap();
    // SAFETY: the graph is empty, so a replay uses no memory.
    let launched = unsafe { exec.launch(&theirs) };
    let answers = [a.record(&theirs), a.elapsed(&b).map(drop), ours.wait_event(&b), launched];
    for answer in answers {
        assert!(matches!(answer, Err(DriverError::InvalidArgument { .. })), "{answer:?}");
    }
}

#[test]
fn replays_of_one_executable_run_one_after_another() {
    let (sim, driver) = sim(1, Schedule::Lazy);
    let (a, b) = (non_blocking(&driver, 0), non_blocking(&driver, 0));
    let memory = DeviceMemory::new(&driver, 0, 4).unwrap();
    // SAFETY: the captured memory outlives every replay.
    let token = unsafe { LaunchToken::new() };
    let capture = a.begin_capture(CaptureMode::Relaxed, token).unwrap();
    set(&a, &memory, 1);
    let exec = capture.end().unwrap().instantiate().unwrap();
    for stream in [&a, &b] {
        // SAFETY: the captured memory outlives every replay.
        unsafe { exec.launch(stream) }.unwrap();
    }
    assert_eq!(sim.pending(), 2);
    b.synchronize().unwrap();
    assert_eq!(sim.pending(), 0, "the second replay ran before the first");
}
