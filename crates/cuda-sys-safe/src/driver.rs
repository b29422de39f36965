//! The driver interface.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;

use crate::*;

/// A CUDA driver: the real one, a simulated one, or one that does nothing.
///
/// The methods follow the driver API, with two differences:
/// - No context is passed or current. Each handle knows its device, and a device's primary context
///   is created on first need.
/// - After a sticky error on any device, every device of the process fails with
///   [`DriverError::DeviceLost`] for good, because `libcuda` behaves in this way. (Simulated
///   devices can be isolated from each other.) Releases then succeed without a driver call.
///
/// # Errors
/// All methods that return a [`Result`] share these errors:
/// - [`DriverError::InvalidDevice`] if there is no such device.
/// - [`DriverError::Cuda`] if the driver refuses the call, or if earlier asynchronous work failed.
/// - [`DriverError::DeviceLost`] if a sticky error lost the device earlier.
/// - [`DriverError::ForkedChild`] if the process was forked from the process that made the driver.
/// - [`DriverError::MissingSymbol`] if the driver library is too old for the call.
///
/// A method's own `# Errors` section adds to this list.
///
/// # Safety
/// Safe code relies on an implementation for these facts:
/// - [`Driver::host_alloc`] returns as many initialised bytes as requested, aligned for any
///   primitive type. No other code uses the bytes until [`Driver::host_free`].
/// - Device addresses, reservations and mappings that are returned do not overlap others that are
///   alive.
/// - A wait that returns `Ok` returns after the work that it waits for.
/// - A refused call has enqueued nothing.
/// - Only the real driver has the name `cuda`: the handles of a driver with this name are passed to
///   libraries such as cuBLAS.
///
/// # Safety of the `unsafe` methods
/// Handles and addresses must be live and come from this driver; the types of [`owned`] ensure
/// this. Memory that a call uses must stay valid until the work that the call enqueues is done.
/// Streams are captured, and join captures, only through [`owned::Stream`], which records the
/// captures.
#[allow(clippy::missing_safety_doc)] // one contract for all of them, stated above
pub unsafe trait Driver: Send + Sync + fmt::Debug {
    /// Returns `cuda`, `sim` or `null`.
    fn name(&self) -> &'static str;

    /// Returns the CUDA version that the driver supports, as 1000 × major + 10 × minor.
    fn version(&self) -> Result<u32>;

    /// Returns the number of visible devices. Does not create a context.
    fn device_count(&self) -> usize;

    /// Returns the properties of a device. Does not create a context.
    fn properties(&self, device: usize) -> Result<DeviceProperties>;

    /// Returns `true` if the device's primary context exists.
    fn primary_context_active(&self, device: usize) -> Result<bool>;

    /// Returns the list of refused releases, which the types of [`owned`] maintain. An
    /// implementation returns a field that is initially empty.
    fn refused(&self) -> &owned::Refused;

    /// Returns [`DriverError::DeviceLost`] if a sticky error on any device of the process lost the
    /// device.
    fn lost(&self, device: usize) -> Option<DriverError>;

    /// Blocks the host until all work on the device is done (`cuCtxSynchronize`).
    fn synchronize(&self, device: usize) -> Result<()>;

    /// Returns the device's free and total memory (`cuMemGetInfo`).
    fn mem_info(&self, device: usize) -> Result<MemInfo>;

    /// Returns the processes with a context on the device; `None` if unknown. A process has several
    /// entries if it uses several instances of a partitioned device. The real driver asks NVML, and
    /// the first call may take long.
    fn processes(&self, device: usize) -> Option<Vec<GpuProcess>> {
        let _ = device;
        None
    }

    /// Returns the device memory that this process uses, in bytes, including contexts and modules;
    /// `None` if unknown.
    fn process_memory(&self, device: usize) -> Option<usize> {
        let (pid, processes) = (std::process::id(), self.processes(device)?);
        let mut own = processes.iter().filter(|process| process.pid == pid).peekable();
        own.peek()?;
        own.map(|process| process.memory).sum()
    }

    // ---- memory -------------------------------------------------------------------------

    /// Allocates device memory (`cuMemAlloc`), aligned to at least 512 bytes.
    fn mem_alloc(&self, device: usize, bytes: usize) -> Result<DevicePtr>;

