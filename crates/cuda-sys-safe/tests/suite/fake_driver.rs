//! Tests the real driver's bookkeeping with a fake `libcuda` (`fake/cuda.rs`).
#![cfg(target_os = "linux")]

use std::ffi::{CStr, CString, c_char};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use libloading::Library;
use warpline_cuda_sys_safe::owned::*;
use warpline_cuda_sys_safe::*;

use crate::build;

/// A fake library. Each test loads its own copy, with its own state.
struct Fake {
    library: Library,
    path: PathBuf,
}

impl Fake {
    fn new(test: &str) -> Self {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        let built = BUILT.get_or_init(|| build::library("cuda"));
        let path = built.with_extension(format!("{}.{test}.so", std::process::id()));
        std::fs::copy(built, &path).unwrap();
        // SAFETY: the library is compiled from `fake/cuda.rs`, whose initialisers do nothing.
        let library = unsafe { Library::new(&path) }.unwrap();
        Self { library, path }
    }

    fn answer(&self, name: &str, status: u32) {
        let name = CString::new(name).unwrap();
        // SAFETY: `fake/cuda.rs` defines the function with this signature.
        unsafe {
            let answer = self
                .library
                .get::<unsafe extern "C" fn(*const c_char, u32)>(c"fake_answer")
                .unwrap();
            answer(name.as_ptr(), status);
        }
    }

    fn number(&self, function: &CStr, of: &str) -> u32 {
        let name = CString::new(of).unwrap();
        // SAFETY: `fake/cuda.rs` defines the function with this signature.
        unsafe {
            let function =
                self.library.get::<unsafe extern "C" fn(*const c_char) -> u32>(function).unwrap();
            function(name.as_ptr())
        }
    }

    fn calls(&self, name: &str) -> u32 {
        self.number(c"fake_calls", name)
    }

    fn latest(&self, name: &str) -> u32 {
        self.number(c"fake_latest", name)
    }

    fn argument(&self, index: usize) -> u64 {
        // SAFETY: `fake/cuda.rs` defines the function with this signature.
        unsafe {
            let argument =
                self.library.get::<extern "C" fn(usize) -> u64>(c"fake_argument").unwrap();
            argument(index)
        }
    }

    fn load(&self) -> Result<Arc<dyn Driver>> {
        real::load_from(std::slice::from_ref(&self.path))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_stub_library_is_named_in_the_error() {
    let fake = Fake::new("stub");
    fake.answer("cuInit", 34);
    let error = fake.load().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::STUB_LIBRARY));
    assert!(error.to_string().contains("WARPLINE_LIBCUDA"), "{error}");
}

#[test]
fn no_device_has_its_own_error() {
    let fake = Fake::new("no-device");
    fake.answer("cuInit", 100);
    let error = fake.load().unwrap_err();
    assert!(matches!(&error, DriverError::NoDevice { reason } if reason.contains("NO_DEVICE")));
    fake.answer("cuInit", 0);
    fake.answer("count", 0);
    let error = fake.load().unwrap_err();
    assert!(matches!(error, DriverError::NoDevice { .. }), "{error}");
    fake.answer("cuInit", 999);
    assert_eq!(fake.load().unwrap_err().code(), Some(CudaCode::UNKNOWN));
}

#[test]
fn contexts_are_created_once_and_only_on_demand() {
    let fake = Fake::new("contexts");
    let driver = fake.load().unwrap();
    assert_eq!((driver.device_count(), driver.version().unwrap()), (2, 12040));
    driver.properties(1).unwrap();
    assert!(!driver.primary_context_active(1).unwrap());
    assert_eq!(driver.pointer_kind(0x1234).unwrap(), PointerKind::Pageable);
    assert_eq!(fake.calls("cuDevicePrimaryCtxRetain"), 0);
    assert_eq!(fake.calls("cuPointerGetAttribute"), 0);

    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| driver.synchronize(1).unwrap());
        }
    });
    assert_eq!(fake.calls("cuDevicePrimaryCtxRetain"), 1);
    assert!(driver.primary_context_active(1).unwrap());
    assert!(!driver.primary_context_active(0).unwrap());

    let error = driver.synchronize(2).unwrap_err();
    assert!(matches!(error, DriverError::InvalidDevice { device: 2, count: 2 }), "{error}");
}

