//! Tests of the real driver on a GPU.
//!
//! Run `cargo test -p warpline-cuda-sys-safe --test gpu_driver -- --ignored gpu_` on a machine with
//! one GPU. Replace `gpu_` by `gpu2_` on a machine with two.

mod blas;
mod early_launch;
mod objects;
mod peers;
mod processes;
mod refused;

use processes::in_child;

use std::ffi::CStr;
use std::panic::Location;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use warpline_cuda_sys_safe::blas::{Blas, BlasType, GemmArgs, GemmPrecision};
use warpline_cuda_sys_safe::owned::*;
use warpline_cuda_sys_safe::*;

const PTX: &str = include_str!("../gpu_kernels.ptx");
const MIB: usize = 1 << 20;

/// Serializes the tests, because some read the free memory and some measure times.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu() -> (MutexGuard<'static, ()>, Arc<dyn Driver>) {
    (alone(), real::load().expect("these tests need a GPU"))
}

fn stream(driver: &Arc<dyn Driver>) -> Stream {
    Stream::new(driver, 0, StreamFlags { non_blocking: true, priority: 0 }).unwrap()
}

fn on(device: usize, ptr: DevicePtr) -> CopyEnd {
    CopyEnd::Device { device, ptr }
}

fn host<T>(values: &[T]) -> CopyEnd {
    CopyEnd::Host(NonNull::from(values).cast())
}

fn host_mut<T>(values: &mut [T]) -> CopyEnd {
    CopyEnd::Host(NonNull::from(values).cast())
}

/// Enqueues a copy and waits for its end.
fn copy(stream: &Stream, dst: CopyEnd, src: CopyEnd, bytes: usize) {
    // SAFETY: callers pass live ranges, and the copy is complete when this function returns.
    unsafe { stream.driver().memcpy_async(&Copy { dst, src, bytes }, stream.handle()) }.unwrap();
    stream.synchronize().unwrap();
}

fn upload(stream: &Stream, ptr: DevicePtr, values: &[f32]) {
    copy(stream, on(stream.device(), ptr), host(values), size_of_val(values));
}

fn download(stream: &Stream, ptr: DevicePtr, count: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; count];
    copy(stream, host_mut(&mut values), on(stream.device(), ptr), count * 4);
    values
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

unsafe fn unused(_: &HostLaunch<'_>) {
    unreachable!("a GPU never runs the CPU implementation")
}

/// Enqueues a kernel in a single block, with one thread per element.
fn launch(
    stream: &Stream,
    kernel: &Function,
    block: u32,
    pointers: &[DevicePtr],
    params: &[u8],
) -> Result<()> {
    launch_as(stream, kernel, block, pointers, params, false)
}

/// Enqueues a kernel as [`launch`] does. If `waits`, the driver may launch it before earlier work completes.
fn launch_as(
    stream: &Stream,
    kernel: &Function,
    block: u32,
    pointers: &[DevicePtr],
    params: &[u8],
    waits: bool,
) -> Result<()> {
    let footprints: Vec<_> = pointers
        .iter()
        .map(|&ptr| Footprint {
            ptr,
            device: stream.device(),
            item_size: 4,
            sizes: &[],
            strides: &[],
            access: Access::ReadWrite,
        })
        .collect();
    let launch = Launch {
        op: "test",
        code: DeviceCode::Kernel {
            function: kernel.handle(),
            grid: [1, 1, 1],
            block: [block, 1, 1],
            shared_bytes: 0,
            waits,
        },
        host: unused,
        footprints: &footprints,
        params,
        location: Location::caller(),
    };
    // SAFETY: callers pass live memory and the kernel's own parameters, and keep the memory until
    // the kernel is done.
    unsafe { stream.driver().launch(stream.handle(), &launch) }
}

fn kernel(driver: &Arc<dyn Driver>, device: usize, name: &CStr) -> Function {
    Module::load_ptx(driver, device, PTX).unwrap().function(name).unwrap()
}

fn add_params(n: i32, by: f32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&n.to_ne_bytes());
    bytes[4..].copy_from_slice(&by.to_ne_bytes());
    bytes
}

/// Keeps a stream busy for a given time. The kernel is loaded and has run once.
struct Spin {
    kernel: Function,
    scratch: DeviceMemory,
}

