//! The driver's own stream-ordered memory pools.

use std::panic::Location;
use std::sync::Arc;

use super::Stream;
use super::refused::{ReleaseKind, release};
use crate::{DevicePtr, Driver, DriverError, MemAccess, MemPoolHandle, Result};

/// A pool of device memory (`cuMemPoolCreate`), destroyed with its last clone and allocation.
#[derive(Clone, Debug)]
pub struct MemPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    handle: MemPoolHandle,
}

impl MemPool {
    /// A new pool that gives unused memory back at every synchronisation, until
    /// [`MemPool::set_release_threshold`] says otherwise.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.mempool_create(device).map_err(|e| e.at(location))?;
        Ok(Self(Arc::new(Inner { driver: Arc::clone(driver), handle })))
    }

    /// The device its memory is on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// Keeps up to `bytes` bytes of unused memory at synchronisations.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_release_threshold(self.0.handle, bytes) }
            .map_err(|e| e.at(location))
    }

    /// Lets other devices use the pool's memory, that which exists and that to come.
    ///
    /// # Errors
    /// The driver's own: a device that cannot reach this one.
    #[track_caller]
    pub fn set_access(&self, access: &[(usize, MemAccess)]) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_set_access(self.0.handle, access) }
            .map_err(|e| e.at(location))
    }

    /// Gives unused memory back until `keep_bytes` bytes are left.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn trim(&self, keep_bytes: usize) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the pool is alive.
        unsafe { self.0.driver.mempool_trim(self.0.handle, keep_bytes) }.map_err(|e| e.at(location))
    }

    /// Allocates `bytes` bytes that work enqueued later on `stream` may use.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] for a stream of another driver or device; the driver's
    /// own, out of memory first among them.
    #[track_caller]
    pub fn alloc(&self, bytes: usize, stream: &Stream) -> Result<PoolMemory> {
        let location = Location::caller();
        let driver = &self.0.driver;
        if !Arc::ptr_eq(driver, stream.driver()) || self.device() != stream.device() {
            return Err(DriverError::InvalidArgument {
                call: "MemPool::alloc",
                reason: format!(
                    "the pool is on cuda:{}, the stream on cuda:{} or of another driver",
                    self.device(),
                    stream.device()
                ),
            });
        }
        let alloc = || {
            // SAFETY: pool and stream are alive.
            unsafe { driver.mem_alloc_async(self.0.handle, bytes, stream.handle()) }
        };
        // Memory of a capture exists in its replays only.
        let allocated = stream.outside_captures("MemPool::alloc", alloc);
        let ptr = allocated.map_err(|e| e.at(location))?;
        Ok(PoolMemory { ptr, bytes, stream: stream.clone(), pool: self.clone() })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: made by this driver and not destroyed before; allocations held an `Arc` of this.
        let destroy = move |driver: &dyn Driver| unsafe { driver.mempool_destroy(handle) };
        release(&self.driver, ReleaseKind::MemPool, 0, destroy);
    }
}

/// An allocation of a [`MemPool`]. Dropping it enqueues its release on its stream, after the work
/// that is there by then; whoever uses it on another stream makes its stream wait for that first.
#[derive(Debug)]
pub struct PoolMemory {
    ptr: DevicePtr,
    bytes: usize,
    stream: Stream,
    pool: MemPool,
}

impl PoolMemory {
    /// Its first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.pool.device()
    }

    /// The stream that it was allocated on and will be released on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        // Of no bytes: nothing was allocated.
        if self.bytes == 0 {
            return;
        }
        // Pool and stream stay until the release is accepted.
        let (ptr, stream, pool) = (self.ptr, self.stream.clone(), self.pool.clone());
        let driver = Arc::clone(self.stream.driver());
        let free = move |driver: &dyn Driver| {
            let _kept = &pool;
            // Each replay of a capture would release it again.
            stream.outside_captures("PoolMemory", || {
                // SAFETY: this driver's and not freed before; the release runs in stream order.
                unsafe { driver.mem_free_async(ptr, stream.handle()) }
            })
        };
        release(&driver, ReleaseKind::PoolMemory, self.bytes, free);
    }
}