#[test]
fn a_busy_device_may_be_free_later() {
    let fake = Fake::new("busy");
    let driver = fake.load().unwrap();
    fake.answer("cuDevicePrimaryCtxRetain", 46);
    let error = driver.synchronize(0).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::DEVICE_UNAVAILABLE));
    fake.answer("cuDevicePrimaryCtxRetain", 0);
    driver.synchronize(0).unwrap();
}

#[test]
fn a_sticky_error_loses_every_device_for_good() {
    let fake = Fake::new("sticky");
    let driver = fake.load().unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let memory = DeviceMemory::new(&driver, 0, 64).unwrap();
    let registered = HostMemory::registered(&driver, 0, 64).unwrap();
    let other = DeviceMemory::new(&driver, 1, 64).unwrap();

    fake.answer("cuStreamSynchronize", 700);
    let first = stream.synchronize().unwrap_err();
    assert!(matches!(first, DriverError::Cuda(_)), "{first}");
    fake.answer("cuStreamSynchronize", 0);

    let before = fake.calls("");
    for (device, error) in [
        (0, driver.lost(0).unwrap()),
        (0, stream.synchronize().unwrap_err()),
        (0, stream.query().unwrap_err()),
        (0, driver.properties(0).unwrap_err()),
        (0, driver.mem_info(0).unwrap_err()),
        (0, DeviceMemory::new(&driver, 0, 64).unwrap_err()),
        (1, driver.can_access_peer(1, 0).unwrap_err()),
        (1, driver.lost(1).unwrap()),
        (1, driver.synchronize(1).unwrap_err()),
        (1, DeviceMemory::new(&driver, 1, 64).unwrap_err()),
    ] {
        let DriverError::DeviceLost { device: lost, cause } = &error else { panic!("{error}") };
        let about = (*lost, cause.call, cause.code, cause.device);
        assert_eq!(about, (device, "cuStreamSynchronize", CudaCode::ILLEGAL_ADDRESS, Some(0)));
    }
    // SAFETY: freed once here, because the owner is forgotten below.
    unsafe { driver.mem_free(0, memory.ptr()) }.unwrap();
    std::mem::forget(memory);
    drop((stream, registered, other));
    assert_eq!(fake.calls(""), before, "a lost device's calls do not reach the driver");
}

#[test]
fn other_errors_do_not_lose_the_device() {
    let fake = Fake::new("pass");
    let driver = fake.load().unwrap();
    for code in [2, 1, 400, 700_000] {
        fake.answer("cuMemAlloc_v2", code);
        let error = DeviceMemory::new(&driver, 0, 4096).unwrap_err();
        assert_eq!(error.code(), Some(CudaCode(code)));
        assert_eq!(error.is_out_of_memory(), code == 2);
        let text = error.to_string();
        assert!(text.contains("cuMemAlloc_v2 failed on cuda:0"), "{text}");
        assert!(text.contains("4096 bytes") && text.contains("fake_driver.rs"), "{text}");
    }
    fake.answer("cuMemAlloc_v2", 0);
    DeviceMemory::new(&driver, 0, 4096).unwrap();
    fake.answer("cuCtxEnablePeerAccess", 704);
    driver.enable_peer_access(0, 1).unwrap();

    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    fake.answer("cuStreamQuery", 600);
    assert!(!stream.query().unwrap());
    fake.answer("cuStreamQuery", 0);
    assert!(stream.query().unwrap());
}