impl Spin {
    fn new(stream: &Stream) -> Self {
        let driver = stream.driver();
        let scratch = DeviceMemory::new(driver, 0, 512).unwrap();
        let spin = Self { kernel: kernel(driver, 0, c"spin"), scratch };
        spin.run(stream, 0);
        stream.synchronize().unwrap();
        spin
    }

    fn run(&self, stream: &Stream, milliseconds: u64) {
        let nanoseconds = (milliseconds * 1_000_000).to_ne_bytes();
        launch(stream, &self.kernel, 1, &[self.scratch.ptr()], &nanoseconds).unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_properties_need_no_context() {
    // In a child process, because any other test creates a context.
    in_child("gpu_properties_need_no_context", || {
        let driver = real::load().unwrap();
        assert!(driver.device_count() >= 1);
        assert!(driver.version().unwrap() >= 12000);
        let properties = driver.properties(0).unwrap();
        assert!(!properties.name.is_empty());
        assert!(properties.compute_capability >= (7, 5), "{properties:?}");
        assert!(properties.total_memory > 1 << 30);
        assert!(properties.multiprocessor_count > 0 && properties.warp_size == 32);
        assert!(properties.max_threads_per_block >= 1024);
        assert!(properties.shared_memory_per_block >= 48 << 10);
        assert_ne!(properties.uuid, [0; 16]);
        let local = [0u8; 16];
        assert_eq!(driver.pointer_kind(local.as_ptr() as u64).unwrap(), PointerKind::Pageable);
        assert!(!driver.primary_context_active(0).unwrap());
        driver.mem_info(0).unwrap();
        assert!(driver.primary_context_active(0).unwrap());
        let count = driver.device_count();
        let error = driver.properties(count).unwrap_err();
        assert!(matches!(error, DriverError::InvalidDevice { device, .. } if device == count));
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_memory_is_allocated_and_freed() {
    let (_one, driver) = gpu();
    let before = driver.mem_info(0).unwrap();
    let own_before = driver.process_memory(0);
    let memory = DeviceMemory::new(&driver, 0, 256 * MIB).unwrap();
    assert_eq!(memory.ptr().addr() % 512, 0);
    let with = driver.mem_info(0).unwrap();
    assert!(before.free - with.free >= 256 * MIB, "{before:?} {with:?}");
    // On some systems, NVML does not list this process.
    let own = driver.process_memory(0);
    println!("this process: {own_before:?}, with 256 MiB more {own:?}");
    assert_eq!(own.is_some(), own_before.is_some());
    assert!(own.zip(own_before).is_none_or(|(own, before)| own >= before + 256 * MIB));
    drop(memory);
    assert!(driver.mem_info(0).unwrap().free >= with.free + 256 * MIB);

    let error = DeviceMemory::new(&driver, 0, before.total * 2).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert!(error.to_string().contains(file!()), "{error}");
    assert!(driver.lost(0).is_none());
    DeviceMemory::new(&driver, 0, MIB).unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_pointers_tell_their_kind() {
    let (_one, driver) = gpu();
    let device = DeviceMemory::new(&driver, 0, MIB).unwrap();
    let pinned = HostMemory::pinned(&driver, 0, 1000).unwrap();
    let registered = HostMemory::registered(&driver, 0, 10_000).unwrap();
    let pageable = HostMemory::pageable(1000).unwrap();
    let kind = |address: u64| driver.pointer_kind(address).unwrap();
    assert_eq!(kind(device.ptr().addr() + 1000), PointerKind::Device(0));
    assert_eq!(kind(pinned.as_ptr().as_ptr() as u64 + 999), PointerKind::Pinned);
    assert_eq!(kind(registered.as_ptr().as_ptr() as u64), PointerKind::Pinned);
    assert_eq!(kind(pageable.as_ptr().as_ptr() as u64), PointerKind::Pageable);
    let address = pinned.as_ptr().as_ptr() as u64;
    drop(pinned);
    assert_eq!(kind(address), PointerKind::Pageable);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_copies_of_every_kind() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let (n, bytes) = (100_000, 400_000);
    let values = ramp(n);
    let a = DeviceMemory::new(&driver, 0, bytes).unwrap();
    let b = DeviceMemory::new(&driver, 0, bytes).unwrap();
    // Copies from pageable memory to a device, between two allocations of the device, and back.
    upload(&stream, a.ptr(), &values);
    copy(&stream, on(0, b.ptr()), on(0, a.ptr()), bytes);
    assert_eq!(download(&stream, b.ptr(), n), values);
    // Copies from and to page-locked memory, including copies from host to host.
    for pinned in [
        HostMemory::pinned(&driver, 0, bytes).unwrap(),
        HostMemory::registered(&driver, 0, bytes).unwrap(),
    ] {
        let pinned = CopyEnd::Host(pinned.as_ptr());
        copy(&stream, pinned, host(&values), bytes);
        // SAFETY: the range is live until the stream is synchronized.
        unsafe { driver.memset_async(a.ptr(), MemsetValue::U8(0), bytes, stream.handle()) }
            .unwrap();
        copy(&stream, on(0, a.ptr()), pinned, bytes);
        assert_eq!(download(&stream, a.ptr(), n), values);
        copy(&stream, pinned, on(0, b.ptr()), bytes);
        let mut back = vec![0f32; n];
        copy(&stream, host_mut(&mut back), pinned, bytes);
        assert_eq!(back, values);
    }
    // Synchronous copies.
    let doubled: Vec<f32> = values.iter().map(|v| v * 2.0).collect();
    let mut back = vec![0f32; n];
    let mut through = vec![0f32; n];
    for (dst, src) in [
        (on(0, a.ptr()), host(&doubled)),
        (on(0, b.ptr()), on(0, a.ptr())),
        (host_mut(&mut through), on(0, b.ptr())),
        (host_mut(&mut back), host(&through)),
    ] {
        // SAFETY: all ranges are live and have `bytes` bytes.
        unsafe { driver.memcpy(0, &Copy { dst, src, bytes }) }.unwrap();
        driver.synchronize(0).unwrap();
    }
    assert_eq!(back, doubled);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_memsets_of_every_width() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let memory = DeviceMemory::new(&driver, 0, 64).unwrap();
    let set = |offset: usize, value: MemsetValue, count: usize| {
        let ptr = memory.range(offset, count * value.size()).unwrap();
        // SAFETY: the range was just checked to lie inside `memory`.
        unsafe { driver.memset_async(ptr, value, count, stream.handle()) }.unwrap();
    };
    set(0, MemsetValue::U8(0xab), 64);
    set(8, MemsetValue::U16(0x1234), 3);
    set(16, MemsetValue::U32(0x01020304), 2);
    let mut bytes = [0u8; 64];
    copy(&stream, host_mut(&mut bytes), on(0, memory.ptr()), 64);
    let mut expected = [0xab; 64];
    expected[8..14].copy_from_slice(&[0x34, 0x12, 0x34, 0x12, 0x34, 0x12]);
    expected[16..24].copy_from_slice(&[4, 3, 2, 1, 4, 3, 2, 1]);
    assert_eq!(bytes, expected);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_streams_have_priorities_and_run_concurrently() {
    let (_one, driver) = gpu();
    let (least, greatest) = driver.stream_priority_range(0).unwrap();
    assert!(least == 0 && greatest < 0, "{least} {greatest}");
    let flags = StreamFlags { non_blocking: true, priority: greatest };
    let high = Stream::new(&driver, 0, flags).unwrap();
    assert_eq!(high.priority().unwrap(), greatest);
    let low = stream(&driver);
    assert_eq!(low.priority().unwrap(), 0);

    let spin = Spin::new(&low);
    spin.run(&low, 200);
    assert!(!low.query().unwrap());
    assert!(high.query().unwrap());
    let event = Event::new(&driver, 0, EventFlags::default()).unwrap();
    assert!(event.query().unwrap());
    event.record(&low).unwrap();
    assert!(!event.query().unwrap());
    high.wait_event(&event).unwrap();
    assert!(!high.query().unwrap());
    high.synchronize().unwrap();
    assert!(event.query().unwrap() && low.query().unwrap());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_events_measure_time() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let spin = Spin::new(&stream);
    let timing = EventFlags { timing: true, blocking: true, ..EventFlags::default() };
    let start = Event::new(&driver, 0, timing).unwrap();
    let end = Event::new(&driver, 0, timing).unwrap();
    start.record(&stream).unwrap();
    spin.run(&stream, 50);
    end.record(&stream).unwrap();
    assert_eq!(start.elapsed(&end).unwrap_err().code(), Some(CudaCode::NOT_READY));
    end.synchronize().unwrap();
    let elapsed = start.elapsed(&end).unwrap();
    assert!(elapsed >= 49.0, "{elapsed} ms");
    let untimed = Event::new(&driver, 0, EventFlags::default()).unwrap();
    untimed.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(start.elapsed(&untimed).unwrap_err().code(), Some(CudaCode::INVALID_HANDLE));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_kernels_read_their_parameters() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let x = DeviceMemory::new(&driver, 0, 4096).unwrap();
    let y = DeviceMemory::new(&driver, 0, 4096).unwrap();
    upload(&stream, x.ptr(), &ramp(1024));
    // A parameter block at an odd address must work, too.
    let mut odd = [0u8; 9];
    odd[1..].copy_from_slice(&add_params(1000, 0.5));
    let add = kernel(&driver, 0, c"add");
    launch(&stream, &add, 1024, &[x.ptr()], &odd[1..]).unwrap();
    // A kernel without a parameter block.
    let next = kernel(&driver, 0, c"next");
    launch(&stream, &next, 1024, &[y.ptr(), x.ptr()], &[]).unwrap();
    let expected: Vec<f32> =
        (0..1024).map(|i| i as f32 + if i < 1000 { 1.5 } else { 1.0 }).collect();
    assert_eq!(download(&stream, y.ptr(), 1024), expected);

    // The error of a refused launch names the op and the shape. The device stays usable.
    let error = launch(&stream, &next, 4096, &[y.ptr(), x.ptr()], &[]).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::INVALID_VALUE), "{error}");
    assert!(error.to_string().contains("test with grid [1, 1, 1], block [4096, 1, 1]"), "{error}");
    launch(&stream, &next, 32, &[y.ptr(), x.ptr()], &[]).unwrap();
    stream.synchronize().unwrap();

    add.set_max_shared(64 << 10).unwrap();
    assert!(add.set_max_shared(64 << 20).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_errors_of_bad_modules_have_the_compilers_log() {
    let (_one, driver) = gpu();
    let text = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry f() { nonsense; }\n";
    let error = Module::load_ptx(&driver, 0, text).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::INVALID_PTX), "{error}");
    assert!(error.to_string().contains("line 4"), "the compiler's log is missing: {error}");
    assert!(Module::load_ptx(&driver, 0, "").is_err());
    let module = Module::load_ptx(&driver, 0, PTX).unwrap();
    let error = module.function(c"no_such_kernel").unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::NOT_FOUND));
    assert!(error.to_string().contains("no_such_kernel"), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_host_functions_run_in_order_and_may_panic() {
    let (_one, driver) = gpu();
    let stream = stream(&driver);
    let spin = Spin::new(&stream);
    let enqueue = |f: Box<dyn FnOnce() + Send>| {
        // SAFETY: the stream is alive, and the functions call no CUDA.
        unsafe { driver.launch_host_func(stream.handle(), f) }
    };
    spin.run(&stream, 100);
    let (send, receive) = mpsc::channel();
    for i in 0..3 {
        let send = send.clone();
        enqueue(Box::new(move || send.send(i).unwrap())).unwrap();
    }
    assert!(receive.try_recv().is_err(), "ran before the work ahead of it");
    enqueue(Box::new(|| panic!("a panic that the driver must not see"))).unwrap();
    let send = send.clone();
    enqueue(Box::new(move || send.send(3).unwrap())).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);

    // A host function is refused in a capture, because the graph would run it once per replay. A
    // refused function is dropped.
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    // SAFETY: the capture contains no work.
    let token = unsafe { LaunchToken::new() };
    let capture = stream.begin_capture(CaptureMode::ThreadLocal, token).unwrap();
    let error = enqueue(Box::new(move || drop(held))).unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(Arc::strong_count(&kept), 1);
    capture.end().unwrap();
}
