//! Every kind of call can be made to fail, and many threads can call at once.

use std::ffi::CStr;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline_cuda_sys_safe::nccl::Nccl;
use warpline_cuda_sys_safe::owned::{DeviceMemory, Event, PhysicalMemory, Reservation, Stream};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

use crate::one_thread;

const PTX: &[u8] = b".version 8.0\n.target sm_75\n.visible .entry k()\n{ ret; }\n";
const KERNEL: &CStr = c"k";

unsafe fn nothing(_: &HostLaunch<'_>) {}

/// Makes one call of a kind on device 0 of a new simulator. The arguments are valid, except handles
/// of other processes.
///
/// # Safety
/// The created objects are not used afterwards, and are dropped with the simulator.
unsafe fn call(d: &SimDriver, kind: CallKind) -> Result<()> {
    use CallKind as K;
    const PAGE: usize = 2 << 20;
    // Create the arguments before the fault is armed.
    let ptr = d.mem_alloc(0, 64)?;
    let stream = d.stream_create(0, StreamFlags::default())?;
    let timing = EventFlags { timing: true, ..EventFlags::default() };
    let (event, end) = (d.event_create(0, timing)?, d.event_create(0, timing)?);
    let shared = d.event_create(0, EventFlags { interprocess: true, ..EventFlags::default() })?;
    let host = d.host_alloc(0, 64, HostFlags::default())?;
    let mut own = [0u8; 64];
    let mine = NonNull::from(&mut own).cast::<u8>();
    let range = d.address_reserve(0, PAGE)?;
    let piece = d.mem_create(0, PAGE)?;
    let shareable = d.mem_create_shareable(0, PAGE)?;
    let pool = d.mempool_create(0)?;
    // SAFETY: every handle is live. All work is waited for, or dropped with the simulator.
    unsafe {
        let module = d.module_load(0, PTX)?;
        let function = d.module_function(module, KERNEL)?;
        let pooled = d.mem_alloc_async(pool, 64, stream)?;
        d.event_record(event, stream)?;
        d.event_record(end, stream)?;
        d.stream_synchronize(stream)?;
        d.begin_capture(stream, CaptureMode::Relaxed)?;
        let graph = d.end_capture(stream)?;
        let exec = d.graph_instantiate(graph)?;
        let nccl: &dyn Nccl = d.nccl()?;
        let comm = nccl.comm_init(0, &nccl.unique_id()?, 1, 0)?;
        let copy =
            Copy { dst: CopyEnd::Device { device: 0, ptr }, src: CopyEnd::Host(host), bytes: 64 };
        match kind {
            K::HostUnregister => d.host_register(0, mine, 64, HostFlags::default())?,
            K::EndCapture | K::ConditionCreate | K::CaptureConditional | K::BeginCaptureToBody => {
                d.begin_capture(stream, CaptureMode::Relaxed)?
            }
            K::MemSetAccess | K::MemUnmap => d.mem_map(range, PAGE, 0, piece)?,
            K::DisablePeerAccess => d.enable_peer_access(0, 1)?,
            _ => {}
        }
        let begun = d.capture_status(stream)? != CaptureStatus::None;
        let condition = if begun { Some(d.condition_create(stream)?) } else { None };
        let body = match condition.filter(|_| kind == K::BeginCaptureToBody) {
            Some(condition) => d.capture_conditional(stream, condition, ConditionalKind::If)?,
            None => graph,
        };
        d.inject(Fault::new(kind, CudaCode::UNKNOWN).on(0));
        match kind {
            K::Properties => d.properties(0).map(drop),
            K::PrimaryContextActive => d.primary_context_active(0).map(drop),
            K::Synchronize => d.synchronize(0),
            K::MemInfo => d.mem_info(0).map(drop),
            K::MemAlloc => d.mem_alloc(0, 1).map(drop),
            K::MemFree => d.mem_free(0, ptr),
            K::HostAlloc => d.host_alloc(0, 1, HostFlags::default()).map(drop),
            K::HostFree => d.host_free(0, host),
            K::HostRegister => d.host_register(0, mine, 64, HostFlags::default()),
            K::HostUnregister => d.host_unregister(0, mine),
            K::MemcpyAsync => d.memcpy_async(&copy, stream),
            K::Memcpy => d.memcpy(0, &copy),
            K::MemsetAsync => d.memset_async(ptr, MemsetValue::U8(1), 1, stream),
            K::StreamPriorityRange => d.stream_priority_range(0).map(drop),
            K::StreamCreate => d.stream_create(0, StreamFlags::default()).map(drop),
            K::StreamDestroy => d.stream_destroy(stream),
            K::StreamQuery => d.stream_query(stream).map(drop),
            K::StreamSynchronize => d.stream_synchronize(stream),
            K::StreamWaitEvent => d.stream_wait_event(stream, event),
            K::StreamWaitValue => d.stream_wait_value32(stream, host.cast(), 0),
            K::StreamWriteValue => d.stream_write_value32(stream, host.cast(), 0),
            K::StreamPriority => d.stream_priority(stream).map(drop),
            K::LaunchHostFunc => d.launch_host_func(stream, Box::new(|| ())),
            K::EventCreate => d.event_create(0, timing).map(drop),
            K::EventDestroy => d.event_destroy(event),
            K::EventRecord => d.event_record(event, stream),
            K::EventQuery => d.event_query(event).map(drop),
            K::EventSynchronize => d.event_synchronize(event),
            K::EventElapsed => d.event_elapsed(event, end).map(drop),
            K::ModuleLoad => d.module_load(0, PTX).map(drop),
            K::ModuleUnload => d.module_unload(module),
            K::ModuleFunction => d.module_function(module, KERNEL).map(drop),
            K::FunctionMaxShared => d.function_max_shared(function, 1024),
            K::Launch => {
                let code = one_thread(function);
                let location = Location::caller();
                let (op, host, footprints, params) = ("k", nothing as HostKernel, &[], &[]);
                d.launch(stream, &Launch { op, code, host, footprints, params, location })
            }
            K::CanAccessPeer => d.can_access_peer(0, 1).map(drop),
            K::EnablePeerAccess => d.enable_peer_access(0, 1),
            K::DisablePeerAccess => d.disable_peer_access(0, 1),
            K::MemGranularity => d.mem_granularity(0).map(drop),
            K::AddressReserve => d.address_reserve(0, PAGE).map(drop),
            K::AddressFree => d.address_free(0, range, PAGE),
            K::MemCreate => d.mem_create(0, PAGE).map(drop),
            K::MemExport => d.mem_export(shareable).map(drop),
            K::MemImport => {
                d.mem_export(shareable).and_then(|fd| d.mem_import(0, PAGE, fd)).map(drop)
            }
            K::MemRelease => d.mem_release(piece),
            K::MemMap => d.mem_map(range, PAGE, 0, piece),
            K::MemSetAccess => d.mem_set_access(0, range, PAGE, &[(0, MemAccess::Read)]),
            K::MemUnmap => d.mem_unmap(0, range, PAGE),
            K::MempoolCreate => d.mempool_create(0).map(drop),
            K::MempoolDestroy => d.mempool_destroy(pool),
            K::MempoolReleaseThreshold => d.mempool_release_threshold(pool, 1),
            K::MempoolTrim => d.mempool_trim(pool, 0),
            K::MempoolSetAccess => d.mempool_set_access(pool, &[(1, MemAccess::Read)]),
            K::MemAllocAsync => d.mem_alloc_async(pool, 1, stream).map(drop),
            K::MemFreeAsync => d.mem_free_async(pooled, stream),
            K::BeginCapture => d.begin_capture(stream, CaptureMode::Relaxed),
            K::EndCapture => d.end_capture(stream).map(drop),
            K::CaptureStatus => d.capture_status(stream).map(drop),
            K::ConditionCreate => d.condition_create(stream).map(drop),
            K::CaptureConditional => {
                let condition = condition.ok_or(DriverError::InvalidDevice { device: 0, count: 0 });
                d.capture_conditional(stream, condition?, ConditionalKind::If).map(drop)
            }
            K::BeginCaptureToBody => {
                let other = d.stream_create(0, StreamFlags::default())?;
                d.begin_capture_to_body(other, body)
            }
            K::ExchangeCaptureMode => d.exchange_capture_mode(0, CaptureMode::Global).map(drop),
            K::GraphInstantiate => d.graph_instantiate(graph).map(drop),
            K::GraphLaunch => d.graph_launch(exec, stream),
            K::GraphDebugDotPrint => d.graph_debug_dot_print(graph, c"/dev/null"),
            K::GraphDestroy => d.graph_destroy(graph),
            K::GraphExecDestroy => d.graph_exec_destroy(exec),
            K::IpcMemHandle => d.ipc_mem_handle(0, ptr).map(drop),
            K::IpcOpenMem => d.ipc_open_mem(0, IpcMemHandle::from_bytes([0; 64])).map(drop),
            K::IpcCloseMem => d.ipc_close_mem(0, ptr),
            K::IpcEventHandle => d.ipc_event_handle(shared).map(drop),
            K::IpcOpenEvent => d.ipc_open_event(0, IpcEventHandle::from_bytes([0; 64])).map(drop),
            K::CommInit => nccl.comm_init(0, &nccl.unique_id()?, 1, 0).map(drop),
            K::GroupEnd => nccl.enqueue(comm, &[], stream).map(drop),
        }
    }
}

#[test]
fn every_kind_of_call_can_fail() {
    for &kind in CallKind::ALL {
        let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(2) }.build();
        // SAFETY: the simulator is dropped below, with all created objects.
        let error = unsafe { call(&sim, kind) }.unwrap_err();
        assert_eq!(error.code(), Some(CudaCode::UNKNOWN), "{kind:?}: {error}");
        assert!(error.to_string().starts_with(kind.name()), "{kind:?}: {error}");
        sim.clear_faults();
        assert!(sim.lost(0).is_none(), "{kind:?}");
        let made: u64 = sim.usage().count(kind);
        assert!(made > 0, "{kind:?} is not counted");
    }
}