#[test]
fn an_old_driver_fails_only_in_calls_that_it_lacks() {
    let fake = Fake::new("old");
    let driver = fake.load().unwrap();
    let memory = DeviceMemory::new(&driver, 0, 64).unwrap();
    let error = memory.ipc_handle().unwrap_err();
    let DriverError::MissingSymbol { symbol, version, needs, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((*symbol, version.as_str(), *needs), ("cuIpcGetMemHandle", "12.4", "CUDA 4.1"));
    driver.synchronize(0).unwrap();
}

#[test]
fn modules_get_terminated_text_and_errors_have_the_compilers_log() {
    let fake = Fake::new("modules");
    let driver = fake.load().unwrap();
    // A slice without a NUL. The fake library returns the length of the text that it reads.
    let image = &b"some ptx, and more"[..8];
    // SAFETY: the image is PTX text.
    let load = || unsafe { driver.module_load(0, image) };
    assert_eq!(load().unwrap().raw(), 8);
    fake.answer("cuModuleLoadDataEx", 218);
    let error = Module::load_ptx(&driver, 0, ".version 8.0").unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::INVALID_PTX));
    assert!(error.to_string().contains(": bad line"), "{error}");
}

#[test]
fn host_functions_run_once_or_are_dropped() {
    let fake = Fake::new("host");
    let driver = fake.load().unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let kept = Arc::new(());
    let enqueue = |panics: bool| {
        let held = Arc::clone(&kept);
        let f = Box::new(move || {
            let _held = held;
            assert!(!panics, "a panic that must not reach the driver");
        });
        // SAFETY: the stream is alive, and the function calls no CUDA.
        unsafe { driver.launch_host_func(stream.handle(), f) }
    };
    enqueue(false).unwrap();
    enqueue(true).unwrap();
    assert_eq!(fake.calls("cuLaunchHostFunc"), 2);
    fake.answer("cuLaunchHostFunc", 1);
    assert!(enqueue(false).is_err());
    assert_eq!(Arc::strong_count(&kept), 1);
}

