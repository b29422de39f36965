//! The driver's stream-ordered pools (`backend:cudaMallocAsync`): each block is allocated and freed
//! in the order of its stream. Nothing is cached here. The pools release their free memory when the
//! cache is emptied.

use super::segments;
use crate::core::Core;
use crate::growth::{GrowthPolicy, Miss};
use crate::shard::AllocatedBlock;
use crate::{AllocError, Backend};

pub(super) struct StreamOrdered;

impl<B: Backend> GrowthPolicy<B> for StreamOrdered {
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let (backend, bytes) = (&miss.core.backend, miss.request.size);
        let stream = miss.shard.lock().stream.clone();
        segments::add_segment(miss, bytes, || {
            backend.alloc_async(bytes, &stream).unwrap_or_else(|| backend.alloc(bytes))
        })
    }

    fn release_cached(&mut self, core: &Core<B>) {
        core.backend.trim();
    }

    /// Does nothing, because each block is a segment, and the policy of segments retries their
    /// releases.
    fn retry_refused(&mut self, _: &Core<B>, _: bool) {}
}
