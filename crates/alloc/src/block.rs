//! A block in a caller's hands.

use std::fmt;

use crate::Backend;
use crate::heap::NONE;
use crate::shard::{Granted, ShardCell};
use crate::sync::{Lasting, is_same};

/// Memory from a [`CachingAllocator`](crate::CachingAllocator), given back on drop.
///
/// It keeps its shard and the backend alive. Dropping it never waits while there is an
/// allocator: if other streams use it (see [`record_stream`](Block::record_stream)) its memory is
/// used again only once they are done. What outlives the allocator waits for them, as its memory
/// goes back to the backend.
pub struct Block<B: Backend> {
    cell: Lasting<ShardCell<B>>,
    address: u64,
    requested: usize,
    size: usize,
    stream: u64,
    /// `NONE` if it is empty, and then in no shard.
    index: u32,
}

impl<B: Backend> Block<B> {
    #[inline]
    pub(crate) fn new(
        cell: Lasting<ShardCell<B>>,
        granted: Granted,
        requested: usize,
        stream: u64,
    ) -> Self {
        let Granted { block: index, address, size } = granted;
        Self { cell, address, requested, size, stream, index }
    }

    pub(crate) fn is_of(&self, cell: &Lasting<ShardCell<B>>) -> bool {
        self.index != NONE && is_same(&self.cell, cell)
    }

    /// Where it starts; 0 if it is empty. At least 512-byte aligned if the backend's memory is.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The bytes it occupies: what was asked for, rounded up.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The bytes that were asked for.
    #[inline]
    #[must_use]
    pub fn requested(&self) -> usize {
        self.requested
    }

    /// The id of the stream it was allocated for.
    #[inline]
    #[must_use]
    pub fn stream_id(&self) -> u64 {
        self.stream
    }

    /// Says that work on `stream` uses this memory (`torch.Tensor.record_stream`). When it is
    /// dropped it is used again only once all work that the stream was given until then is done.
    /// Of no effect for the stream it was allocated for.
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
