//! Mappings, graphs and pools.

use super::*;

#[test]
#[ignore = "needs a GPU"]
fn gpu_memory_can_be_mapped_twice() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let page = driver.mem_granularity(0).unwrap();
    assert!(page.is_power_of_two() && page >= 1 << 16);
    let reservation = Reservation::new(&driver, 0, 4 * page).unwrap();
    let memory = PhysicalMemory::new(&driver, 0, 2 * page).unwrap();
    let access = [(0, MemAccess::ReadWrite)];
    let first = reservation.map(0, &memory, 0, 2 * page).unwrap();
    let second = reservation.map(2 * page, &memory, 0, 2 * page).unwrap();
    for mapping in [&first, &second] {
        mapping.set_access(&access).unwrap();
    }
    // A range across the boundary of two mappings.
    let values = ramp(1000);
    upload(&stream, first.range(page - 2000, 4000).unwrap(), &values);
    assert_eq!(download(&stream, second.range(page - 2000, 4000).unwrap(), 1000), values);
    assert_eq!(driver.pointer_kind(second.ptr().addr()).unwrap(), PointerKind::Device(0));

    // Ranges that are out of bounds or already mapped.
    for (offset, from, bytes) in
        [(3 * page, 0, 2 * page), (0, page, 2 * page), (usize::MAX, 0, page)]
    {
        let error = reservation.map(offset, &memory, from, bytes).unwrap_err();
        assert!(matches!(error, DriverError::InvalidArgument { .. }), "{error}");
    }
    assert!(reservation.map(0, &memory, 0, page).is_err());
    assert!(first.range(2 * page, 1).is_err());

    // A mapping keeps its memory and its reservation alive. Its addresses can be mapped again
    // later.
    drop((second, memory));
    assert_eq!(download(&stream, first.range(page - 2000, 4000).unwrap(), 1000), values);
    drop(first);
    let other = PhysicalMemory::new(&driver, 0, page).unwrap();
    let again = reservation.map(page, &other, 0, page).unwrap();
    again.set_access(&access).unwrap();
    drop(reservation);
    upload(&stream, again.ptr(), &values);
    assert_eq!(download(&stream, again.ptr(), 1000), values);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_graph_replays_its_kernels() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let x = DeviceMemory::new(&driver, 0, 4096).unwrap();
    upload(&stream, x.ptr(), &[0.0; 64]);
    let add = kernel(&driver, 0, c"add");
    launch(&stream, &add, 64, &[x.ptr()], &add_params(64, 0.0)).unwrap();
    stream.synchronize().unwrap();

    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
    // SAFETY: captured work is not replayed after its memory is freed.
    let token = unsafe { LaunchToken::new() };
    let capture = stream.begin_capture(CaptureMode::Global, token).unwrap();
    assert!(matches!(stream.capture_status().unwrap(), CaptureStatus::Active(_)));
    launch(&stream, &add, 64, &[x.ptr()], &add_params(64, 1.0)).unwrap();
    // Allocation is allowed in relaxed mode only.
    let old = driver.exchange_capture_mode(0, CaptureMode::Relaxed).unwrap();
    assert_eq!(old, CaptureMode::Global);
    let _meanwhile = DeviceMemory::new(&driver, 0, MIB).unwrap();
    assert_eq!(driver.exchange_capture_mode(0, old).unwrap(), CaptureMode::Relaxed);
    launch(&stream, &add, 64, &[x.ptr()], &add_params(32, 10.0)).unwrap();
    let graph = capture.end().unwrap();
    assert_eq!(download(&stream, x.ptr(), 64), vec![0.0; 64], "captured work ran");

    let exec = graph.instantiate().unwrap();
    drop(graph);
    for _ in 0..3 {
        // SAFETY: the captured memory is still alive.
        unsafe { exec.launch(&stream) }.unwrap();
    }
    drop(exec); // a replay may still be running
    let expected: Vec<f32> = (0..64).map(|i| if i < 32 { 33.0 } else { 3.0 }).collect();
    assert_eq!(download(&stream, x.ptr(), 64), expected);

    // A forbidden call invalidates the capture, and has no other effect.
    let capture = stream.begin_capture(CaptureMode::ThreadLocal, token).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::Invalidated);
    let error = capture.end().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::STREAM_CAPTURE_INVALIDATED));
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_pools_allocate_in_stream_order() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let pool = MemPool::new(&driver, 0).unwrap();
    pool.set_release_threshold(u64::MAX).unwrap();
    let memory = pool.alloc(4 * MIB, &stream).unwrap();
    let ptr = memory.ptr();
    upload(&stream, ptr, &ramp(1000));
    assert_eq!(download(&stream, ptr, 1000), ramp(1000));
    drop(memory);
    let again = pool.alloc(4 * MIB, &stream).unwrap();
    assert_eq!(again.ptr(), ptr, "the pool reuses a freed block");
    drop(again);
    stream.synchronize().unwrap();
    let before = driver.mem_info(0).unwrap().free;
    pool.trim(0).unwrap();
    assert!(driver.mem_info(0).unwrap().free >= before + 4 * MIB);
}