#[test]
fn threads_share_a_simulator() {
    let sim = SimConfig { schedule: Schedule::Seeded(5), ..SimConfig::new(2) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let ran = AtomicUsize::new(0);
    let ran: &'static AtomicUsize = Box::leak(Box::new(ran));
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let driver = &driver;
            scope.spawn(move || {
                let device = thread % 2;
                for round in 0..50 {
                    let stream = Stream::new(driver, device, StreamFlags::default()).unwrap();
                    let memory = DeviceMemory::new(driver, device, 256).unwrap();
                    let event = Event::new(driver, device, EventFlags::default()).unwrap();
                    let value = MemsetValue::U8(round);
                    // SAFETY: the handles are alive, and the memory is freed after its work.
                    unsafe {
                        driver.memset_async(memory.ptr(), value, 256, stream.handle()).unwrap();
                        let f = || {
                            std::thread::yield_now();
                            ran.fetch_add(1, Ordering::Relaxed);
                        };
                        driver.launch_host_func(stream.handle(), Box::new(f)).unwrap();
                    }
                    event.record(&stream).unwrap();
                    while !event.query().unwrap() {}
                    let mut out = [0u8; 256];
                    let dst = CopyEnd::Host(NonNull::from(&mut out).cast());
                    let src = CopyEnd::Device { device, ptr: memory.ptr() };
                    // SAFETY: both ends hold 256 bytes, and the copy is synchronous.
                    unsafe { driver.memcpy(device, &Copy { dst, src, bytes: 256 }) }.unwrap();
                    assert_eq!(out, [round; 256]);
                }
            });
        }
    });
    assert_eq!(ran.load(Ordering::Relaxed), 200);
    assert!(sim.usage().all_released());
}

