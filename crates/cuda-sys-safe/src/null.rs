//! A driver that does nothing, to measure the cost of the layers above.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sim::{H200_TOTAL_MEMORY, h200};
use crate::*;

/// The first device address is `1 << DEVICE_SHIFT`, far above any host address.
const DEVICE_SHIFT: u32 = 50;

/// A driver whose calls succeed at once and do nothing.
///
/// The driver has devices with the properties of an H200. It returns new addresses and handles, and
/// real host memory. Device addresses have no memory behind them, data never moves and kernels
/// never run: use the driver to time the code above it, never to compute.
///
/// ```
/// use warpline_cuda_sys_safe::{Driver, null::NullDriver};
/// let driver = NullDriver::default();
/// assert_eq!(driver.device_count(), 1);
/// assert_ne!(driver.mem_alloc(0, 512).unwrap(), driver.mem_alloc(0, 512).unwrap());
/// ```
#[derive(Debug)]
pub struct NullDriver {
    devices: usize,
    next: AtomicU64,
    refused: owned::Refused,
    /// Whether work counts as done as soon as it is enqueued.
    completes: bool,
    pub(crate) hanging: Option<crate::nccl::null::Hanging>,
}

impl NullDriver {
    /// Creates a driver with `devices` devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self {
            devices,
            next: AtomicU64::new(1 << DEVICE_SHIFT),
            refused: owned::Refused::default(),
            completes: true,
            hanging: None,
        }
    }

    /// Creates a driver whose work never completes, to measure costs that depend on outstanding
    /// work. Queries return that work is still running; waits return at once.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use warpline_cuda_sys_safe::{Driver, EventFlags, null::NullDriver, owned};
    ///
    /// let driver: Arc<dyn Driver> = Arc::new(NullDriver::without_completion(1));
    /// let stream = owned::Stream::default_of(&driver, 0);
    /// let event = owned::Event::new(&driver, 0, EventFlags::default())?;
    /// event.record(&stream)?;
    /// assert!(!event.query()?);
    /// event.synchronize()?;
    /// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
    /// ```
    #[must_use]
    pub fn without_completion(devices: usize) -> Self {
        Self { completes: false, ..Self::new(devices) }
    }

    /// Creates a driver whose collectives hang until their communicator is aborted, as NCCL's do
    /// when they wait for ranks that never come.
    #[must_use]
    pub fn with_hanging_collectives(devices: usize) -> Self {
        Self { hanging: Some(Default::default()), ..Self::new(devices) }
    }

    fn check(&self, device: usize) -> Result<()> {
        if device < self.devices {
            return Ok(());
        }
        Err(DriverError::InvalidDevice { device, count: self.devices })
    }

    fn next(&self, bytes: usize) -> u64 {
        let room = (bytes as u64 / 512 + 1) * 512;
        self.next.fetch_add(room, Ordering::Relaxed)
    }

    fn address(&self, bytes: usize) -> DevicePtr {
        // SAFETY: this driver never dereferences an address.
        unsafe { DevicePtr::from_raw(self.next(bytes)) }
    }
}

impl Default for NullDriver {
    fn default() -> Self {
        Self::new(1)
    }
}

mod host {
    use super::*;

    pub(super) fn alloc(bytes: usize) -> Result<NonNull<u8>> {
        // SAFETY: `calloc` accepts any size, and a null result is handled.
        NonNull::new(unsafe { libc::calloc(bytes.max(1), 1) }.cast())
            .ok_or_else(|| DriverError::cuda("cuMemHostAlloc", CudaCode::OUT_OF_MEMORY, None))
    }

    pub(super) unsafe fn free(ptr: NonNull<u8>) {
        // SAFETY: by the contract of `host_free`, `ptr` came from `alloc` and is not yet freed.
        unsafe { libc::free(ptr.as_ptr().cast()) };
    }
}

/// Makes a new handle of a kind.
macro_rules! handle {
    ($self:ident, $kind:ident, $device:expr) => {
        // SAFETY: this driver never looks behind a handle, so any number is valid.
        unsafe { $kind::from_raw($device, $self.next(0)) }
    };
}

