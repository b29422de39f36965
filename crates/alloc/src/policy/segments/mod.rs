//! Segments: allocations of the backend that are split into blocks, exactly by PyTorch's rules.
//! `rules.rs` has the sizes.

use crate::core::Core;
use crate::growth::{GrowthPolicy, Miss};
use crate::rules::segment_size;
use crate::shard::AllocatedBlock;
use crate::sync::lock;
use crate::{AllocError, Backend, release, source};

/// The policy of `policy:torch`. Other policies fall back to it in private pools. Policies with
/// pages also fall back to it if caching is off or the backend has no virtual memory.
pub(super) struct ExactSegments;

impl<B: Backend> GrowthPolicy<B> for ExactSegments {
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let request = miss.request;
        let config = miss.shard.lock().config.clone();
        let bytes = if config.caching { segment_size(&config, request.size) } else { request.size };
        add_segment(miss, bytes, || miss.shard.backend().alloc(bytes))
    }

    fn release_cached(&mut self, core: &Core<B>) {
        for shard in core.all_shards() {
            let mut state = shard.lock();
            // A private pool keeps its memory until the pool is dropped.
            let keeps = shard.pool > 0 && !state.retired;
            let released = if keeps { Vec::new() } else { state.heap.release_segments() };
            drop(state);
            shard.release(released);
        }
    }

    fn retry_refused(&mut self, core: &Core<B>, all: bool) {
        release::retry_refused(core, all);
    }
}

/// Serves a request from a new segment of `bytes` bytes.
pub(super) fn add_segment<B: Backend>(
    miss: &Miss<'_, B>,
    bytes: usize,
    allocate: impl FnOnce() -> Result<B::Memory, B::Error>,
) -> Result<Option<AllocatedBlock>, AllocError> {
    if !miss.may_reserve(bytes)? {
        return Ok(None);
    }
    let memory = match source::inside(allocate) {
        Ok(memory) => memory,
        Err(error) => return miss.out_of_memory(bytes, error).map(|()| None),
    };
    let mut state = miss.shard.lock();
    let oversize = state.rules.is_oversize(bytes);
    let kind = miss.request.kind;
    let mut global = lock(&miss.core.global);
    global.segment.increase(kind, 1);
    global.reserved_bytes.increase(kind, bytes as i64);
    global.num_device_alloc += 1;
    global.oversize_segments.increase(i64::from(oversize));
    drop(global);
    Ok(Some(state.add_segment(memory, bytes, miss.request)))
}
