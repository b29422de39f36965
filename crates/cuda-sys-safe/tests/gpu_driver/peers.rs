//! Copies, events and kernels across devices.

use super::*;

fn two_gpus() -> (MutexGuard<'static, ()>, Arc<dyn Driver>) {
    let (one, driver) = gpu();
    assert!(driver.device_count() >= 2, "gpu2_ tests need two GPUs");
    (one, driver)
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_copies_between_devices_are_right() {
    let (_one, driver) = two_gpus();
    let stream = stream(&driver);
    let n = 100_000;
    let here = DeviceMemory::new(&driver, 0, 4 * n).unwrap();
    let there = DeviceMemory::new(&driver, 1, 4 * n).unwrap();
    let back = DeviceMemory::new(&driver, 0, 4 * n).unwrap();
    upload(&stream, here.ptr(), &ramp(n));
    copy(&stream, on(1, there.ptr()), on(0, here.ptr()), 4 * n);
    copy(&stream, on(0, back.ptr()), on(1, there.ptr()), 4 * n);
    assert_eq!(download(&stream, back.ptr(), n), ramp(n));
    assert_eq!(driver.pointer_kind(there.ptr().addr()).unwrap(), PointerKind::Device(1));
    let copy = Copy { dst: on(0, here.ptr()), src: on(1, there.ptr()), bytes: 4 * n };
    // SAFETY: both ranges are live, and the copy is synchronous.
    unsafe { driver.memcpy(0, &copy) }.unwrap();

    // A stream can wait for an event of another device. An event can be recorded only on its own
    // device.
    let event = Event::new(&driver, 1, EventFlags::default()).unwrap();
    let other = Stream::new(&driver, 1, StreamFlags::default()).unwrap();
    event.record(&other).unwrap();
    stream.wait_event(&event).unwrap();
    assert_eq!(event.record(&stream).unwrap_err().code(), Some(CudaCode::INVALID_HANDLE));
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_kernel_reads_a_peer() {
    let (_one, driver) = two_gpus();
    assert!(driver.can_access_peer(0, 1).unwrap());
    driver.enable_peer_access(0, 1).unwrap();
    driver.enable_peer_access(0, 1).unwrap();
    let stream = stream(&driver);
    let there = Stream::new(&driver, 1, StreamFlags::default()).unwrap();
    let source = DeviceMemory::new(&driver, 1, 4096).unwrap();
    upload(&there, source.ptr(), &ramp(1024));
    let out = DeviceMemory::new(&driver, 0, 4096).unwrap();
    let next = kernel(&driver, 0, c"next");
    launch(&stream, &next, 1024, &[out.ptr(), source.ptr()], &[]).unwrap();
    let expected: Vec<f32> = (0..1024).map(|i| i as f32 + 1.0).collect();
    assert_eq!(download(&stream, out.ptr(), 1024), expected);
    // SAFETY: no work is running.
    let disable = || unsafe { driver.disable_peer_access(0, 1) };
    disable().unwrap();
    let error = disable().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::PEER_ACCESS_NOT_ENABLED));
}