#[test]
fn the_capture_mode_decides_whether_other_threads_are_restricted() {
    let sim = SimConfig::new(1).build();
    let driver: Arc<dyn Driver> = sim.clone();
    let flags = StreamFlags { non_blocking: true, priority: 0 };
    let stream = Stream::new(&driver, 0, flags).unwrap();
    let elsewhere = |f: &(dyn Fn() -> Option<CudaCode> + Sync)| {
        std::thread::scope(|scope| scope.spawn(f).join().unwrap())
    };
    let alloc = || DeviceMemory::new(&driver, 0, 4).err().and_then(|e| e.code());
    // SAFETY: the stream is alive until the end of the test.
    let begin = |mode| unsafe { driver.begin_capture(stream.handle(), mode) }.unwrap();
    // SAFETY: the stream is alive until the end of the test.
    let end = || unsafe { driver.end_capture(stream.handle()) };
    let unsupported = Some(CudaCode::STREAM_CAPTURE_UNSUPPORTED);

    begin(CaptureMode::ThreadLocal);
    assert_eq!(elsewhere(&alloc), None, "the capture restricts other threads");
    let wrong = elsewhere(&|| end().err().and_then(|e| e.code()));
    assert_eq!(wrong, Some(CudaCode::STREAM_CAPTURE_WRONG_THREAD));
    // SAFETY: the graph was just captured.
    unsafe { driver.graph_destroy(end().unwrap()) }.unwrap();

    begin(CaptureMode::Global);
    assert_eq!(elsewhere(&alloc), unsupported, "the capture does not restrict other threads");
    let code = end().unwrap_err().code();
    assert_eq!(code, Some(CudaCode::STREAM_CAPTURE_INVALIDATED));

    begin(CaptureMode::Relaxed);
    // SAFETY: the stream is alive. The driver refuses the function.
    let error = unsafe { driver.launch_host_func(stream.handle(), Box::new(|| ())) }.unwrap_err();
    assert_eq!(error.code(), unsupported);
    // SAFETY: the graph was just captured.
    unsafe { driver.graph_destroy(end().unwrap()) }.unwrap();
    drop(stream);
    assert!(sim.usage().all_released());
}