    /// Frees device memory after waiting for the device (`cuMemFree`).
    unsafe fn mem_free(&self, device: usize, ptr: DevicePtr) -> Result<()>;

    /// Allocates page-locked host memory (`cuMemHostAlloc`) in the context of `device`.
    fn host_alloc(&self, device: usize, bytes: usize, flags: HostFlags) -> Result<NonNull<u8>>;

    /// Frees page-locked host memory (`cuMemFreeHost`).
    unsafe fn host_free(&self, device: usize, ptr: NonNull<u8>) -> Result<()>;

    /// Page-locks existing host memory (`cuMemHostRegister`).
    unsafe fn host_register(
        &self,
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> Result<()>;

    /// Undoes [`Driver::host_register`] (`cuMemHostUnregister`).
    unsafe fn host_unregister(&self, device: usize, ptr: NonNull<u8>) -> Result<()>;

    /// Returns the kind of memory that an address belongs to (`cuPointerGetAttribute`). Does not
    /// create a context.
    fn pointer_kind(&self, address: u64) -> Result<PointerKind>;

    /// Enqueues a copy (`cuMemcpyAsync`, or `cuMemcpyPeerAsync` if the ends require it).
    unsafe fn memcpy_async(&self, copy: &Copy, stream: StreamHandle) -> Result<()>;

    /// Copies memory (`cuMemcpy`). Returns when the copy is done, with the exceptions that CUDA
    /// documents, such as copies between devices.
    unsafe fn memcpy(&self, device: usize, copy: &Copy) -> Result<()>;

    /// Enqueues a memset of `count` elements (`cuMemsetD8Async`, `D16`, `D32`).
    unsafe fn memset_async(
        &self,
        dst: DevicePtr,
        value: MemsetValue,
        count: usize,
        stream: StreamHandle,
    ) -> Result<()>;

    // ---- streams and events -------------------------------------------------------------

    /// Returns the least and the greatest stream priority, such as `(0, -5)`.
    fn stream_priority_range(&self, device: usize) -> Result<(i32, i32)>;

    /// Creates a stream (`cuStreamCreateWithPriority`).
    fn stream_create(&self, device: usize, flags: StreamFlags) -> Result<StreamHandle>;

    /// Destroys a stream (`cuStreamDestroy`). Returns at once; enqueued work still runs.
    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()>;

    /// Returns `true` if all work on the stream is done (`cuStreamQuery`).
    unsafe fn stream_query(&self, stream: StreamHandle) -> Result<bool>;

    /// Blocks the host until all work on the stream is done (`cuStreamSynchronize`).
    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()>;

    /// Makes later work on the stream wait for the event's latest record (`cuStreamWaitEvent`).
    unsafe fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    /// Makes later work on the stream wait until the word is at least `value`
    /// (`cuStreamWaitValue32`). The comparison is cyclic: the wait ends when `word - value`, as a
    /// signed number, is not negative. The word is in page-locked host memory. Any thread or
    /// process may write it, but only by 32-bit atomics.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] with [`CudaCode::NOT_SUPPORTED`] if this driver has no such waits. A
    /// simulated driver returns it with [`CudaCode::STREAM_CAPTURE_UNSUPPORTED`] if the stream is
    /// captured.
    unsafe fn stream_wait_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let _ = (word, value);
        Err(not_supported("cuStreamWaitValue32_v2", stream.device(), NO_VALUES))
    }

