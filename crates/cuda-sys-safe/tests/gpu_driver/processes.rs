//! Tests that need a separate process or several threads.

use super::*;

/// Runs `body` in a child process. The child runs the same test, and an environment variable tells
/// it to run `body`.
pub(super) fn in_child(name: &str, body: impl FnOnce()) {
    const INSIDE: &str = "WARPLINE_TEST_INSIDE";
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        return body();
    }
    let _alone = alone();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--ignored", "--nocapture"])
        .env(INSIDE, name)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_an_illegal_address_loses_the_device_for_good() {
    in_child("gpu_an_illegal_address_loses_the_device_for_good", || {
        let driver = real::load().unwrap();
        let stream = stream(&driver);
        let memory = DeviceMemory::new(&driver, 0, MIB).unwrap();
        let pinned = HostMemory::pinned(&driver, 0, MIB).unwrap();
        let event = Event::new(&driver, 0, EventFlags::default()).unwrap();
        let add = kernel(&driver, 0, c"add");
        // SAFETY: violated on purpose, to make the kernel fail.
        let nowhere = unsafe { DevicePtr::from_raw(0x10) };
        launch(&stream, &add, 32, &[nowhere], &add_params(32, 1.0)).unwrap();

        let first = stream.synchronize().unwrap_err();
        assert!(matches!(first, DriverError::Cuda(_)), "{first}");
        assert_eq!(first.code(), Some(CudaCode::ILLEGAL_ADDRESS), "{first}");
        let lost = |error: DriverError| {
            assert!(matches!(error, DriverError::DeviceLost { device: 0, .. }), "{error}");
            assert_eq!(error.code(), Some(CudaCode::ILLEGAL_ADDRESS));
        };
        lost(driver.lost(0).unwrap());
        lost(stream.synchronize().unwrap_err());
        lost(event.record(&stream).unwrap_err());
        lost(DeviceMemory::new(&driver, 0, 1).unwrap_err());
        lost(driver.properties(0).unwrap_err());
        lost(launch(&stream, &add, 32, &[memory.ptr()], &add_params(0, 0.0)).unwrap_err());
        // A release on a lost device succeeds and does nothing.
        // SAFETY: freed once here, and the owner is forgotten below.
        unsafe { driver.mem_free(0, memory.ptr()) }.unwrap();
        std::mem::forget(memory);
        drop((stream, pinned, event, add));
    });
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_an_illegal_address_loses_the_other_device_too() {
    in_child("gpu2_an_illegal_address_loses_the_other_device_too", || {
        let driver = real::load().unwrap();
        let stream = stream(&driver);
        let there = Stream::new(&driver, 1, StreamFlags::default()).unwrap();
        let memory = DeviceMemory::new(&driver, 1, MIB).unwrap();
        let add = kernel(&driver, 0, c"add");
        // SAFETY: violated on purpose, to make the kernel fail.
        let nowhere = unsafe { DevicePtr::from_raw(0x10) };
        launch(&stream, &add, 32, &[nowhere], &add_params(32, 1.0)).unwrap();
        let first = stream.synchronize().unwrap_err();
        assert_eq!(first.code(), Some(CudaCode::ILLEGAL_ADDRESS), "{first}");
        let lost = there.synchronize().unwrap_err();
        assert!(matches!(lost, DriverError::DeviceLost { device: 1, .. }), "{lost}");
        drop((memory, there, stream, add));
    });
}

#[cfg(unix)]
#[test]
#[ignore = "needs a GPU"]
fn gpu_calls_in_a_forked_child_name_the_fork() {
    in_child("gpu_calls_in_a_forked_child_name_the_fork", || {
        let driver = real::load().unwrap();
        let memory = DeviceMemory::new(&driver, 0, MIB).unwrap();
        // SAFETY: the child makes only refused calls, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = matches!(driver.mem_info(0), Err(DriverError::ForkedChild { parent, .. })
                if parent == std::os::unix::process::parent_id());
            // SAFETY: `_exit` ends the child at once.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process, and the pointer is valid for writes.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        driver.mem_info(0).unwrap();
        drop(memory);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_memory_and_events_cross_processes() {
    const HANDLES: &str = "WARPLINE_TEST_HANDLES";
    const NAME: &str = "gpu_memory_and_events_cross_processes";
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let unhex = |text: &str| -> [u8; 64] {
        let byte = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
        std::array::from_fn(byte)
    };
    if let Ok(handles) = std::env::var(HANDLES) {
        let driver = real::load().unwrap();
        let stream = stream(&driver);
        let (memory, event) = handles.split_at(128);
        // SAFETY: the parent has sent the bytes of both handles, in this order.
        let (memory, event) = unsafe {
            (IpcMemHandle::from_bytes(unhex(memory)), IpcEventHandle::from_bytes(unhex(event)))
        };
        let event = Event::open_ipc(&driver, 0, event).unwrap();
        event.synchronize().unwrap();
        // SAFETY: the parent keeps an allocation of this size until this process ends.
        let memory = unsafe { SharedMemory::open(&driver, 0, memory, 4000) }.unwrap();
        assert_eq!(download(&stream, memory.ptr(), 1000), ramp(1000));
        upload(&stream, memory.ptr(), &[7.0; 10]);
        return;
    }
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let memory = DeviceMemory::new(&driver, 0, 4000).unwrap();
    upload(&stream, memory.ptr(), &ramp(1000));
    let flags = EventFlags { interprocess: true, ..EventFlags::default() };
    let event = Event::new(&driver, 0, flags).unwrap();
    event.record(&stream).unwrap();
    let memory_handle = memory.ipc_handle().unwrap().to_bytes();
    let handles = hex(&memory_handle) + &hex(&event.ipc_handle().unwrap().to_bytes());
    let output = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--ignored", "--nocapture"])
        .env(HANDLES, handles)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(download(&stream, memory.ptr(), 11)[9..], [7.0, 10.0]);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_threads_share_the_driver() {
    let (_one, driver) = gpu();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for t in 0..8 {
            let (driver, done) = (&driver, &done);
            scope.spawn(move || {
                let stream = stream(driver);
                let x = DeviceMemory::new(driver, 0, 4096).unwrap();
                upload(&stream, x.ptr(), &[t as f32; 1024]);
                let add = kernel(driver, 0, c"add");
                for _ in 0..100 {
                    launch(&stream, &add, 1024, &[x.ptr()], &add_params(1024, 1.0)).unwrap();
                }
                assert_eq!(download(&stream, x.ptr(), 1024), [t as f32 + 100.0; 1024]);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 8);
}