unsafe fn unused(_: &HostLaunch<'_>) {}

#[test]
fn kernels_get_pointers_and_then_parameters() {
    let fake = Fake::new("launch");
    let driver = fake.load().unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let memory = DeviceMemory::new(&driver, 0, 64).unwrap();
    let footprints = [Footprint {
        ptr: memory.range(8, 4).unwrap(),
        device: 0,
        item_size: 4,
        sizes: &[],
        strides: &[],
        access: Access::Write,
    }];
    let mut odd = [0; 9];
    odd[1..].copy_from_slice(&0x0123_4567_89ab_cdefu64.to_ne_bytes());
    let location = Location::caller();
    let launch = Launch {
        op: "fill",
        code: DeviceCode::Kernel {
            // SAFETY: the fake library never uses the function.
            function: unsafe { FunctionHandle::from_raw(0, 1) },
            grid: [7, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
            waits: false,
        },
        host: unused,
        footprints: &footprints,
        params: &odd[1..],
        location,
    };
    // SAFETY: the fake library runs no kernel.
    unsafe { driver.launch(stream.handle(), &launch) }.unwrap();
    assert_eq!(fake.argument(0), memory.ptr().addr() + 8);
    assert_eq!(fake.argument(1), 0x0123_4567_89ab_cdef);

    fake.answer("cuLaunchKernel", 701);
    // SAFETY: the fake library runs no kernel.
    let error = unsafe { driver.launch(stream.handle(), &launch) }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("fill with grid [7, 1, 1], block [32, 1, 1]"), "{text}");
    assert!(text.ends_with(&location.to_string()), "{text}");

    // A library's launch gets the same pointers, and the context is current.
    let seen = std::cell::Cell::new(0);
    let call = |of: StreamHandle, pointers: &[DevicePtr]| {
        assert_eq!(of, stream.handle());
        seen.set(pointers[0].addr());
        Ok(())
    };
    let launch = Launch { code: DeviceCode::Library(&call), ..launch };
    let before = fake.calls("cuCtxSetCurrent");
    // SAFETY: the call only records its arguments.
    unsafe { driver.launch(stream.handle(), &launch) }.unwrap();
    assert_eq!(seen.get(), memory.ptr().addr() + 8);
    assert_eq!(fake.calls("cuCtxSetCurrent"), before + 1);
}

#[test]
fn a_mapping_keeps_what_it_maps() {
    let fake = Fake::new("mapping");
    let driver = fake.load().unwrap();
    let page = 1 << 21;
    let reservation = Reservation::new(&driver, 0, 4 * page).unwrap();
    let memory = PhysicalMemory::new(&driver, 0, 2 * page).unwrap();
    let mapping = reservation.map(page, &memory, page, page).unwrap();
    assert_eq!(mapping.ptr().addr(), reservation.ptr().addr() + page as u64);
    mapping.set_access(&[(0, MemAccess::ReadWrite)]).unwrap();

    for (offset, from, bytes) in
        [(3 * page, 0, 2 * page), (0, page, 2 * page), (usize::MAX, 0, page)]
    {
        let error = reservation.map(offset, &memory, from, bytes).unwrap_err();
        assert!(matches!(error, DriverError::InvalidArgument { .. }), "{error}");
    }
    let foreign = PhysicalMemory::new(&fake.load().unwrap(), 0, page).unwrap();
    assert!(reservation.map(0, &foreign, 0, page).is_err());
    drop(foreign);
    assert_eq!((fake.calls("cuMemMap"), fake.calls("cuMemRelease")), (1, 1));
    assert!(mapping.range(1, page).is_err() && mapping.range(1, page - 1).is_ok());

    drop((reservation, memory));
    assert_eq!((fake.calls("cuMemRelease"), fake.calls("cuMemAddressFree")), (1, 0));
    drop(mapping);
    assert_eq!((fake.calls("cuMemRelease"), fake.calls("cuMemAddressFree")), (2, 1));
    assert!(fake.latest("cuMemUnmap") < fake.latest("cuMemRelease"));
    assert!(fake.latest("cuMemUnmap") < fake.latest("cuMemAddressFree"));
}

#[test]
fn pool_memory_keeps_its_pool_and_graphs_outlive_their_source() {
    let fake = Fake::new("pools");
    let driver = fake.load().unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let pool = MemPool::new(&driver, 0).unwrap();
    let memory = pool.alloc(64, &stream).unwrap();
    let other = Stream::new(&driver, 1, StreamFlags::default()).unwrap();
    assert!(matches!(pool.alloc(64, &other), Err(DriverError::InvalidArgument { .. })));
    drop(pool);
    assert_eq!(fake.calls("cuMemPoolDestroy"), 0);
    drop(memory);
    assert!(fake.latest("cuMemFreeAsync") < fake.latest("cuMemPoolDestroy"));

    // SAFETY: the capture contains no work.
    let token = unsafe { LaunchToken::new() };
    let graph = stream.begin_capture(CaptureMode::Global, token).unwrap().end().unwrap();
    let exec = graph.instantiate().unwrap();
    drop(graph);
    assert_eq!((fake.calls("cuGraphDestroy"), fake.calls("cuGraphExecDestroy")), (1, 0));
    // SAFETY: the graph is empty, so a replay uses no memory.
    unsafe { exec.launch(&stream) }.unwrap();
    drop(exec);
    assert_eq!((fake.calls("cuGraphLaunch"), fake.calls("cuGraphExecDestroy")), (1, 1));
}

#[test]
fn a_driver_without_conditional_nodes_names_its_version() {
    let fake = Fake::new("conditions");
    let driver = fake.load().unwrap();
    let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    // SAFETY: the capture contains no work.
    let token = unsafe { LaunchToken::new() };
    let capture = stream.begin_capture(CaptureMode::Global, token).unwrap();
    let error = stream.create_condition(token).unwrap_err();
    assert!(matches!(error, DriverError::MissingSymbol { .. }), "{error}");
    assert!(error.to_string().contains("CUDA 12.3"), "{error}");
    capture.end().unwrap();
}

#[test]
fn calls_in_a_forked_child_name_the_fork() {
    let fake = Fake::new("fork");
    let driver = fake.load().unwrap();
    // SAFETY: the child only makes a refused call, which takes no lock and allocates nothing, and
    // then ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let parent = std::os::unix::process::parent_id();
        let refused = matches!(
            driver.mem_info(0),
            Err(DriverError::ForkedChild { call: "cuMemGetInfo_v2", parent: of }) if of == parent
        );
        // SAFETY: `_exit` ends the child at once.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and the pointer is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
    assert_eq!(fake.calls("cuMemGetInfo_v2"), 0);
    driver.mem_info(0).unwrap();
}
