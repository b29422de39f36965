//! Fills and reads the bytes of blocks. This module has all but one of the tool's `unsafe` calls.

use std::sync::Arc;

use warpline_alloc::{Block, CudaBackend};
use warpline_cuda_sys_safe::owned::{HostMemory, Stream};
use warpline_cuda_sys_safe::{Copy, CopyEnd, DevicePtr, Driver, DriverError, MemsetValue};

/// Writes and reads blocks, through page-locked staging memory.
#[derive(Debug)]
pub struct Bytes {
    driver: Arc<dyn Driver>,
    staging: HostMemory,
}

impl Bytes {
    /// Allocates `staging` bytes of staging memory.
    ///
    /// # Errors
    /// [`DriverError`] if the page-locked memory cannot be allocated.
    pub fn new(driver: &Arc<dyn Driver>, staging: usize) -> Result<Self, DriverError> {
        let staging = HostMemory::pinned(driver, 0, staging)?;
        Ok(Self { driver: Arc::clone(driver), staging })
    }

    /// Enqueues a fill of `bytes` bytes from `offset` with `word`. `stream` is the block's stream,
    /// and `bytes` is a multiple of 4.
    ///
    /// # Errors
    /// [`DriverError`] if the fill cannot be enqueued.
    pub fn fill(
        &self,
        block: &Block<CudaBackend>,
        offset: usize,
        bytes: usize,
        word: u32,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let ptr = address(block, offset, bytes);
        // SAFETY: `address` checked that the range lies inside the live block. After a free, other
        // streams get the block's memory only after the work enqueued on `stream`, the block's own
        // stream.
        unsafe { self.driver.memset_async(ptr, MemsetValue::U32(word), bytes / 4, stream.handle()) }
    }

    /// Enqueues a copy of `bytes` bytes from `offset` to `place` in the staging memory. `stream` is
    /// the block's stream.
    ///
    /// # Errors
    /// [`DriverError`] if the copy cannot be enqueued.
    pub fn stage(
        &self,
        block: &Block<CudaBackend>,
        offset: usize,
        bytes: usize,
        place: usize,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        assert!(place + bytes <= self.staging.bytes(), "a sample does not fit");
        let src = CopyEnd::Device { device: 0, ptr: address(block, offset, bytes) };
        // SAFETY: the assertion keeps `place` inside the staging memory.
        let dst = CopyEnd::Host(unsafe { self.staging.as_ptr().add(place) });
        // SAFETY: `address` checked that the source lies inside the live block, which is reused
        // only after work on its own stream. The staging memory has room for the copy and is
        // released only after all work.
        unsafe { self.driver.memcpy_async(&Copy { dst, src, bytes }, stream.handle()) }
    }

    /// Returns `bytes` bytes of the staging memory from `place`. The copies to this place must be
    /// finished: the caller has waited for their streams.
    pub fn staged(&mut self, place: usize, bytes: usize) -> &[u8] {
        assert!(place + bytes <= self.staging.bytes(), "a sample does not fit");
        // SAFETY: the assertion keeps the range inside the staging memory, which is initialized.
        // Its copies are finished, and no copy can be enqueued while `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.staging.as_ptr().as_ptr().add(place), bytes) }
    }
}

fn address(block: &Block<CudaBackend>, offset: usize, bytes: usize) -> DevicePtr {
    assert!(offset + bytes <= block.size(), "outside the block");
    // SAFETY: the assertion keeps the address inside a live block.
    unsafe { DevicePtr::from_raw(block.address() + offset as u64) }
}
