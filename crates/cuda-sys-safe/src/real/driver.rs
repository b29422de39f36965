//! The driver interface, one driver call after another.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use cudarc::driver::sys::{
    CUevent, CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUipcEventHandle,
    CUipcMemHandle, CUmemAllocationGranularity_flags, CUmemAllocationType, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUmodule, CUpointer_attribute, CUstream,
};

use super::call_macros::{call, release};
use super::captures::check_no_body;
use super::raw::{
    VERBOSE_DOT, host_flags, mode_number, mode_of, on_device, pinned_on, raw_access, raw_event,
    raw_pool, raw_stream,
};
use super::{CudaDriver, nvml};
use crate::*;

/// Turns the result of a query into a `bool`: `NOT_READY` is not an error.
fn ready(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(CudaCode::NOT_READY) => Ok(false),
        Err(error) => Err(error),
    }
}

// SAFETY: each method makes the driver call that its documentation names. CUDA's allocations do not
// overlap, its waits return after the awaited work, and a refused call enqueues nothing.
unsafe impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn version(&self) -> Result<u32> {
        Ok(self.version)
    }

    fn device_count(&self) -> usize {
        self.devices.len()
    }

    fn properties(&self, device: usize) -> Result<DeviceProperties> {
        self.read_properties(device)
    }

    fn primary_context_active(&self, device: usize) -> Result<bool> {
        let state = self.admit("cuDevicePrimaryCtxGetState", device)?;
        self.context_active(state, device)
    }

    fn refused(&self) -> &owned::Refused {
        &self.refused
    }

    fn lost(&self, device: usize) -> Option<DriverError> {
        self.devices.get(device)?.lost_error(device)
    }

    fn synchronize(&self, device: usize) -> Result<()> {
        check_no_body(device)?;
        call!(self, device, cuCtxSynchronize())
    }

    fn mem_info(&self, device: usize) -> Result<MemInfo> {
        let (mut free, mut total) = (0, 0);
        call!(self, device, cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(MemInfo { free, total })
    }

    fn processes(&self, device: usize) -> Option<Vec<GpuProcess>> {
        nvml::processes(self.read_properties(device).ok()?.pci)
    }

    // ---- memory -------------------------------------------------------------------------

    fn mem_alloc(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        call!(self, device, cuMemAlloc_v2(&mut ptr, bytes))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))?;
        // SAFETY: this driver has just allocated the memory.
        Ok(unsafe { DevicePtr::from_raw(ptr) })
    }

    unsafe fn mem_free(&self, device: usize, ptr: DevicePtr) -> Result<()> {
        release!(self, device, cuMemFree_v2(ptr.addr()))
    }

    fn host_alloc(&self, device: usize, bytes: usize, flags: HostFlags) -> Result<NonNull<u8>> {
        let mut ptr = ptr::null_mut();
        call!(self, device, cuMemHostAlloc(&mut ptr, bytes, host_flags(flags)))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))?;
        // The driver accepts a size of zero and returns null.
        NonNull::new(ptr.cast()).ok_or_else(|| {
            let code = if bytes == 0 { CudaCode::INVALID_VALUE } else { CudaCode::OUT_OF_MEMORY };
            DriverError::cuda("cuMemHostAlloc", code, Some(device))
                .with_detail(|| format!("{bytes} bytes"))
        })
    }

    unsafe fn host_free(&self, device: usize, ptr: NonNull<u8>) -> Result<()> {
        release!(self, device, cuMemFreeHost(ptr.as_ptr().cast()))
    }

    unsafe fn host_register(
        &self,
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
        flags: HostFlags,
    ) -> Result<()> {
        let ptr = ptr.as_ptr().cast();
        call!(self, device, cuMemHostRegister_v2(ptr, bytes, host_flags(flags)))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))
    }

    unsafe fn host_unregister(&self, device: usize, ptr: NonNull<u8>) -> Result<()> {
        release!(self, device, cuMemHostUnregister(ptr.as_ptr().cast()))
    }

    fn pointer_kind(&self, address: u64) -> Result<PointerKind> {
        const CALL: &str = "cuPointerGetAttribute";
        self.admit_process(CALL)?;
        // The call needs a current context. If no device has a context, no memory is page-locked,
        // and a query should not create one.
        let mut lost = None;
        let mut active = None;
        for (device, state) in self.devices.iter().enumerate() {
            if let Some(error) = state.lost_error(device) {
                lost = Some(error);
            } else if self.context_active(state, device)? {
                active = Some(device);
                break;
            }
        }
        let Some(device) = active else {
            return lost.map_or(Ok(PointerKind::Pageable), Err);
        };
        let ask = |attribute: CUpointer_attribute| -> Result<u32> {
            let mut value = 0u32;
            let data: *mut c_void = (&raw mut value).cast();
            call!(self, device, cuPointerGetAttribute(data, attribute, address))?;
            Ok(value)
        };
        match ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            Ok(1) => Ok(PointerKind::Pinned),
            Ok(2) => {
                let owner = ask(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
                Ok(PointerKind::Device(owner as usize))
            }
            Ok(_) => Ok(PointerKind::Pageable),
            // The driver returns this code for an address that it does not know.
            Err(e) if e.code() == Some(CudaCode::INVALID_VALUE) => Ok(PointerKind::Pageable),
            Err(e) => Err(e),
        }
    }

    unsafe fn memcpy_async(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        self.enter("cuMemcpyAsync", stream.device())?;
        // SAFETY: the caller keeps both ends valid until the copy is done. The stream is live, and
        // its device is entered.
        unsafe { self.copy(stream.device(), copy, Some(raw_stream(stream))) }
    }

    unsafe fn memcpy(&self, device: usize, copy: &Copy) -> Result<()> {
        self.enter("cuMemcpy", device)?;
        // SAFETY: the caller guarantees that both ends are valid. The device is entered.
        unsafe { self.copy(device, copy, None) }
    }

    unsafe fn memset_async(
        &self,
        dst: DevicePtr,
        value: MemsetValue,
        count: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        let (device, dst, raw) = (stream.device(), dst.addr(), raw_stream(stream));
        match value {
            MemsetValue::U8(value) => {
                call!(self, device, cuMemsetD8Async(dst, value, count, raw))
            }
            MemsetValue::U16(value) => {
                call!(self, device, cuMemsetD16Async(dst, value, count, raw))
            }
            MemsetValue::U32(value) => {
                call!(self, device, cuMemsetD32Async(dst, value, count, raw))
            }
        }
    }

    // ---- streams and events -------------------------------------------------------------

    fn stream_priority_range(&self, device: usize) -> Result<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        call!(self, device, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        Ok((least, greatest))
    }

    fn stream_create(&self, device: usize, flags: StreamFlags) -> Result<StreamHandle> {
        let mut stream: CUstream = ptr::null_mut();
        let non_blocking = u32::from(flags.non_blocking);
        call!(self, device, cuStreamCreateWithPriority(&mut stream, non_blocking, flags.priority))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { StreamHandle::from_raw(device, stream as usize as u64) })
    }

    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        release!(self, stream.device(), cuStreamDestroy_v2(raw_stream(stream)))
    }

    unsafe fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        let query = || call!(self, stream.device(), cuStreamQuery(raw_stream(stream)));
        ready(query())
    }

    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        call!(self, stream.device(), cuStreamSynchronize(raw_stream(stream)))
    }

    unsafe fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        call!(self, stream.device(), cuStreamWaitEvent(raw_stream(stream), raw_event(event), 0))
    }

    unsafe fn stream_wait_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        /// `CU_STREAM_WAIT_VALUE_GEQ`.
        const AT_LEAST: u32 = 0;
        let (raw, at) = (raw_stream(stream), word.as_ptr().expose_provenance() as u64);
        call!(self, stream.device(), cuStreamWaitValue32_v2?(raw, at, value, AT_LEAST))
    }

    unsafe fn stream_write_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        /// `CU_STREAM_WRITE_VALUE_DEFAULT`: the write follows a system-wide fence.
        const FENCED: u32 = 0;
        let (raw, at) = (raw_stream(stream), word.as_ptr().expose_provenance() as u64);
        call!(self, stream.device(), cuStreamWriteValue32_v2?(raw, at, value, FENCED))
    }

    unsafe fn stream_priority(&self, stream: StreamHandle) -> Result<i32> {
        let mut priority = 0;
        call!(self, stream.device(), cuStreamGetPriority(raw_stream(stream), &mut priority))?;
        Ok(priority)
    }

    unsafe fn launch_host_func(
        &self,
        stream: StreamHandle,
        f: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        // SAFETY: the caller guarantees a live stream, and a closure that may run on another thread.
        unsafe { self.enqueue_host(stream, f) }
    }

    fn event_create(&self, device: usize, flags: EventFlags) -> Result<EventHandle> {
        const BLOCKING_SYNC: u32 = 1;
        const DISABLE_TIMING: u32 = 2;
        const INTERPROCESS: u32 = 4;
        let bits = u32::from(flags.blocking) * BLOCKING_SYNC
            + u32::from(!flags.timing) * DISABLE_TIMING
            + u32::from(flags.interprocess) * INTERPROCESS;
        let mut event: CUevent = ptr::null_mut();
        call!(self, device, cuEventCreate(&mut event, bits))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { EventHandle::from_raw(device, event as usize as u64) })
    }

    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()> {
        release!(self, event.device(), cuEventDestroy_v2(raw_event(event)))
    }

    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        call!(self, stream.device(), cuEventRecord(raw_event(event), raw_stream(stream)))
    }

    unsafe fn event_query(&self, event: EventHandle) -> Result<bool> {
        let query = || call!(self, event.device(), cuEventQuery(raw_event(event)));
        ready(query())
    }

    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        call!(self, event.device(), cuEventSynchronize(raw_event(event)))
    }

    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let mut milliseconds = 0.0;
        let (from, to) = (raw_event(start), raw_event(end));
        call!(self, start.device(), cuEventElapsedTime(&mut milliseconds, from, to))?;
        Ok(milliseconds)
    }

    // ---- modules and launches -----------------------------------------------------------

    unsafe fn module_load(&self, device: usize, image: &[u8]) -> Result<ModuleHandle> {
        self.load_module(device, image)
    }

    unsafe fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        release!(self, module.device(), cuModuleUnload(module.raw() as usize as CUmodule))
    }

    unsafe fn module_function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        let mut function: CUfunction = ptr::null_mut();
        let raw = module.raw() as usize as CUmodule;
        call!(self, module.device(), cuModuleGetFunction(&mut function, raw, name.as_ptr()))?;
        // SAFETY: this driver has just returned the function.
        Ok(unsafe { FunctionHandle::from_raw(module.device(), function as usize as u64) })
    }

    unsafe fn function_max_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        const SHARED: CUfunction_attribute =
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let raw = function.raw() as usize as CUfunction;
        call!(self, function.device(), cuFuncSetAttribute(raw, SHARED, bytes as c_int))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes of shared memory")))
    }

    unsafe fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller guarantees a live stream, and that the code accesses only the footprints.
        unsafe { self.enqueue(stream, launch) }
    }

    // ---- peers --------------------------------------------------------------------------

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        const CALL: &str = "cuDeviceCanAccessPeer";
        let (from, to) = (self.admit(CALL, device)?.raw, self.admit(CALL, peer)?.raw);
        let function = self.api.cuDeviceCanAccessPeer()?;
        let mut can = 0;
        // SAFETY: the pointer is valid for writes, and the devices exist.
        let status = unsafe { function(&mut can, from, to) };
        self.check(CALL, device, status)?;
        Ok(can != 0)
    }

    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<()> {
        let context = self.context("cuCtxEnablePeerAccess", peer)?;
        let enable = || call!(self, device, cuCtxEnablePeerAccess?(context, 0));
        match enable() {
            Err(e) if e.code() == Some(CudaCode::PEER_ACCESS_ALREADY_ENABLED) => Ok(()),
            answer => answer.map_err(|e| e.with_detail(|| format!("peer cuda:{peer}"))),
        }
    }

    unsafe fn disable_peer_access(&self, device: usize, peer: usize) -> Result<()> {
        let context = self.context("cuCtxDisablePeerAccess", peer)?;
        call!(self, device, cuCtxDisablePeerAccess?(context))
            .map_err(|e| e.with_detail(|| format!("peer cuda:{peer}")))
    }

    // ---- virtual memory -----------------------------------------------------------------

    fn mem_granularity(&self, device: usize) -> Result<usize> {
        const MINIMUM: CUmemAllocationGranularity_flags =
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let (mut bytes, prop) = (0, pinned_on(device));
        call!(self, device, cuMemGetAllocationGranularity?(&mut bytes, &prop, MINIMUM))?;
        Ok(bytes)
    }

    fn address_reserve(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        call!(self, device, cuMemAddressReserve?(&mut ptr, bytes, 0, 0, 0))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))?;
        // SAFETY: this driver has just reserved the addresses.
        Ok(unsafe { DevicePtr::from_raw(ptr) })
    }

    unsafe fn address_free(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()> {
        release!(self, device, cuMemAddressFree?(ptr.addr(), bytes))
    }

    fn mem_create(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        let (mut handle, prop) = (0, pinned_on(device));
        call!(self, device, cuMemCreate?(&mut handle, bytes, &prop, 0))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { PhysicalHandle::from_raw(device, handle) })
    }

    #[cfg(unix)]
    fn mem_create_shareable(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        self.create_shareable(device, bytes)
    }

    #[cfg(unix)]
    unsafe fn mem_export(&self, memory: PhysicalHandle) -> Result<OsHandle> {
        // SAFETY: the caller guarantees that the memory is not released.
        unsafe { self.export(memory) }
    }

    #[cfg(unix)]
    fn mem_import(&self, device: usize, _bytes: usize, handle: OsHandle) -> Result<PhysicalHandle> {
        self.import(device, handle)
    }

    unsafe fn mem_release(&self, memory: PhysicalHandle) -> Result<()> {
        release!(self, memory.device(), cuMemRelease?(memory.raw()))
    }

    unsafe fn mem_map(
        &self,
        ptr: DevicePtr,
        bytes: usize,
        offset: usize,
        memory: PhysicalHandle,
    ) -> Result<()> {
        call!(self, memory.device(), cuMemMap?(ptr.addr(), bytes, offset, memory.raw(), 0))
    }

    unsafe fn mem_set_access(
        &self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        let access = raw_access(access);
        call!(self, device, cuMemSetAccess?(ptr.addr(), bytes, access.as_ptr(), access.len()))
    }

    unsafe fn mem_unmap(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()> {
        release!(self, device, cuMemUnmap?(ptr.addr(), bytes))
    }

    // ---- stream-ordered pools -----------------------------------------------------------

    fn mempool_create(&self, device: usize) -> Result<MemPoolHandle> {
        // SAFETY: the fields are integers, enums with a zero variant, and a pointer. Zero is valid
        // for each and means the default.
        let mut props: CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = on_device(device);
        let mut pool: CUmemoryPool = ptr::null_mut();
        call!(self, device, cuMemPoolCreate?(&mut pool, &props))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { MemPoolHandle::from_raw(device, pool as usize as u64) })
    }

    unsafe fn mempool_destroy(&self, pool: MemPoolHandle) -> Result<()> {
        release!(self, pool.device(), cuMemPoolDestroy?(raw_pool(pool)))
    }

    unsafe fn mempool_release_threshold(&self, pool: MemPoolHandle, bytes: u64) -> Result<()> {
        const THRESHOLD: CUmemPool_attribute =
            CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut bytes = bytes;
        let value: *mut c_void = (&raw mut bytes).cast();
        call!(self, pool.device(), cuMemPoolSetAttribute?(raw_pool(pool), THRESHOLD, value))
    }

    unsafe fn mempool_trim(&self, pool: MemPoolHandle, keep_bytes: usize) -> Result<()> {
        call!(self, pool.device(), cuMemPoolTrimTo?(raw_pool(pool), keep_bytes))
    }

    unsafe fn mempool_set_access(
        &self,
        pool: MemPoolHandle,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        let (device, access) = (pool.device(), raw_access(access));
        let (first, count) = (access.as_ptr(), access.len());
        call!(self, device, cuMemPoolSetAccess?(raw_pool(pool), first, count))
    }

    unsafe fn mem_alloc_async(
        &self,
        pool: MemPoolHandle,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<DevicePtr> {
        let (mut ptr, raw) = (0, raw_stream(stream));
        let device = stream.device();
        call!(self, device, cuMemAllocFromPoolAsync?(&mut ptr, bytes, raw_pool(pool), raw))
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes")))?;
        // SAFETY: this driver has just allocated the memory.
        Ok(unsafe { DevicePtr::from_raw(ptr) })
    }

    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamHandle) -> Result<()> {
        release!(self, stream.device(), cuMemFreeAsync?(ptr.addr(), raw_stream(stream)))
    }

    // ---- capture and graphs -------------------------------------------------------------

    unsafe fn begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        let raw = raw_stream(stream);
        call!(self, stream.device(), cuStreamBeginCapture_v2(raw, mode_number(mode)))
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.end_capture_of(stream)
    }

    unsafe fn capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        self.status_of(stream)
    }

    unsafe fn condition_create(&self, stream: StreamHandle) -> Result<ConditionHandle> {
        self.create_condition(stream)
    }

    unsafe fn capture_conditional(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        self.add_conditional(stream, condition, kind)
    }

    unsafe fn begin_capture_to_body(&self, stream: StreamHandle, body: GraphHandle) -> Result<()> {
        self.begin_body(stream, body)
    }

    fn exchange_capture_mode(&self, device: usize, mode: CaptureMode) -> Result<CaptureMode> {
        let mut number = mode_number(mode);
        call!(self, device, cuThreadExchangeStreamCaptureMode(&mut number))?;
        Ok(mode_of(number))
    }

    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        let mut exec: CUgraphExec = ptr::null_mut();
        let raw = graph.raw() as usize as CUgraph;
        call!(self, graph.device(), cuGraphInstantiateWithFlags(&mut exec, raw, 0))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { GraphExecHandle::from_raw(graph.device(), exec as usize as u64) })
    }

    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        let raw = graph.raw() as usize as CUgraphExec;
        call!(self, stream.device(), cuGraphLaunch(raw, raw_stream(stream)))
    }

    unsafe fn graph_debug_dot_print(&self, graph: GraphHandle, path: &CStr) -> Result<()> {
        let raw = graph.raw() as usize as CUgraph;
        call!(self, graph.device(), cuGraphDebugDotPrint(raw, path.as_ptr(), VERBOSE_DOT))
    }

    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        release!(self, graph.device(), cuGraphDestroy(graph.raw() as usize as CUgraph))
    }

    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        release!(self, graph.device(), cuGraphExecDestroy(graph.raw() as usize as CUgraphExec))
    }

    // ---- other processes ----------------------------------------------------------------

    unsafe fn ipc_mem_handle(&self, device: usize, ptr: DevicePtr) -> Result<IpcMemHandle> {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        call!(self, device, cuIpcGetMemHandle?(&mut handle, ptr.addr()))?;
        Ok(IpcMemHandle(handle.reserved.map(|byte| byte as u8)))
    }

    fn ipc_open_mem(&self, device: usize, handle: IpcMemHandle) -> Result<DevicePtr> {
        // The only flag, which the call requires. The driver then enables peer access as needed.
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        let raw = CUipcMemHandle { reserved: handle.0.map(|byte| byte as _) };
        let mut ptr = 0;
        call!(self, device, cuIpcOpenMemHandle_v2?(&mut ptr, raw, LAZY_ENABLE_PEER_ACCESS))?;
        // SAFETY: this driver has just mapped the memory.
        Ok(unsafe { DevicePtr::from_raw(ptr) })
    }

    unsafe fn ipc_close_mem(&self, device: usize, ptr: DevicePtr) -> Result<()> {
        release!(self, device, cuIpcCloseMemHandle?(ptr.addr()))
    }

    unsafe fn ipc_event_handle(&self, event: EventHandle) -> Result<IpcEventHandle> {
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        call!(self, event.device(), cuIpcGetEventHandle?(&mut handle, raw_event(event)))?;
        Ok(IpcEventHandle(handle.reserved.map(|byte| byte as u8)))
    }

    fn ipc_open_event(&self, device: usize, handle: IpcEventHandle) -> Result<EventHandle> {
        let raw = CUipcEventHandle { reserved: handle.0.map(|byte| byte as _) };
        let mut event: CUevent = ptr::null_mut();
        call!(self, device, cuIpcOpenEventHandle?(&mut event, raw))?;
        // SAFETY: this driver has just opened the event.
        Ok(unsafe { EventHandle::from_raw(device, event as usize as u64) })
    }

    fn nccl(&self) -> Result<&dyn nccl::Nccl> {
        nccl::real::available()?;
        Ok(self)
    }
}