    /// Writes `value` to a word in page-locked host memory once earlier work on the stream is done
    /// (`cuStreamWriteValue32`). A reader that sees the value also sees all writes of the earlier
    /// work.
    ///
    /// # Errors
    /// The same as [`Driver::stream_wait_value32`].
    unsafe fn stream_write_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let _ = (word, value);
        Err(not_supported("cuStreamWriteValue32_v2", stream.device(), NO_VALUES))
    }

    /// Returns the priority of a stream (`cuStreamGetPriority`).
    unsafe fn stream_priority(&self, stream: StreamHandle) -> Result<i32>;

    /// Runs `f` in stream order, on a thread of the driver (`cuLaunchHostFunc`). `f` must not call
    /// CUDA.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] with [`CudaCode::STREAM_CAPTURE_UNSUPPORTED`] if the stream is
    /// captured: each replay would run `f` again.
    unsafe fn launch_host_func(
        &self,
        stream: StreamHandle,
        f: Box<dyn FnOnce() + Send>,
    ) -> Result<()>;

    /// Creates an event (`cuEventCreate`).
    fn event_create(&self, device: usize, flags: EventFlags) -> Result<EventHandle>;

    /// Destroys an event (`cuEventDestroy`).
    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()>;

    /// Records an event on a stream of the same device (`cuEventRecord`).
    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Returns `true` if the work before the event's latest record is done, or if the event was
    /// never recorded (`cuEventQuery`).
    unsafe fn event_query(&self, event: EventHandle) -> Result<bool>;

    /// Blocks the host until the work before the event's latest record is done
    /// (`cuEventSynchronize`).
    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()>;

    /// Returns the time between two events, in milliseconds (`cuEventElapsedTime`).
    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // ---- modules and launches -----------------------------------------------------------

    /// Loads a module (`cuModuleLoadDataEx`) from PTX text or machine code. Text needs no trailing
    /// NUL. The driver does not check machine code: a malformed image may end the process.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the image is empty, from the real driver. A simulated
    /// driver returns [`DriverError::Cuda`] with [`CudaCode::INVALID_PTX`].
    unsafe fn module_load(&self, device: usize, image: &[u8]) -> Result<ModuleHandle>;

    /// Unloads a module (`cuModuleUnload`).
    unsafe fn module_unload(&self, module: ModuleHandle) -> Result<()>;

    /// Finds a kernel of a module (`cuModuleGetFunction`).
    unsafe fn module_function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle>;

    /// Sets the largest dynamic shared memory of a kernel, in bytes
    /// (`cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)`).
    unsafe fn function_max_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()>;

    /// Enqueues a launch: the kernel (`cuLaunchKernel`, or `cuLaunchKernelEx` for a kernel that
    /// waits itself), the library call, or the CPU implementation, as [`DeviceCode`] and the driver
    /// require.
    unsafe fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()>;

    // ---- peers --------------------------------------------------------------------------

    /// Returns `true` if `device` can address the memory of `peer` (`cuDeviceCanAccessPeer`).
    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool>;

    /// Lets `device` address the memory of `peer` (`cuCtxEnablePeerAccess`). Enabling twice is no
    /// error.
    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<()>;

    /// Ends the access of `device` to the memory of `peer` (`cuCtxDisablePeerAccess`). No work of
    /// `device` may use that memory from then on.
    unsafe fn disable_peer_access(&self, device: usize, peer: usize) -> Result<()>;

    // ---- virtual memory -----------------------------------------------------------------

    /// Returns the minimum granularity of physical memory, in bytes
    /// (`cuMemGetAllocationGranularity`).
    fn mem_granularity(&self, device: usize) -> Result<usize>;

    /// Reserves a range of device addresses (`cuMemAddressReserve`).
    fn address_reserve(&self, device: usize, bytes: usize) -> Result<DevicePtr>;

    /// Frees a reserved range of addresses (`cuMemAddressFree`).
    unsafe fn address_free(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()>;

    /// Allocates physical memory (`cuMemCreate`).
    fn mem_create(&self, device: usize, bytes: usize) -> Result<PhysicalHandle>;

    /// Allocates physical memory that [`Driver::mem_export`] can give to other processes
    /// (`cuMemCreate`).
    ///
    /// # Errors
    /// [`DriverError::Cuda`] with [`CudaCode::NOT_SUPPORTED`] if this driver or system cannot share
    /// memory.
    fn mem_create_shareable(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        let _ = bytes;
        Err(not_supported("cuMemCreate", device, CANNOT_SHARE))
    }

    /// Returns an operating-system handle with which another process opens the memory
    /// (`cuMemExportToShareableHandle`). The memory lives until no process has it open or mapped
    /// and no handle is in transit, even if the process that made it ends.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] if the memory was not created by [`Driver::mem_create_shareable`], and
    /// with [`CudaCode::NOT_SUPPORTED`] if this driver or system cannot share memory.
    unsafe fn mem_export(&self, memory: PhysicalHandle) -> Result<OsHandle> {
        Err(not_supported("cuMemExportToShareableHandle", memory.device(), CANNOT_SHARE))
    }

    /// Opens memory of this device that another process exported
    /// (`cuMemImportFromShareableHandle`). Other processes that have the memory may write to it at
    /// any time.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] if the handle does not refer to exported memory of this device, and
    /// with [`CudaCode::NOT_SUPPORTED`] if this driver or system cannot share memory.
    fn mem_import(&self, device: usize, bytes: usize, handle: OsHandle) -> Result<PhysicalHandle> {
        let _ = (bytes, handle);
        Err(not_supported("cuMemImportFromShareableHandle", device, CANNOT_SHARE))
    }

    /// Releases physical memory (`cuMemRelease`). The memory is freed when its last mapping is
    /// gone.
    unsafe fn mem_release(&self, memory: PhysicalHandle) -> Result<()>;

    /// Maps `bytes` bytes of physical memory, from `offset` on, at `ptr` (`cuMemMap`).
    unsafe fn mem_map(
        &self,
        ptr: DevicePtr,
        bytes: usize,
        offset: usize,
        memory: PhysicalHandle,
    ) -> Result<()>;

    /// Sets the access of devices to a mapped range (`cuMemSetAccess`).
    unsafe fn mem_set_access(
        &self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        access: &[(usize, MemAccess)],
    ) -> Result<()>;

    /// Unmaps a range (`cuMemUnmap`). Does not wait for work that uses the range.
    unsafe fn mem_unmap(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()>;

    // ---- stream-ordered pools -----------------------------------------------------------

    /// Creates a stream-ordered memory pool (`cuMemPoolCreate`).
    fn mempool_create(&self, device: usize) -> Result<MemPoolHandle>;

    /// Destroys a pool (`cuMemPoolDestroy`).
    unsafe fn mempool_destroy(&self, pool: MemPoolHandle) -> Result<()>;

    /// Sets the unused memory that a pool keeps at synchronisations, in bytes
    /// (`cuMemPoolSetAttribute(RELEASE_THRESHOLD)`).
    unsafe fn mempool_release_threshold(&self, pool: MemPoolHandle, bytes: u64) -> Result<()>;

    /// Releases unused memory of a pool until the pool holds `keep_bytes` bytes
    /// (`cuMemPoolTrimTo`).
    unsafe fn mempool_trim(&self, pool: MemPoolHandle, keep_bytes: usize) -> Result<()>;

    /// Sets the access of devices to a pool's memory (`cuMemPoolSetAccess`). Applies to the pool's
    /// present and future allocations. The pool's own device can always read and write.
    unsafe fn mempool_set_access(
        &self,
        pool: MemPoolHandle,
        access: &[(usize, MemAccess)],
    ) -> Result<()>;

    /// Allocates memory from a pool, in stream order (`cuMemAllocFromPoolAsync`).
    unsafe fn mem_alloc_async(
        &self,
        pool: MemPoolHandle,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<DevicePtr>;

    /// Frees memory in stream order (`cuMemFreeAsync`).
    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamHandle) -> Result<()>;

    // ---- capture and graphs -------------------------------------------------------------

    /// Begins to capture a stream (`cuStreamBeginCapture`).
    unsafe fn begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()>;

    /// Ends a capture and returns its graph (`cuStreamEndCapture`).
    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle>;

    /// Returns the capture status of a stream (`cuStreamGetCaptureInfo`).
    unsafe fn capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus>;

    /// Creates a condition in the graph that the stream is captured into
    /// (`cuGraphConditionalHandleCreate`). Each launch of the graph begins with the value 0. Kernels
    /// of the graph set the value with `cudaGraphSetConditional`, and CPU implementations with
    /// [`set_graph_condition`].
    ///
    /// # Errors
    /// [`DriverError::Cuda`] with [`CudaCode::NOT_SUPPORTED`] if this driver has no conditions, and
    /// with [`CudaCode::ILLEGAL_STATE`] if the stream is not captured.
    unsafe fn condition_create(&self, stream: StreamHandle) -> Result<ConditionHandle> {
        Err(not_supported("cuGraphConditionalHandleCreate", stream.device(), NO_CONDITIONS))
    }

    /// Adds a conditional node to the graph that the stream is captured into (`cuGraphAddNode`).
    /// The node depends on the stream's captured work, and later work of the stream depends on the
    /// node. Returns the body, an empty graph that belongs to the captured graph.
    ///
    /// # Errors
    /// The same as [`Driver::condition_create`].
    unsafe fn capture_conditional(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        let _ = (condition, kind);
        Err(not_supported("cuGraphAddNode", stream.device(), NO_CONDITIONS))
    }

    /// Begins to capture a stream into the body of a conditional node
    /// (`cuStreamBeginCaptureToGraph`), in relaxed mode. [`Driver::end_capture`] ends the capture
    /// and returns the body, which must not be destroyed. The graph that the body belongs to must
    /// not be destroyed before the capture has ended.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] with [`CudaCode::NOT_SUPPORTED`] if this driver has no conditions.
    unsafe fn begin_capture_to_body(&self, stream: StreamHandle, body: GraphHandle) -> Result<()> {
        let _ = body;
        Err(not_supported("cuStreamBeginCaptureToGraph", stream.device(), NO_CONDITIONS))
    }

    /// Sets the calling thread's capture mode and returns the old mode
    /// (`cuThreadExchangeStreamCaptureMode`).
    fn exchange_capture_mode(&self, device: usize, mode: CaptureMode) -> Result<CaptureMode>;

    /// Makes an executable graph (`cuGraphInstantiate`).
    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle>;

    /// Enqueues a replay of an executable graph (`cuGraphLaunch`).
    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()>;

    /// Describes a graph in the DOT language of Graphviz, in a file (`cuGraphDebugDotPrint`,
    /// with all details). The file is created or replaced.
    unsafe fn graph_debug_dot_print(&self, graph: GraphHandle, path: &CStr) -> Result<()>;

    /// Destroys a graph (`cuGraphDestroy`).
    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()>;

    /// Destroys an executable graph (`cuGraphExecDestroy`).
    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()>;

    // ---- other processes ----------------------------------------------------------------

    /// Returns a handle with which another process opens an allocation (`cuIpcGetMemHandle`). The
    /// address must be the start of a `cuMemAlloc` allocation.
    unsafe fn ipc_mem_handle(&self, device: usize, ptr: DevicePtr) -> Result<IpcMemHandle>;

    /// Opens an allocation of another process (`cuIpcOpenMemHandle`).
    fn ipc_open_mem(&self, device: usize, handle: IpcMemHandle) -> Result<DevicePtr>;

    /// Closes an allocation of another process (`cuIpcCloseMemHandle`).
    unsafe fn ipc_close_mem(&self, device: usize, ptr: DevicePtr) -> Result<()>;

    /// Returns a handle with which another process opens an event (`cuIpcGetEventHandle`).
    unsafe fn ipc_event_handle(&self, event: EventHandle) -> Result<IpcEventHandle>;

    /// Opens an event of another process (`cuIpcOpenEventHandle`).
    fn ipc_open_event(&self, device: usize, handle: IpcEventHandle) -> Result<EventHandle>;

    // ---- collectives --------------------------------------------------------------------

    /// Returns NCCL for this driver's devices.
    ///
    /// # Errors
    /// - [`DriverError::LibraryNotFound`] if no NCCL library is found.
    /// - [`DriverError::MissingSymbol`] if the library is older than NCCL 2.18.
    /// - [`DriverError::InvalidArgument`] if this driver has no NCCL, or if the process is ending.
    fn nccl(&self) -> Result<&dyn nccl::Nccl> {
        let reason = format!("the {} driver has no NCCL", self.name());
        Err(DriverError::InvalidArgument { call: "nccl", reason })
    }
}

const CANNOT_SHARE: &str = "this driver or system cannot share memory with other processes";
const NO_VALUES: &str = "this driver's streams cannot wait for values in memory";
const NO_CONDITIONS: &str = "this driver has no conditional nodes";

fn not_supported(call: &'static str, device: usize, why: &'static str) -> DriverError {
    DriverError::cuda(call, CudaCode::NOT_SUPPORTED, Some(device)).with_detail(|| why.into())
}
