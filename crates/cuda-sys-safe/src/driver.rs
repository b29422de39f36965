//! The driver interface.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;

use crate::*;

/// A CUDA driver: the real one, a simulated one, or one that does nothing.
///
/// Methods follow the driver API one to one, with two differences: no context is ever passed or
/// current (each handle knows its device, and a device's primary context is made on first need),
/// and after a sticky error every device of the process fails with [`DriverError::DeviceLost`] for
/// good, whichever of them failed: that is how the hardware's driver behaves. From then on releases
/// succeed without a driver call.
///
/// # Safety
/// Safe code reads and writes what an implementation returns: [`Driver::host_alloc`] returns as many
/// initialised bytes as were asked for, aligned for any primitive type, that nobody else uses until
/// [`Driver::host_free`]. Device addresses, reservations and mappings returned do not overlap others
/// that are alive. A wait that returns `Ok` returns after the work that it names, and a refused call
/// has enqueued nothing. Only the real driver is named `cuda`: libraries are given its handles.
///
/// # Safety of the `unsafe` methods
/// Handles and addresses must be live and come from this driver; memory that a call uses must
/// stay valid until the work it enqueues is done. The types of [`owned`] see to the former. Streams
/// are captured, and join captures, through [`owned::Stream`] alone, which keeps account of it.
#[allow(clippy::missing_safety_doc)] // one contract for all of them, stated above
pub unsafe trait Driver: Send + Sync + fmt::Debug {
    /// `cuda`, `sim` or `null`.
    fn name(&self) -> &'static str;

    /// The CUDA version the driver supports, as 1000 × major + 10 × minor.
    fn version(&self) -> Result<u32>;

    /// Devices that are visible. Does not create a context.
    fn device_count(&self) -> usize;

    /// What a device is. Does not create a context.
    fn properties(&self, device: usize) -> Result<DeviceProperties>;

    /// Whether the device's primary context exists.
    fn primary_context_active(&self, device: usize) -> Result<bool>;

    /// The releases that it refused, for the types of [`owned`]: a field that starts out empty.
    fn refused(&self) -> &owned::Refused;

    /// The error that poisoned the device, or any other of the process, if one did.
    fn lost(&self, device: usize) -> Option<DriverError>;

    /// Waits for all work on the device.
    fn synchronize(&self, device: usize) -> Result<()>;

    /// Free and total memory.
    fn mem_info(&self, device: usize) -> Result<MemInfo>;

    /// Bytes of the device that this process uses, contexts and modules included, where that is
    /// known. The real driver asks NVML, which may take long the first time.
    fn process_memory(&self, device: usize) -> Option<usize> {
        let _ = device;
        None
    }

    // ---- memory -------------------------------------------------------------------------

    /// `cuMemAlloc`. At least 512-byte aligned.
    fn mem_alloc(&self, device: usize, bytes: usize) -> Result<DevicePtr>;

    /// `cuMemFree`, which waits for the device.
    unsafe fn mem_free(&self, device: usize, ptr: DevicePtr) -> Result<()>;

    /// `cuMemHostAlloc`. `device` names whose context allocates.
    fn host_alloc(&self, device: usize, bytes: usize, flags: HostFlags) -> Result<NonNull<u8>>;

    /// `cuMemFreeHost`.
    unsafe fn host_free(&self, device: usize, ptr: NonNull<u8>) -> Result<()>;

    /// `cuMemHostRegister`: page-locks memory that already exists.
    unsafe fn host_register(
        &self,
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> Result<()>;

    /// `cuMemHostUnregister`.
    unsafe fn host_unregister(&self, device: usize, ptr: NonNull<u8>) -> Result<()>;

    /// `cuPointerGetAttribute`: whose memory an address is. Does not create a context.
    fn pointer_kind(&self, address: u64) -> Result<PointerKind>;

    /// `cuMemcpyAsync` and its peer form, whichever the ends ask for.
    unsafe fn memcpy_async(&self, copy: &Copy, stream: StreamHandle) -> Result<()>;

    /// `cuMemcpy`: returns when the copy is done, as the driver's rules have it.
    unsafe fn memcpy(&self, device: usize, copy: &Copy) -> Result<()>;

    /// `cuMemsetD8Async`, `D16`, `D32`: `count` elements.
    unsafe fn memset_async(
        &self,
        dst: DevicePtr,
        value: MemsetValue,
        count: usize,
        stream: StreamHandle,
    ) -> Result<()>;

    // ---- streams and events -------------------------------------------------------------

    /// Least and greatest priority, such as `(0, -5)`.
    fn stream_priority_range(&self, device: usize) -> Result<(i32, i32)>;

    /// `cuStreamCreateWithPriority`.
    fn stream_create(&self, device: usize, flags: StreamFlags) -> Result<StreamHandle>;

    /// `cuStreamDestroy`: returns at once; enqueued work still runs.
    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;

    /// `cuStreamQuery`: whether all its work is done.
    unsafe fn stream_query(&self, stream: StreamHandle) -> Result<bool>;

    /// `cuStreamSynchronize`.
    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;

    /// `cuStreamWaitEvent`: later work on the stream waits for the event's latest record.
    unsafe fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// `cuStreamWaitValue32`: later work on the stream waits until the word is at least the value,
    /// numbers going round: until their difference, as a signed number, is not negative. The word is
    /// in page-locked host memory, and anybody may write it, other processes too.
    ///
    /// # Errors
    /// That the stream is captured; that this driver has no such waits.
    unsafe fn stream_wait_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let _ = (word, value);
        Err(no_value("cuStreamWaitValue32_v2", stream.device()))
    }