#[test]
fn a_capture_ends_with_its_stream_or_device() {
    let sim = SimConfig { isolate_faults: true, ..SimConfig::new(2) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let stream = || Stream::new(&driver, 1, StreamFlags::default()).unwrap();
    let begin = |stream: &Stream| {
        // SAFETY: the stream is alive.
        unsafe { driver.begin_capture(stream.handle(), CaptureMode::Global) }.unwrap();
        assert!(DeviceMemory::new(&driver, 0, 4).is_err());
    };
    let destroyed = stream();
    begin(&destroyed);
    drop(destroyed);
    DeviceMemory::new(&driver, 0, 4).unwrap();
    let lost = stream();
    begin(&lost);
    sim.lose_device(1, CudaCode::ECC_UNCORRECTABLE);
    DeviceMemory::new(&driver, 0, 4).unwrap();
}

/// Simulates a system that cannot map memory twice.
#[test]
fn a_device_without_virtual_memory_returns_errors() {
    let mut config = SimConfig::new(1);
    config.properties.virtual_memory_management = false;
    let driver: Arc<dyn Driver> = config.build();
    assert!(!driver.properties(0).unwrap().virtual_memory_management);
    let refused = [
        driver.mem_granularity(0).map(drop),
        Reservation::new(&driver, 0, 2 << 20).map(drop),
        PhysicalMemory::new(&driver, 0, 2 << 20).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(error.code(), Some(CudaCode::NOT_SUPPORTED), "{error}");
        assert!(error.to_string().contains("virtual memory"), "{error}");
    }
    assert_eq!(driver.mem_info(0).unwrap().free, driver.mem_info(0).unwrap().total);
}

#[test]
fn a_host_function_that_is_dropped_unrun_may_panic_twice() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("the payload's drop");
        }
    }
    struct Captured;
    impl Drop for Captured {
        fn drop(&mut self) {
            std::panic::panic_any(Payload);
        }
    }
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
    let stream = sim.stream_create(0, StreamFlags::default()).unwrap();
    sim.inject(Fault::new(CallKind::LaunchHostFunc, CudaCode::LAUNCH_FAILED).at_run());
    let captured = Captured;
    let f = Box::new(move || drop(captured));
    // SAFETY: the stream is alive.
    unsafe { sim.launch_host_func(stream, f) }.unwrap();
    // SAFETY: the stream is alive.
    let error = unsafe { sim.stream_synchronize(stream) }.unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::LAUNCH_FAILED));
}
