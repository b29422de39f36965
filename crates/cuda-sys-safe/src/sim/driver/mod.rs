//! The driver interface, call by call.

mod captures;
mod collectives;
mod conditional;
mod copies;
mod events;
mod faults;
mod graphs;
mod host;
mod ipc;
mod launch;
mod memory;
mod modules;
mod peers;
mod pools;
pub(super) mod session;
mod share;
mod streams;
pub(super) mod usage;
mod values;
mod vmm;

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;

use self::copies::HostWait;
use self::session::{Guard, SimDriver};
use super::CallKind;
use super::state::error;
use super::state::streams::{PRIORITIES, StreamOpKind};
use super::state::work::{Label, Point};
use crate::*;

/// The simulated version of CUDA.
const VERSION: u32 = 12_080;

/// Enters a call and forwards it to the state.
macro_rules! forward {
    ($self:ident, $call:ident, $device:expr, $state:ident => $body:expr) => {{
        #[allow(unused_mut)]
        let mut $state = $self.enter(CallKind::$call, $device)?;
        $body
    }};
}

/// Enters a call that releases an object, and forwards it to the state. On a lost device the call
/// succeeds with any arguments, because `CudaDriver` then does not call the driver at all.
macro_rules! release {
    ($self:ident, $call:ident, $device:expr, $state:ident => $body:expr) => {{
        let device = $device;
        let released = || forward!($self, $call, device, $state => $body);
        released().or_else(|error| $self.is_lost(device).then_some(()).ok_or(error))
    }};
}

/// Enters a call that enqueues work and returns the point to wait for, if there is one.
macro_rules! enqueue {
    ($self:ident, $call:ident, $stream:expr, $state:ident => $body:expr) => {{
        let stream: StreamHandle = $stream;
        let mut $state = $self.enter(CallKind::$call, stream.device())?;
        let accepted: Result<Option<Point>> = $body;
        let point = accepted.inspect_err(|_| $state.invalidate_stream_capture(stream))?;
        $self.finish_enqueue($state, CallKind::$call, stream.device(), point)
    }};
}

