//! Backends over the CUDA driver layer.

mod memory;
mod peers;
mod pool;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use memory::CudaMemory;
use warpline_cuda_sys_safe::owned::{
    DeviceMemory, Event, HostMemory, PhysicalMemory, Reservation, Stream, retry_refused,
};
use warpline_cuda_sys_safe::{Driver, DriverError, EventFlags};
use warpline_sync::OnceLock;

use crate::{
    Backend, Block, CachingAllocator, Handle, HostBackend, HostCache, HostConfig, PinnedBlock,
    StreamBackend, VirtualMemory,
};
use peers::{DeviceMappings, TrackedMapping};
use pool::DriverPool;

/// Backend for the memory of one device of a driver, and for page-locked host memory.
#[derive(Clone)]
pub struct CudaBackend {
    driver: Arc<dyn Driver>,
    device: usize,
    /// The device's mapping granularity, after the first query. `None` if it cannot be used.
    granularity: Arc<OnceLock<Option<usize>>>,
    mappings: Arc<DeviceMappings>,
    pool: Arc<DriverPool>,
    /// Allocates the memory, instead of `cuMemAlloc`.
    source: Option<Arc<MemorySource>>,
}

/// A function that allocates memory on a device of a driver.
type MemorySource =
    dyn Fn(&Arc<dyn Driver>, usize, usize) -> Result<CudaMemory, DriverError> + Send + Sync;

/// The same backend, for a [`CudaHostCache`].
pub type CudaHostBackend = CudaBackend;
/// A caching allocator for the memory of a CUDA device.
pub type CudaAllocator = CachingAllocator<CudaBackend>;
/// A block of a [`CudaAllocator`].
pub type CudaBlock = Block<CudaBackend>;
/// A cache of host memory that is page-locked for CUDA.
pub type CudaHostCache = HostCache<CudaHostBackend>;
/// A block of a [`CudaHostCache`].
pub type CudaPinnedBlock = PinnedBlock<CudaHostBackend>;

impl CudaBackend {
    /// Creates a backend for a device. Does not call the driver.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, device: usize) -> Self {
        Self {
            driver,
            device,
            granularity: Arc::default(),
            mappings: Arc::default(),
            pool: Arc::default(),
            source: None,
        }
    }

    /// Returns a backend for the same device whose segments `source` allocates, for a
    /// [pool](CachingAllocator::new_pool_over) or for an allocator. `source` receives the driver,
    /// the index of the device and the minimum number of bytes. No lock that a hit takes is held
    /// during the call. A request of `source` to an allocator fails with
    /// [`AllocError::InsideSource`](crate::AllocError), unless the cache serves it and no route to
    /// a pool exists. `source` must not call the allocator in other ways.
    ///
    /// ```
    /// use warpline_alloc::{AllocatorConfig, PoolOptions, cuda::{CudaAllocator, CudaBackend}};
    /// # use warpline_cuda_sys_safe::{owned::Stream, sim::SimConfig, Driver};
    /// use warpline_cuda_sys_safe::owned::DeviceMemory;
    /// # let driver: std::sync::Arc<dyn Driver> = SimConfig::new(1).build();
    /// # let stream = Stream::default_of(&driver, 0);
    /// let backend = CudaBackend::new(driver, 0);
    /// let allocator = CudaAllocator::new(backend.clone(), AllocatorConfig::default());
    /// let over = backend.with_source(|driver, device, bytes| {
    ///     println!("{bytes} bytes of cuda:{device}");
    ///     Ok(DeviceMemory::new(driver, device, bytes)?.into())
    /// });
    /// let pool = allocator.new_pool_over(over, PoolOptions::default());
    /// let block = allocator.malloc_from(&pool, 1 << 20, &stream)?;
    /// assert!(pool.holds(&block));
    /// # Ok::<(), warpline_alloc::AllocError>(())
    /// ```
    #[must_use]
    pub fn with_source(
        &self,
        source: impl Fn(&Arc<dyn Driver>, usize, usize) -> Result<CudaMemory, DriverError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { source: Some(Arc::new(source)), ..self.clone() }
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.device
    }

    /// Lets another device read and write this device's mapped memory, present and future, and the
    /// memory of the driver's pool. Memory of `cuMemAlloc` needs [`Driver::enable_peer_access`]
    /// instead.
    ///
    /// # Errors
    /// [`DriverError::Cuda`] if `peer` cannot access this device.
    pub fn allow_peer(&self, peer: usize) -> Result<(), DriverError> {
        self.mappings.allow(peer)?;
        self.pool.allow(peer)
    }
}

