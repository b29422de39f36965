//! Stream-ordered memory pools of the driver.

use std::panic::Location;
use std::sync::Arc;

use super::Stream;
use super::refused::{ReleaseKind, release};
use crate::{DevicePtr, Driver, DriverError, MemAccess, MemPoolHandle, Result};

/// A pool of device memory (`cuMemPoolCreate`). Destroyed when its last clone and its last
/// allocation are dropped.
#[derive(Clone, Debug)]
pub struct MemPool(Arc<MemPoolInner>);

#[derive(Debug)]
struct MemPoolInner {
    driver: Arc<dyn Driver>,
    handle: MemPoolHandle,
}

impl MemPool {
    /// Creates a pool. The pool releases unused memory at every synchronisation, unless
    /// [`MemPool::set_release_threshold`] changes this.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.mempool_create(device).map_err(|e| e.at(location))?;
        Ok(Self(Arc::new(MemPoolInner { driver: Arc::clone(driver), handle })))
    }

    /// Returns the index of the pool's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// Sets the unused memory that the pool keeps at synchronisations, in bytes. Default: 0.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_release_threshold(self.0.handle, bytes) }
            .map_err(|e| e.at(location))
    }

    /// Sets the access of other devices to the pool's present and future allocations.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as for a device that cannot access this
    /// device.
    #[track_caller]
    pub fn set_access(&self, access: &[(usize, MemAccess)]) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_set_access(self.0.handle, access) }
            .map_err(|e| e.at(location))
    }

    /// Releases unused memory until the pool holds `keep_bytes` bytes.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn trim(&self, keep_bytes: usize) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_trim(self.0.handle, keep_bytes) }.map_err(|e| e.at(location))
    }

    /// Allocates `bytes` bytes in stream order. Work enqueued on `stream` after this call may use
    /// the memory.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream is being captured, or belongs to another
    ///   driver or device.
    /// - Errors of the [driver call](Driver#errors), such as
    ///   [`CudaCode::OUT_OF_MEMORY`](crate::CudaCode::OUT_OF_MEMORY).
    #[track_caller]
    pub fn alloc(&self, bytes: usize, stream: &Stream) -> Result<PoolMemory> {
        let location = Location::caller();
        let driver = &self.0.driver;
        if !Arc::ptr_eq(driver, stream.driver()) || self.device() != stream.device() {
            return Err(DriverError::InvalidArgument {
                call: "MemPool::alloc",
                reason: format!(
                    "the pool is on cuda:{}, but the stream is on cuda:{} or belongs to another \
                     driver",
                    self.device(),
                    stream.device()
                ),
            });
        }
        let alloc = || {
            // SAFETY: pool and stream are alive.
            unsafe { driver.mem_alloc_async(self.0.handle, bytes, stream.handle()) }
        };
        // Memory that is allocated in a capture exists only in replays.
        let allocated = stream.outside_captures("MemPool::alloc", alloc);
        let ptr = allocated.map_err(|e| e.at(location))?;
        Ok(PoolMemory { ptr, bytes, stream: stream.clone(), pool: self.clone() })
    }
}

impl Drop for MemPoolInner {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: created by this driver and not destroyed before. Every allocation holds an `Arc`
        // of the pool.
        let destroy = move |driver: &dyn Driver| unsafe { driver.mempool_destroy(handle) };
        release(&self.driver, ReleaseKind::MemPool, 0, destroy);
    }
}

/// An allocation of a [`MemPool`]. Dropping it enqueues its release on its stream, after the work
/// enqueued there so far. If another stream uses the memory, make the allocation's stream wait for
/// that use before the drop.
#[derive(Debug)]
pub struct PoolMemory {
    ptr: DevicePtr,
    bytes: usize,
    stream: Stream,
    pool: MemPool,
}

impl PoolMemory {
    /// Returns the address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the index of the memory's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.pool.device()
    }

    /// Returns the stream on which the memory was allocated and will be released.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        // An empty allocation has no memory to release.
        if self.bytes == 0 {
            return;
        }
        // The closure keeps pool and stream alive until the driver has accepted the release.
        let (ptr, stream, pool) = (self.ptr, self.stream.clone(), self.pool.clone());
        let driver = Arc::clone(self.stream.driver());
        let free = move |driver: &dyn Driver| {
            let _kept = &pool;
            // If the release were captured, each replay would free the memory again.
            stream.outside_captures("PoolMemory", || {
                // SAFETY: allocated by this driver and not freed before. The release runs in stream
                // order, after all uses.
                unsafe { driver.mem_free_async(ptr, stream.handle()) }
            })
        };
        release(&driver, ReleaseKind::PoolMemory, self.bytes, free);
    }
}