// SAFETY: memory comes from the system, zeroed, and each range of addresses is given out once. A
// wait runs all work that it waits for.
unsafe impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn version(&self) -> Result<u32> {
        Ok(VERSION)
    }

    fn device_count(&self) -> usize {
        self.lock().devices.len()
    }

    fn properties(&self, device: usize) -> Result<DeviceProperties> {
        forward!(self, Properties, device, s => Ok(s.devices[device].properties.clone()))
    }

    fn primary_context_active(&self, device: usize) -> Result<bool> {
        forward!(self, PrimaryContextActive, device, s => Ok(s.devices[device].context))
    }

    fn refused(&self) -> &owned::Refused {
        &self.refused
    }

    fn lost(&self, device: usize) -> Option<DriverError> {
        let cause = self.lock().devices.get(device)?.lost.clone()?;
        Some(DriverError::DeviceLost { device, cause })
    }

    fn synchronize(&self, device: usize) -> Result<()> {
        let call = CallKind::Synchronize;
        let mut s = self.enter(call, device)?;
        s.refuse_while_capturing(call, device)?;
        let tails = s.device_tails(device);
        self.wait(s, &tails).report_loss(call, device)
    }

    fn mem_info(&self, device: usize) -> Result<MemInfo> {
        forward!(self, MemInfo, device, s => Ok(s.mem_info(device)))
    }

    fn processes(&self, device: usize) -> Option<Vec<GpuProcess>> {
        let memory = self.mem_info(device).ok().map(|info| info.total - info.free);
        Some(vec![GpuProcess { pid: std::process::id(), memory }])
    }

    fn mem_alloc(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        forward!(self, MemAlloc, device, s => s.mem_alloc(device, bytes))
    }

    unsafe fn mem_free(&self, device: usize, ptr: DevicePtr) -> Result<()> {
        release!(self, MemFree, device, s => {
            if ptr == DevicePtr::NULL {
                return Ok(());
            }
            let owner = s.check_free(device, ptr)?;
            let points = owner.map_or_else(Vec::new, |owner| s.device_tails(owner));
            self.wait(s, &points).mem_free(ptr)
        })
    }

    fn host_alloc(&self, device: usize, bytes: usize, _flags: HostFlags) -> Result<NonNull<u8>> {
        forward!(self, HostAlloc, device, s => s.host_alloc(device, bytes))
    }

    unsafe fn host_free(&self, device: usize, ptr: NonNull<u8>) -> Result<()> {
        release!(self, HostFree, device, s => {
            s.check_host(CallKind::HostFree, device, ptr)?;
            let points = s.all_tails();
            self.wait(s, &points).host_release(ptr);
            Ok(())
        })
    }

    unsafe fn host_register(
        &self,
        device: usize,
        ptr: NonNull<u8>,
        bytes: usize,
        _flags: HostFlags,
    ) -> Result<()> {
        forward!(self, HostRegister, device, s => s.host_register(device, ptr, bytes))
    }

    unsafe fn host_unregister(&self, device: usize, ptr: NonNull<u8>) -> Result<()> {
        release!(self, HostUnregister, device, s => {
            s.check_host(CallKind::HostUnregister, device, ptr)?;
            let points = s.all_tails();
            self.wait(s, &points).host_release(ptr);
            Ok(())
        })
    }

    fn pointer_kind(&self, address: u64) -> Result<PointerKind> {
        let state = self.lock();
        // The real driver makes this query through any device that is not lost, so the call fails
        // only if all devices are lost.
        if state.devices.iter().all(|d| d.loss_reported)
            && let Some((device, last)) = state.devices.iter().enumerate().next_back()
            && let Some(cause) = last.lost.clone()
        {
            return Err(DriverError::DeviceLost { device, cause });
        }
        Ok(state.pointer_kind(address))
    }

    unsafe fn memcpy_async(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let (call, device) = (CallKind::MemcpyAsync, stream.device());
        let mut s = self.enter(call, device)?;
        // SAFETY: the caller guarantees that a host source is readable.
        let accepted = unsafe { s.memcpy(call, copy, stream, false) };
        let (point, wait) = accepted.inspect_err(|_| s.invalidate_stream_capture(stream))?;
        self.finish_copy(s, call, device, point, wait)
    }

    unsafe fn memcpy(&self, device: usize, copy: &Copy) -> Result<()> {
        let call = CallKind::Memcpy;
        let mut s = self.enter(call, device)?;
        let (point, wait) =
            // SAFETY: the caller guarantees that a host source is readable.
            unsafe { s.memcpy(call, copy, StreamHandle::default_of(device), true) }?;
        self.finish_copy(s, call, device, point, wait)
    }

    unsafe fn memset_async(
        &self,
        dst: DevicePtr,
        value: MemsetValue,
        count: usize,
        stream: StreamHandle,
    ) -> Result<()> {
        // A memset with invalid arguments does not invalidate the capture, unlike other refused
        // work.
        let (call, device) = (CallKind::MemsetAsync, stream.device());
        let mut s = self.enter(call, device)?;
        let point = s.memset(dst, value, count, stream)?;
        self.finish_enqueue(s, call, device, point)
    }

    fn stream_priority_range(&self, device: usize) -> Result<(i32, i32)> {
        forward!(self, StreamPriorityRange, device, _s => Ok(PRIORITIES))
    }

    fn stream_create(&self, device: usize, flags: StreamFlags) -> Result<StreamHandle> {
        forward!(self, StreamCreate, device, s => Ok(s.stream_create(device, flags)))
    }

    unsafe fn stream_destroy(&self, stream: StreamHandle) -> Result<()> {
        release!(self, StreamDestroy, stream.device(), s => s.stream_destroy(stream))
    }

    unsafe fn stream_query(&self, stream: StreamHandle) -> Result<bool> {
        let (call, device) = (CallKind::StreamQuery, stream.device());
        let mut s = self.enter(call, device)?;
        let key = s.stream_key(call, stream)?;
        s.refuse_in_capture(call, key)?;
        let tail = s.tail(key);
        let (mut s, done) = self.query(s, tail);
        s.report_loss(call, device)?;
        Ok(done)
    }

    unsafe fn stream_synchronize(&self, stream: StreamHandle) -> Result<()> {
        let (call, device) = (CallKind::StreamSynchronize, stream.device());
        let mut s = self.enter(call, device)?;
        let key = s.stream_key(call, stream)?;
        s.refuse_in_capture(call, key)?;
        let tail = s.tail(key);
        self.wait(s, &[tail]).report_loss(call, device)
    }

    unsafe fn stream_wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let (call, device) = (CallKind::StreamWaitEvent, stream.device());
        let mut s = self.enter(call, device)?;
        s.report_loss(call, event.device())?;
        s.stream_wait_event(stream, event)?;
        self.after_enqueue(s);
        Ok(())
    }

    unsafe fn stream_wait_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let call = CallKind::StreamWaitValue;
        let mut s = self.enter(call, stream.device())?;
        s.stream_value(call, stream, word, |word| StreamOpKind::WaitValue(word, value))?;
        self.after_enqueue(s);
        Ok(())
    }

    unsafe fn stream_write_value32(
        &self,
        stream: StreamHandle,
        word: NonNull<u32>,
        value: u32,
    ) -> Result<()> {
        let call = CallKind::StreamWriteValue;
        let mut s = self.enter(call, stream.device())?;
        s.stream_value(call, stream, word, |word| StreamOpKind::WriteValue(word, value))?;
        self.after_enqueue(s);
        self.write_values_in_time();
        Ok(())
    }

    unsafe fn stream_priority(&self, stream: StreamHandle) -> Result<i32> {
        forward!(self, StreamPriority, stream.device(), s => {
            let key = s.stream_key(CallKind::StreamPriority, stream)?;
            s.check_captures(key, CallKind::StreamPriority)?;
            Ok(s.streams.get(&key).map_or(0, |stream| stream.flags.priority))
        })
    }

    unsafe fn launch_host_func(
        &self,
        stream: StreamHandle,
        f: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        let call = CallKind::LaunchHostFunc;
        let mut s = self.enter(call, stream.device())?;
        let key = s.stream_key(call, stream)?;
        if let Err(error) = s.enqueue(key, Label::of(call), StreamOpKind::Host(f), &[]) {
            self.unlock(s);
            return Err(error);
        }
        self.after_enqueue(s);
        Ok(())
    }

    fn event_create(&self, device: usize, flags: EventFlags) -> Result<EventHandle> {
        forward!(self, EventCreate, device, s => s.event_create(device, flags))
    }

    unsafe fn event_destroy(&self, event: EventHandle) -> Result<()> {
        release!(self, EventDestroy, event.device(), s => s.event_destroy(event))
    }

    unsafe fn event_record(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let mut s = self.enter(CallKind::EventRecord, stream.device())?;
        s.event_record(event, stream)?;
        self.after_enqueue(s);
        Ok(())
    }

    unsafe fn event_query(&self, event: EventHandle) -> Result<bool> {
        let (call, device) = (CallKind::EventQuery, event.device());
        let mut s = self.enter(call, device)?;
        let Some(point) = s.event_point(call, event)? else { return Ok(true) };
        let (mut s, done) = self.query(s, point);
        s.report_loss(call, device)?;
        Ok(done)
    }

    unsafe fn event_synchronize(&self, event: EventHandle) -> Result<()> {
        let (call, device) = (CallKind::EventSynchronize, event.device());
        let mut s = self.enter(call, device)?;
        let point = s.event_point(call, event)?;
        self.wait(s, point.as_slice()).report_loss(call, device)
    }

    unsafe fn event_elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        forward!(self, EventElapsed, start.device(), s => s.event_elapsed(start, end))
    }

    unsafe fn module_load(&self, device: usize, image: &[u8]) -> Result<ModuleHandle> {
        forward!(self, ModuleLoad, device, s => s.module_load(device, image))
    }

    unsafe fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        release!(self, ModuleUnload, module.device(), s => s.module_unload(module))
    }

    unsafe fn module_function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        forward!(self, ModuleFunction, module.device(), s => s.module_function(module, name))
    }

    unsafe fn function_max_shared(&self, function: FunctionHandle, bytes: u32) -> Result<()> {
        let device = function.device();
        forward!(self, FunctionMaxShared, device, s => s.function_max_shared(function, bytes))
    }

    unsafe fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        let DeviceCode::Collective(call) = launch.code else {
            return enqueue!(self, Launch, stream, s => s.launch(stream, launch));
        };
        self.launch_collective(stream, launch, call)
    }

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        forward!(self, CanAccessPeer, device, s => s.can_access_peer(device, peer))
    }

    fn enable_peer_access(&self, device: usize, peer: usize) -> Result<()> {
        forward!(self, EnablePeerAccess, device, s => s.enable_peer_access(device, peer))
    }

    unsafe fn disable_peer_access(&self, device: usize, peer: usize) -> Result<()> {
        forward!(self, DisablePeerAccess, device, s => s.disable_peer_access(device, peer))
    }

    fn mem_granularity(&self, device: usize) -> Result<usize> {
        forward!(self, MemGranularity, device, s => s.mem_granularity(device))
    }

    fn address_reserve(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        forward!(self, AddressReserve, device, s => s.address_reserve(device, bytes))
    }

    unsafe fn address_free(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()> {
        release!(self, AddressFree, device, s => s.address_free(device, ptr, bytes))
    }

    fn mem_create(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        forward!(self, MemCreate, device, s => s.mem_create(device, bytes))
    }

    fn mem_create_shareable(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        forward!(self, MemCreate, device, s => s.mem_create_shareable(device, bytes))
    }

    unsafe fn mem_export(&self, memory: PhysicalHandle) -> Result<OsHandle> {
        forward!(self, MemExport, memory.device(), s => s.mem_export(memory))
    }

    fn mem_import(&self, device: usize, bytes: usize, handle: OsHandle) -> Result<PhysicalHandle> {
        forward!(self, MemImport, device, s => s.mem_import(device, bytes, handle))
    }

    unsafe fn mem_release(&self, memory: PhysicalHandle) -> Result<()> {
        release!(self, MemRelease, memory.device(), s => s.mem_release(memory))
    }

    unsafe fn mem_map(
        &self,
        ptr: DevicePtr,
        bytes: usize,
        offset: usize,
        memory: PhysicalHandle,
    ) -> Result<()> {
        forward!(self, MemMap, memory.device(), s => s.mem_map(ptr, bytes, offset, memory))
    }

    unsafe fn mem_set_access(
        &self,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        forward!(self, MemSetAccess, device, s => s.mem_set_access(device, ptr, bytes, access))
    }

    unsafe fn mem_unmap(&self, device: usize, ptr: DevicePtr, bytes: usize) -> Result<()> {
        release!(self, MemUnmap, device, s => s.mem_unmap(device, ptr, bytes))
    }

    fn mempool_create(&self, device: usize) -> Result<MemPoolHandle> {
        forward!(self, MempoolCreate, device, s => Ok(s.mempool_create(device)))
    }

    unsafe fn mempool_destroy(&self, pool: MemPoolHandle) -> Result<()> {
        release!(self, MempoolDestroy, pool.device(), s => s.mempool_destroy(pool))
    }

    unsafe fn mempool_release_threshold(&self, pool: MemPoolHandle, bytes: u64) -> Result<()> {
        let device = pool.device();
        forward!(self, MempoolReleaseThreshold, device, s => s.mempool_threshold(pool, bytes))
    }

    unsafe fn mempool_set_access(
        &self,
        pool: MemPoolHandle,
        access: &[(usize, MemAccess)],
    ) -> Result<()> {
        let device = pool.device();
        forward!(self, MempoolSetAccess, device, s => s.mempool_set_access(pool, access))
    }

    unsafe fn mempool_trim(&self, pool: MemPoolHandle, keep_bytes: usize) -> Result<()> {
        forward!(self, MempoolTrim, pool.device(), s => s.mempool_trim(pool, keep_bytes))
    }

    unsafe fn mem_alloc_async(
        &self,
        pool: MemPoolHandle,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<DevicePtr> {
        let mut s = self.enter(CallKind::MemAllocAsync, stream.device())?;
        let (ptr, _) = s.mem_alloc_async(pool, bytes, stream)?;
        self.after_enqueue(s);
        Ok(ptr)
    }

    unsafe fn mem_free_async(&self, ptr: DevicePtr, stream: StreamHandle) -> Result<()> {
        release!(self, MemFreeAsync, stream.device(), s => {
            s.mem_free_async(ptr, stream)?;
            self.after_enqueue(s);
            Ok(())
        })
    }

    unsafe fn begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        forward!(self, BeginCapture, stream.device(), s => s.begin_capture(stream, mode))
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let end = || forward!(self, EndCapture, stream.device(), s => s.end_capture(stream));
        end().inspect_err(|_| self.abandon_capture(stream))
    }

    unsafe fn capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        forward!(self, CaptureStatus, stream.device(), s => s.capture_status(stream))
    }

    unsafe fn condition_create(&self, stream: StreamHandle) -> Result<ConditionHandle> {
        forward!(self, ConditionCreate, stream.device(), s => s.condition_create(stream))
    }

    unsafe fn capture_conditional(
        &self,
        stream: StreamHandle,
        condition: ConditionHandle,
        kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        let device = stream.device();
        forward!(self, CaptureConditional, device, s => {
            s.capture_conditional(stream, condition, kind)
        })
    }

    unsafe fn begin_capture_to_body(&self, stream: StreamHandle, body: GraphHandle) -> Result<()> {
        let device = stream.device();
        forward!(self, BeginCaptureToBody, device, s => s.begin_capture_to_body(stream, body))
    }

    fn exchange_capture_mode(&self, device: usize, mode: CaptureMode) -> Result<CaptureMode> {
        forward!(self, ExchangeCaptureMode, device, s => Ok(s.exchange_capture_mode(mode)))
    }

    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        forward!(self, GraphInstantiate, graph.device(), s => s.graph_instantiate(graph))
    }

    unsafe fn graph_launch(&self, graph: GraphExecHandle, stream: StreamHandle) -> Result<()> {
        enqueue!(self, GraphLaunch, stream, s => s.graph_launch(graph, stream))
    }

    unsafe fn graph_debug_dot_print(&self, graph: GraphHandle, path: &CStr) -> Result<()> {
        let device = graph.device();
        let dot = forward!(self, GraphDebugDotPrint, device, s => s.graph_dot(graph))?;
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        std::fs::write(path, dot).map_err(|source| {
            let why = format!("{} cannot be written: {source}", path.display());
            error(CallKind::GraphDebugDotPrint, CudaCode::OPERATING_SYSTEM, device, &why)
        })
    }

    unsafe fn graph_destroy(&self, graph: GraphHandle) -> Result<()> {
        release!(self, GraphDestroy, graph.device(), s => s.graph_destroy(graph))
    }

    unsafe fn graph_exec_destroy(&self, graph: GraphExecHandle) -> Result<()> {
        release!(self, GraphExecDestroy, graph.device(), s => s.graph_exec_destroy(graph))
    }

    unsafe fn ipc_mem_handle(&self, device: usize, ptr: DevicePtr) -> Result<IpcMemHandle> {
        forward!(self, IpcMemHandle, device, s => s.ipc_mem_handle(device, ptr))
    }

    fn ipc_open_mem(&self, device: usize, handle: IpcMemHandle) -> Result<DevicePtr> {
        let call = CallKind::IpcOpenMem;
        forward!(self, IpcOpenMem, device, s => Err(s.ipc_open(call, device, &handle.0)))
    }

    unsafe fn ipc_close_mem(&self, device: usize, _ptr: DevicePtr) -> Result<()> {
        let call = CallKind::IpcCloseMem;
        let why = "never opened";
        release!(self, IpcCloseMem, device, _s => {
            Err(error(call, CudaCode::INVALID_VALUE, device, why))
        })
    }

    unsafe fn ipc_event_handle(&self, event: EventHandle) -> Result<IpcEventHandle> {
        forward!(self, IpcEventHandle, event.device(), s => s.ipc_event_handle(event))
    }

    fn ipc_open_event(&self, device: usize, handle: IpcEventHandle) -> Result<EventHandle> {
        let call = CallKind::IpcOpenEvent;
        forward!(self, IpcOpenEvent, device, s => Err(s.ipc_open(call, device, &handle.0)))
    }

    fn nccl(&self) -> Result<&dyn nccl::Nccl> {
        Ok(self)
    }
}

impl SimDriver {
    /// Returns `true` if a device is known to be lost, so that releases have nothing to do.
    fn is_lost(&self, device: usize) -> bool {
        self.lock().devices.get(device).is_some_and(|device| device.loss_reported)
    }

    /// Ends a copy: waits for the work for which the host must wait.
    fn finish_copy(
        &self,
        state: Guard<'_>,
        call: CallKind,
        device: usize,
        point: Option<Point>,
        wait: HostWait,
    ) -> Result<()> {
        let targets = match wait {
            HostWait::Nothing => return self.finish_enqueue(state, call, device, point),
            HostWait::Done(point) => vec![point],
            HostWait::Before(point) => state.before(point),
        };
        let mut state = self.wait(state, &targets);
        state.report_loss(call, device)?;
        self.finish_enqueue(state, call, device, point)
    }
}