impl StreamBackend for CudaBackend {
    type Stream = Stream;
    type Event = Event;
    type Error = DriverError;

    fn stream_id(stream: &Stream) -> u64 {
        stream.id()
    }

    fn record(&self, stream: &Stream) -> Result<Event, DriverError> {
        // An event can be recorded only on streams of its own device.
        let event = Event::new(&self.driver, stream.device(), EventFlags::default())?;
        // Another device's stream may be in a capture that this allocator does not know of.
        event.record_outside_captures(stream)?;
        Ok(event)
    }

    fn record_again(&self, event: Event, stream: &Stream) -> Result<Event, DriverError> {
        if event.device() != stream.device() {
            return self.record(stream);
        }
        event.record_outside_captures(stream)?;
        Ok(event)
    }

    fn query(&self, event: &Event) -> Result<bool, DriverError> {
        event.query()
    }

    fn synchronize(&self, event: &Event) -> Result<(), DriverError> {
        event.synchronize()
    }

    fn wait(&self, stream: &Stream, event: &Event) -> Result<(), DriverError> {
        stream.wait_event(event)
    }

    fn is_lost(&self, error: &DriverError) -> bool {
        matches!(error, DriverError::DeviceLost { .. } | DriverError::ForkedChild { .. })
            || error.code().is_some_and(|code| code.is_sticky())
    }

    fn retry_refused(&self) {
        retry_refused(&self.driver);
    }
}

impl Backend for CudaBackend {
    type Memory = CudaMemory;

    fn alloc(&self, bytes: usize) -> Result<CudaMemory, DriverError> {
        let Some(source) = &self.source else {
            return Ok(DeviceMemory::new(&self.driver, self.device, bytes)?.into());
        };
        let memory = source(&self.driver, self.device, bytes)?;
        memory.check(&self.driver, self.device, bytes)?;
        Ok(memory)
    }

    fn free(memory: CudaMemory) -> Result<(), CudaMemory> {
        memory.release()
    }

    fn alloc_async(
        &self,
        bytes: usize,
        stream: &Stream,
    ) -> Option<Result<CudaMemory, DriverError>> {
        // A source has no stream-ordered pool.
        if self.source.is_some() {
            return None;
        }
        Some(self.pool.alloc(&self.driver, self.device, bytes, stream))
    }

    fn trim(&self) {
        // Memory that was freed in stream order becomes unused only when the stream has completed
        // its work.
        if self.pool.exists() && self.synchronize_device().is_ok() {
            self.pool.trim();
        }
    }

    fn synchronize_device(&self) -> Result<bool, DriverError> {
        for peer in self.mappings.peers() {
            // No work is running on a lost device.
            self.driver
                .synchronize(peer)
                .or_else(|e| if self.is_lost(&e) { Ok(()) } else { Err(e) })?;
        }
        self.driver.synchronize(self.device).map(|()| true)
    }