    /// `cuStreamWriteValue32`: once earlier work on the stream is done, and everybody who sees the
    /// value can see what that wrote, the word in page-locked host memory gets the value.
    ///
    /// # Errors
    /// As [`Driver::stream_wait_value32`].
    unsafe fn stream_write_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let _ = (word, value);
        Err(no_value("cuStreamWriteValue32_v2", stream.device()))
    }

    /// `cuStreamGetPriority`.
    unsafe fn stream_priority(&self, stream: StreamHandle) -> Result<i32>;

    /// `cuLaunchHostFunc`: runs `f` on a driver thread, in stream order. `f` must not call CUDA.
    /// Refused on a stream that is captured, whose replays would run it more than once.
    unsafe fn launch_host_func(
        &self,
        stream: StreamHandle,
        f: Box<dyn FnOnce() + Send>,
    ) -> Result<()>;

    /// `cuEventCreate`.
    fn event_create(&self, device: usize, flags: EventFlags) -> Result<EventHandle>;

    /// `cuEventDestroy`.
    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()>;

    /// `cuEventRecord`. The stream must be on the event's device.
    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// `cuEventQuery`: whether the latest record's work is done; true if never recorded.
    unsafe fn event_query(&self, event: EventHandle) -> Result<bool>;

    /// `cuEventSynchronize`.
    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()>;

    /// `cuEventElapsedTime`, in milliseconds.
    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // ---- modules and launches -----------------------------------------------------------

    /// `cuModuleLoadData`: PTX text (a trailing NUL is added where missing) or machine code, of
    /// which the driver checks nothing: a malformed image may end the process.
    unsafe fn module_load(&self, device: usize, image: &[u8]) -> Result<ModuleHandle>;

    /// `cuModuleUnload`.
    unsafe fn module_unload(&self, module: ModuleHandle) -> Result<()>;

    /// `cuModuleGetFunction`.
    unsafe fn module_function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle>;

    /// `cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)`.
    unsafe fn function_max_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()>;

    /// `cuLaunchKernel`, or the library call, or the CPU implementation.
    unsafe fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()>;

    // ---- peers --------------------------------------------------------------------------

    /// `cuDeviceCanAccessPeer`.
    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool>;

    /// `cuCtxEnablePeerAccess`: lets `device` address `peer`'s memory. Enabling twice is no error.
    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<()>;

    /// `cuCtxDisablePeerAccess`. No work of `device` may use `peer`'s memory from then on.
    unsafe fn disable_peer_access(&self, device: usize, peer: usize) -> Result<()>;

    // ---- virtual memory -----------------------------------------------------------------

    /// `cuMemGetAllocationGranularity` (minimum).
    fn mem_granularity(&self, device: usize) -> Result<usize>;

    /// `cuMemAddressReserve`.
    fn address_reserve(&self, device: usize, bytes: usize) -> Result<DevicePtr>;

    /// `cuMemAddressFree`.
    unsafe fn address_free(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()>;

    /// `cuMemCreate`.
    fn mem_create(&self, device: usize, bytes: usize) -> Result<PhysicalHandle>;

    /// `cuMemCreate` of memory that [`Driver::mem_export`] can give to other processes.
    ///
    /// # Errors
    /// That this driver or system cannot share memory.
    fn mem_create_shareable(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        let _ = bytes;
        Err(cannot_share("cuMemCreate", device))
    }

    /// `cuMemExportToShareableHandle`: with what it returns another process opens the memory, which
    /// lives until nobody has it open, mapped or on its way, whatever becomes of its maker.
    ///
    /// # Errors
    /// Memory that was not created as shareable; that this driver or system cannot share memory.
    unsafe fn mem_export(&self, memory: PhysicalHandle) -> Result<OsHandle> {
        Err(cannot_share("cuMemExportToShareableHandle", memory.device()))
    }

    /// `cuMemImportFromShareableHandle`, of memory of this device. Whoever has it may write to the
    /// memory at any time.
    ///
    /// # Errors
    /// A handle of something else, or of another device; that this driver or system cannot share
    /// memory.
    fn mem_import(&self, device: usize, bytes: usize, handle: OsHandle) -> Result<PhysicalHandle> {
        let _ = (bytes, handle);
        Err(cannot_share("cuMemImportFromShareableHandle", device))
    }

    /// `cuMemRelease`: the memory goes once its last mapping does.
    unsafe fn mem_release(&self, memory: PhysicalHandle) -> Result<()>;

    /// `cuMemMap`.
    unsafe fn mem_map(
        &self,
        ptr: DevicePtr,
        bytes: usize,
        offset: usize,
        memory: PhysicalHandle,
    ) -> Result<()>;

    /// `cuMemSetAccess`.
    unsafe fn mem_set_access(
        &self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        access: &[(usize, MemAccess)],
    ) -> Result<()>;

    /// `cuMemUnmap`. Does not wait for work that uses the range.
    unsafe fn mem_unmap(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()>;

    // ---- stream-ordered pools -----------------------------------------------------------

    /// `cuMemPoolCreate`.
    fn mempool_create(&self, device: usize) -> Result<MemPoolHandle>;

    /// `cuMemPoolDestroy`.
    unsafe fn mempool_destroy(&self, pool: MemPoolHandle) -> Result<()>;

    /// `cuMemPoolSetAttribute(RELEASE_THRESHOLD)`.
    unsafe fn mempool_release_threshold(&self, pool: MemPoolHandle, bytes: u64) -> Result<()>;

    /// `cuMemPoolTrimTo`.
    unsafe fn mempool_trim(&self, pool: MemPoolHandle, keep_bytes: usize) -> Result<()>;

    /// `cuMemPoolSetAccess`: what devices may do with the pool's memory, that which exists and that
    /// to come. Its own device always reads and writes.
    unsafe fn mempool_set_access(
        &self,
        pool: MemPoolHandle,
        access: &[(usize, MemAccess)],
    ) -> Result<()>;

    /// `cuMemAllocFromPoolAsync`.
    unsafe fn mem_alloc_async(
        &self,
        pool: MemPoolHandle,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<DevicePtr>;

    /// `cuMemFreeAsync`.
    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamHandle) -> Result<()>;

    // ---- capture and graphs -------------------------------------------------------------

    /// `cuStreamBeginCapture`.
    unsafe fn begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()>;

    /// `cuStreamEndCapture`.
    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle>;

    /// `cuStreamGetCaptureInfo`.
    unsafe fn capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus>;

    /// `cuThreadExchangeStreamCaptureMode`: sets this thread's mode and returns the old one.
    fn exchange_capture_mode(&self, device: usize, mode: CaptureMode) -> Result<CaptureMode>;

    /// `cuGraphInstantiate`.
    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle>;

    /// `cuGraphLaunch`.
    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()>;

    /// `cuGraphDestroy`.
    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()>;

    /// `cuGraphExecDestroy`.
    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()>;

    // ---- other processes ----------------------------------------------------------------

    /// `cuIpcGetMemHandle`. The address must be the start of a `cuMemAlloc` allocation.
    unsafe fn ipc_mem_handle(&self, device: usize, ptr: DevicePtr) -> Result<IpcMemHandle>;

    /// `cuIpcOpenMemHandle`.
    fn ipc_open_mem(&self, device: usize, handle: IpcMemHandle) -> Result<DevicePtr>;

    /// `cuIpcCloseMemHandle`.
    unsafe fn ipc_close_mem(&self, device: usize, ptr: DevicePtr) -> Result<()>;

    /// `cuIpcGetEventHandle`.
    unsafe fn ipc_event_handle(&self, event: EventHandle) -> Result<IpcEventHandle>;

    /// `cuIpcOpenEventHandle`.
    fn ipc_open_event(&self, device: usize, handle: IpcEventHandle) -> Result<EventHandle>;

    // ---- collectives --------------------------------------------------------------------

    /// NCCL for this driver's devices.
    ///
    /// # Errors
    /// [`DriverError::LibraryNotFound`] with every name tried; that this driver has none.
    fn nccl(&self) -> Result<&dyn nccl::Nccl> {
        let reason = format!("the {} driver has no NCCL", self.name());
        Err(DriverError::InvalidArgument { call: "nccl", reason })
    }
}

fn cannot_share(call: &'static str, device: usize) -> DriverError {
    let why = "this driver or system cannot share memory with other processes";
    DriverError::cuda(call, CudaCode::NOT_SUPPORTED, Some(device)).with_detail(|| why.into())
}

fn no_value(call: &'static str, device: usize) -> DriverError {
    let why = "this driver's streams cannot wait for values in memory";
    DriverError::cuda(call, CudaCode::NOT_SUPPORTED, Some(device)).with_detail(|| why.into())
}
