//! The bytes of blocks. All `unsafe` of this tool but one call is here.

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
    /// With this much staging memory.
    ///
    /// # Errors
    /// The driver's own.
    pub fn new(driver: &Arc<dyn Driver>, staging: usize) -> Result<Self, DriverError> {
        let staging = HostMemory::pinned(driver, 0, staging)?;
        Ok(Self { driver: Arc::clone(driver), staging })
    }

    /// Enqueues writing `word` over and over. `stream` is the block's, `bytes` a multiple of 4.
    ///
    /// # Errors
    /// The driver's own.
    pub fn fill(
        &self,
        block: &Block<CudaBackend>,
        offset: usize,
        bytes: usize,
        word: u32,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let ptr = address(block, offset, bytes);
        // SAFETY: inside a live block, whose memory is given on only after what its stream was
        // given before the free.
        unsafe { self.driver.memset_async(ptr, MemsetValue::U32(word), bytes / 4, stream.handle()) }
    }

    /// Enqueues a copy to `place` in the staging memory. `stream` is the block's.
    ///
    /// # Errors
    /// The driver's own.
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
        // SAFETY: inside the staging memory, as just checked.
        let dst = CopyEnd::Host(unsafe { self.staging.as_ptr().add(place) });
        // SAFETY: as for `fill`; the staging memory is freed after all work.
        unsafe { self.driver.memcpy_async(&Copy { dst, src, bytes }, stream.handle()) }
    }

    /// What copies brought to the staging memory. They must be done: whoever enqueued them has
    /// waited for their streams.
    pub fn staged(&mut self, place: usize, bytes: usize) -> &[u8] {
        assert!(place + bytes <= self.staging.bytes(), "a sample does not fit");
        // SAFETY: inside initialised memory, which no work is given while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.staging.as_ptr().as_ptr().add(place), bytes) }
    }
}

fn address(block: &Block<CudaBackend>, offset: usize, bytes: usize) -> DevicePtr {
    assert!(offset + bytes <= block.size(), "outside the block");
    // SAFETY: inside a live block, as just checked.
    unsafe { DevicePtr::from_raw(block.address() + offset as u64) }
}