// SAFETY: host memory comes from `calloc`. No work runs, so every wait may return at once. Each
// address is given out once.
unsafe impl Driver for NullDriver {
    fn name(&self) -> &'static str {
        "null"
    }

    fn version(&self) -> Result<u32> {
        Ok(12_080)
    }

    fn device_count(&self) -> usize {
        self.devices
    }

    fn properties(&self, device: usize) -> Result<DeviceProperties> {
        self.check(device)?;
        Ok(h200(device))
    }

    fn primary_context_active(&self, device: usize) -> Result<bool> {
        self.check(device)?;
        Ok(true)
    }

    fn refused(&self) -> &owned::Refused {
        &self.refused
    }

    fn lost(&self, _device: usize) -> Option<DriverError> {
        None
    }

    fn synchronize(&self, _device: usize) -> Result<()> {
        Ok(())
    }

    fn mem_info(&self, device: usize) -> Result<MemInfo> {
        self.check(device)?;
        Ok(MemInfo { free: H200_TOTAL_MEMORY, total: H200_TOTAL_MEMORY })
    }

    fn mem_alloc(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        self.check(device)?;
        Ok(self.address(bytes))
    }

    unsafe fn mem_free(&self, _device: usize, _ptr: DevicePtr) -> Result<()> {
        Ok(())
    }

    fn host_alloc(&self, device: usize, bytes: usize, _flags: HostFlags) -> Result<NonNull<u8>> {
        self.check(device)?;
        host::alloc(bytes)
    }

    unsafe fn host_free(&self, _device: usize, ptr: NonNull<u8>) -> Result<()> {
        // SAFETY: by the contract of `host_free`, `ptr` came from `host_alloc` and is not yet
        // freed.
        unsafe { host::free(ptr) };
        Ok(())
    }

    unsafe fn host_register(
        &self,
        _device: usize,
        _ptr: NonNull<u8>,
        _bytes: usize,
        _flags: HostFlags,
    ) -> Result<()> {
        Ok(())
    }

    unsafe fn host_unregister(&self, _device: usize, _ptr: NonNull<u8>) -> Result<()> {
        Ok(())
    }

    fn pointer_kind(&self, address: u64) -> Result<PointerKind> {
        Ok(match address >> DEVICE_SHIFT {
            0 => PointerKind::Pageable,
            _ => PointerKind::Device(0),
        })
    }

    unsafe fn memcpy_async(&self, _copy: &Copy, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn memcpy(&self, _device: usize, _copy: &Copy) -> Result<()> {
        Ok(())
    }

    unsafe fn memset_async(
        &self,
        _dst: DevicePtr,
        _value: MemsetValue,
        _count: usize,
        _stream: StreamHandle,
    ) -> Result<()> {
        Ok(())
    }

    fn stream_priority_range(&self, _device: usize) -> Result<(i32, i32)> {
        Ok((0, -5))
    }

    fn stream_create(&self, device: usize, _flags: StreamFlags) -> Result<StreamHandle> {
        self.check(device)?;
        Ok(handle!(self, StreamHandle, device))
    }

    unsafe fn stream_destroy(&self, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_query(&self, _stream: StreamHandle) -> Result<bool> {
        Ok(self.completes)
    }

    unsafe fn stream_synchronize(&self, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_wait_event(&self, _stream: StreamHandle, _event: EventHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn stream_priority(&self, _stream: StreamHandle) -> Result<i32> {
        Ok(0)
    }

    unsafe fn launch_host_func(
        &self,
        _stream: StreamHandle,
        _f: Box<dyn FnOnce() + Send>,
    ) -> Result<()> {
        Ok(())
    }

    fn event_create(&self, device: usize, _flags: EventFlags) -> Result<EventHandle> {
        self.check(device)?;
        Ok(handle!(self, EventHandle, device))
    }

    unsafe fn event_destroy(&self, _event: EventHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_record(&self, _event: EventHandle, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_query(&self, _event: EventHandle) -> Result<bool> {
        Ok(self.completes)
    }

    unsafe fn event_synchronize(&self, _event: EventHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn event_elapsed(&self, _start: EventHandle, _end: EventHandle) -> Result<f32> {
        Ok(0.0)
    }

    unsafe fn module_load(&self, device: usize, _image: &[u8]) -> Result<ModuleHandle> {
        self.check(device)?;
        Ok(handle!(self, ModuleHandle, device))
    }

    unsafe fn module_unload(&self, _module: ModuleHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn module_function(&self, module: ModuleHandle, _name: &CStr) -> Result<FunctionHandle> {
        Ok(handle!(self, FunctionHandle, module.device()))
    }

    unsafe fn function_max_shared(&self, _function: FunctionHandle, _bytes: u32) -> Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        match launch.code {
            DeviceCode::Collective(call) => call(stream),
            _ => Ok(()),
        }
    }

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        Ok(device != peer)
    }

    fn enable_peer_access(&self, _device: usize, _peer: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn disable_peer_access(&self, _device: usize, _peer: usize) -> Result<()> {
        Ok(())
    }

    fn mem_granularity(&self, _device: usize) -> Result<usize> {
        Ok(2 << 20)
    }

    fn address_reserve(&self, device: usize, bytes: usize) -> Result<DevicePtr> {
        self.check(device)?;
        Ok(self.address(bytes))
    }

    unsafe fn address_free(&self, _device: usize, _ptr: DevicePtr, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn mem_create(&self, device: usize, _bytes: usize) -> Result<PhysicalHandle> {
        self.check(device)?;
        Ok(handle!(self, PhysicalHandle, device))
    }

    unsafe fn mem_release(&self, _memory: PhysicalHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn mem_map(
        &self,
        _ptr: DevicePtr,
        _bytes: usize,
        _offset: usize,
        _memory: PhysicalHandle,
    ) -> Result<()> {
        Ok(())
    }

    unsafe fn mem_set_access(
        &self,
        _device: usize,
        _ptr: DevicePtr,
        _bytes: usize,
        _access: &[(usize, MemAccess)],
    ) -> Result<()> {
        Ok(())
    }

    unsafe fn mem_unmap(&self, _device: usize, _ptr: DevicePtr, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn mempool_create(&self, device: usize) -> Result<MemPoolHandle> {
        self.check(device)?;
        Ok(handle!(self, MemPoolHandle, device))
    }

    unsafe fn mempool_destroy(&self, _pool: MemPoolHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn mempool_release_threshold(&self, _pool: MemPoolHandle, _bytes: u64) -> Result<()> {
        Ok(())
    }

    unsafe fn mempool_set_access(
        &self,
        _pool: MemPoolHandle,
        _access: &[(usize, MemAccess)],
    ) -> Result<()> {
        Ok(())
    }

    unsafe fn mempool_trim(&self, _pool: MemPoolHandle, _keep_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn mem_alloc_async(
        &self,
        _pool: MemPoolHandle,
        bytes: usize,
        _stream: StreamHandle,
    ) -> Result<DevicePtr> {
        Ok(self.address(bytes))
    }

    unsafe fn mem_free_async(&self, _ptr: DevicePtr, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn begin_capture(&self, _stream: StreamHandle, _mode: CaptureMode) -> Result<()> {
        Ok(())
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        Ok(handle!(self, GraphHandle, stream.device()))
    }

    unsafe fn capture_status(&self, _stream: StreamHandle) -> Result<CaptureStatus> {
        Ok(CaptureStatus::None)
    }

    unsafe fn condition_create(&self, stream: StreamHandle) -> Result<ConditionHandle> {
        Ok(handle!(self, ConditionHandle, stream.device()))
    }

    unsafe fn capture_conditional(
        &self,
        stream: StreamHandle,
        _condition: ConditionHandle,
        _kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        Ok(handle!(self, GraphHandle, stream.device()))
    }

    unsafe fn begin_capture_to_body(
        &self,
        _stream: StreamHandle,
        _body: GraphHandle,
    ) -> Result<()> {
        Ok(())
    }

    fn exchange_capture_mode(&self, _device: usize, _mode: CaptureMode) -> Result<CaptureMode> {
        Ok(CaptureMode::Global)
    }

    unsafe fn graph_instantiate(&self, graph: GraphHandle) -> Result<GraphExecHandle> {
        Ok(handle!(self, GraphExecHandle, graph.device()))
    }

    unsafe fn graph_launch(&self, _graph: GraphExecHandle, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn graph_debug_dot_print(&self, _graph: GraphHandle, _path: &CStr) -> Result<()> {
        Ok(())
    }

    unsafe fn graph_destroy(&self, _graph: GraphHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn graph_exec_destroy(&self, _graph: GraphExecHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn ipc_mem_handle(&self, _device: usize, _ptr: DevicePtr) -> Result<IpcMemHandle> {
        Ok(IpcMemHandle([0; 64]))
    }

    fn ipc_open_mem(&self, device: usize, _handle: IpcMemHandle) -> Result<DevicePtr> {
        self.check(device)?;
        Ok(self.address(1))
    }

    unsafe fn ipc_close_mem(&self, _device: usize, _ptr: DevicePtr) -> Result<()> {
        Ok(())
    }

    unsafe fn ipc_event_handle(&self, _event: EventHandle) -> Result<IpcEventHandle> {
        Ok(IpcEventHandle([0; 64]))
    }

    fn ipc_open_event(&self, device: usize, _handle: IpcEventHandle) -> Result<EventHandle> {
        self.check(device)?;
        Ok(handle!(self, EventHandle, device))
    }

    fn nccl(&self) -> Result<&dyn nccl::Nccl> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::owned::{DeviceMemory, Event, HostMemory, Stream};

    #[test]
    fn gives_fresh_addresses_handles_and_usable_host_memory() {
        let driver: Arc<dyn Driver> = Arc::new(NullDriver::new(2));
        let a = DeviceMemory::new(&driver, 1, 1000).unwrap();
        let b = DeviceMemory::new(&driver, 1, 1).unwrap();
        assert!(b.ptr().addr() >= a.ptr().addr() + 1000);
        assert_eq!(a.ptr().addr() % 512, 0);
        let stream = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
        let event = Event::new(&driver, 0, EventFlags::default()).unwrap();
        event.record(&stream).unwrap();
        assert!(event.query().unwrap());
        assert_ne!(stream.handle().raw(), event.handle().raw());
        let host = HostMemory::pinned(&driver, 0, 3).unwrap();
        // SAFETY: the allocation has three bytes, and no other code accesses them.
        unsafe { host.as_ptr().as_ptr().write_bytes(7, 3) };
    }

    #[test]
    fn refuses_a_device_it_does_not_have() {
        let error = NullDriver::new(2).mem_alloc(2, 1).unwrap_err();
        assert!(matches!(error, DriverError::InvalidDevice { device: 2, count: 2 }));
    }
}