    fn may_stand_in(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver) && self.device == other.device
    }

    fn address(memory: &CudaMemory) -> u64 {
        memory.ptr().addr()
    }

    fn is_out_of_memory(&self, error: &DriverError) -> bool {
        error.is_out_of_memory()
    }

    fn mem_info(&self) -> Result<(usize, usize), DriverError> {
        let info = self.driver.mem_info(self.device)?;
        Ok((info.free, info.total))
    }

    fn process_memory(&self) -> Option<usize> {
        self.driver.process_memory(self.device)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<DriverError>> {
        // A source supplies whole segments, not pages.
        let granularity = if self.source.is_some() { None } else { self.granularity() };
        granularity.map(|_| self as &dyn VirtualMemory<DriverError>)
    }

    fn device(&self) -> String {
        format!("cuda:{}", self.device)
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend")
            .field("driver", &self.driver)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// Granularity of arenas, in bytes: their sizes and addresses are multiples of it.
const PAGE: usize = 2 << 20;

impl CudaBackend {
    /// Returns the mapping granularity. `None` if the device cannot map memory, or if the
    /// granularity does not divide [`PAGE`].
    fn granularity(&self) -> Option<usize> {
        *self.granularity.get_or_init(|| {
            let granularity = self.driver.mem_granularity(self.device).ok()?;
            (granularity > 0 && PAGE.is_multiple_of(granularity)).then_some(granularity)
        })
    }
}

impl VirtualMemory<DriverError> for CudaBackend {
    fn granularity(&self) -> usize {
        CudaBackend::granularity(self).unwrap_or(PAGE)
    }

    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), DriverError> {
        let range = Reservation::new(&self.driver, self.device, bytes)?;
        Ok((range.ptr().addr(), Box::new(range)))
    }

    fn create(&self, bytes: usize) -> Result<Handle, DriverError> {
        Ok(Box::new(PhysicalMemory::new(&self.driver, self.device, bytes)?))
    }

    fn map(&self, range: &Handle, offset: usize, memory: &Handle) -> Result<Handle, DriverError> {
        let foreign = || DriverError::InvalidArgument {
            call: "VirtualMemory::map",
            reason: "the range or the memory belongs to another backend".into(),
        };
        let range = range.downcast_ref::<Reservation>().ok_or_else(foreign)?;
        let memory = memory.downcast_ref::<PhysicalMemory>().ok_or_else(foreign)?;
        let mapping = range.map(offset, memory, 0, memory.bytes())?;
        Ok(Box::new(self.mappings.add(self.device, mapping)?))
    }

    fn release(&self, handle: Handle) -> Result<(), Handle> {
        let handle = match handle.downcast::<TrackedMapping>() {
            Ok(mapped) => return mapped.release().map_err(|mapped| Box::new(mapped) as Handle),
            Err(handle) => handle,
        };
        let handle = match handle.downcast::<PhysicalMemory>() {
            Ok(memory) => {
                return memory.release().map_err(|refused| Box::new(refused.0) as Handle);
            }
            Err(handle) => handle,
        };
        match handle.downcast::<Reservation>() {
            Ok(range) => range.release().map_err(|refused| Box::new(refused.0) as Handle),
            Err(_) => Ok(()),
        }
    }
}

impl HostBackend for CudaBackend {
    type HostMemory = HostMemory;

    fn alloc_host(&self, bytes: usize, config: &HostConfig) -> Result<HostMemory, DriverError> {
        let device = self.host_device();
        if config.registers(bytes) {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
            let threads = config.threads_for(bytes, cores);
            match HostMemory::registered_by(&self.driver, device, bytes, threads) {
                // If the system forbids registration, the driver may still be able to allocate.
                Err(_) if config.use_host_register.is_none() => {}
                registered => return registered,
            }
        }
        HostMemory::pinned(&self.driver, device, bytes)
    }

    fn free_host(memory: HostMemory) -> Result<(), HostMemory> {
        memory.release().map_err(|refused| refused.0)
    }
}

impl PinnedBlock<CudaBackend> {
    /// Returns the address of the first byte. Accessing the bytes is `unsafe`, and the caller must
    /// order the accesses.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory().ptr_at(self.offset()).expect("a block lies in its allocation")
    }
}

impl CudaBackend {
    /// Returns the device for which host memory is page-locked; every device can use the memory
    /// afterwards. Prefers a device with a context, because page-locking would create a context on
    /// a device without one. Skips lost devices, because they cannot lock memory.
    fn host_device(&self) -> usize {
        let usable = || {
            let all = std::iter::once(self.device).chain(0..self.driver.device_count());
            all.filter(|&d| self.driver.lost(d).is_none())
        };
        let active = |&d: &usize| self.driver.primary_context_active(d).unwrap_or(false);
        usable().find(active).or_else(|| usable().next()).unwrap_or(self.device)
    }
}
