//! A live block of device memory.

use std::fmt;

use crate::Backend;
use crate::heap::NONE;
use crate::shard::{AllocatedBlock, ShardCell};
use crate::sync::{StaticRef, is_same};

/// Memory from a [`CachingAllocator`](crate::CachingAllocator), returned to the cache on drop.
///
/// A block keeps its shard and the backend alive. While the allocator exists, dropping a block does not wait for the
/// other streams that use the block (see [`record_stream`](Block::record_stream)): its memory is reused or released
/// only after they have completed their work. After the allocator was dropped, the drop of a stream's last block waits
/// for them. If caching is off, or the block's pool was dropped, the drop of a block that no other stream uses gives
/// its memory back to the backend. That call may wait for the device.
pub struct Block<B: Backend> {
    cell: StaticRef<ShardCell<B>>,
    address: u64,
    requested: usize,
    size: usize,
    stream: u64,
    /// `NONE` for an empty block, because such a block is in no shard.
    index: u32,
}

impl<B: Backend> Block<B> {
    #[inline]
    pub(crate) fn new(
        cell: StaticRef<ShardCell<B>>,
        allocated: AllocatedBlock,
        requested: usize,
        stream: u64,
    ) -> Self {
        let AllocatedBlock { block: index, address, size } = allocated;
        Self { cell, address, requested, size, stream, index }
    }

    pub(crate) fn belongs_to(&self, cell: &StaticRef<ShardCell<B>>) -> bool {
        self.index != NONE && is_same(&self.cell, cell)
    }

    /// Returns the address of the first byte. 0 for an empty block. Aligned to at least 512 bytes
    /// if the backend's memory is.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size of the block in bytes, at least the requested size.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the requested size in bytes.
    #[inline]
    #[must_use]
    pub fn requested(&self) -> usize {
        self.requested
    }

    /// Returns the id of the stream that the block was allocated for.
    #[inline]
    #[must_use]
    pub fn stream_id(&self) -> u64 {
        self.stream
    }

    /// Declares that work on `stream` uses this memory (`torch.Tensor.record_stream`). After the
    /// drop, the memory is reused only when all work enqueued on `stream` before the drop is
    /// complete. Has no effect for the stream that the block was allocated for.
    pub fn record_stream(&self, stream: &B::Stream) {
        if self.index != NONE {
            self.cell.lock_parked().record_stream(self.index, stream);
        }
    }
}

impl<B: Backend> Drop for Block<B> {
    #[inline]
    fn drop(&mut self) {
        if self.index != NONE {
            self.cell.free(self.index);
        }
    }
}

impl<B: Backend> fmt::Debug for Block<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("address", &format_args!("{:#x}", self.address))
            .field("size", &self.size)
            .field("requested", &self.requested)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
