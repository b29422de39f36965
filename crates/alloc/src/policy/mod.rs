//! The four policies for getting memory from the backend and releasing it, behind one interface.
//! Hits do not depend on the policy: they find the free blocks of all policies in a heap.
//!
//! - [`segments`]: allocations of the backend, each a segment that is split into blocks.
//! - [`expandable`]: PyTorch's expandable segments, reserved addresses that pages are mapped to.
//! - [`pages`]: pages that migrate between streams and can be mapped at several addresses (the
//!   default).
//! - [`stream_ordered`]: the driver's stream-ordered pools, without a cache.
//!
//! The options in force in a request's shard select the policy. The options of a running allocator
//! can change, and private pools always use segments. Therefore each policy releases its own
//! memory, also while another policy is in force. `arenas` has the common parts of the policies
//! with pages.

mod arenas;
mod expandable;
mod pages;
mod segments;
mod stream_ordered;

use crate::core::Core;
use crate::growth::{GrowthPolicies, GrowthPolicy, Miss};
use crate::shard::AllocatedBlock;
use crate::sync::lock;
use crate::{AllocError, AllocatorConfig, Backend, Policy};

use expandable::ExpandableSegments;
use pages::MovablePages;
use segments::ExactSegments;
use stream_ordered::StreamOrdered;

impl<B: Backend> Miss<'_, B> {
    /// Returns whether the limit allows `bytes` more bytes to be reserved.
    fn may_reserve(&self, bytes: usize) -> Result<bool, AllocError> {
        let reserved = self.core.reserved();
        let overflow = AllocError::SizeOverflow { what: "reserved memory", bytes };
        let reserved = reserved.checked_add(bytes).ok_or(overflow)?;
        Ok(self.limit.is_none_or(|limit| reserved <= limit))
    }

    /// Counts new pages created for this request.
    fn count_created(&self, bytes: usize) {
        let mut global = lock(&self.core.global);
        global.reserved_bytes.increase(self.request.kind, bytes as i64);
        global.num_device_alloc += 1;
    }

    /// Returns `Ok` if the error means that memory is exhausted, otherwise the request's error.
    fn out_of_memory(&self, bytes: usize, error: B::Error) -> Result<(), AllocError> {
        if self.core.backend.is_out_of_memory(&error) {
            return Ok(());
        }
        Err(AllocError::from_backend(bytes, error))
    }
}

/// All policies of an allocator, and their common memory limit.
pub(crate) struct Policies<B: Backend> {
    /// The memory fraction and the limit in bytes that follows from it, after the first query of
    /// the device's memory.
    limit: Option<(f64, usize)>,
    segments: ExactSegments,
    expandable: ExpandableSegments,
    pages: MovablePages<B>,
    stream_ordered: StreamOrdered,
}

impl<B: Backend> Policies<B> {
    pub(crate) fn new() -> Self {
        Self {
            limit: None,
            segments: ExactSegments,
            expandable: ExpandableSegments::default(),
            pages: MovablePages::default(),
            stream_ordered: StreamOrdered,
        }
    }

    fn in_force(&mut self, config: &AllocatorConfig) -> &mut dyn GrowthPolicy<B> {
        match config.policy {
            Policy::CudaMallocAsync => &mut self.stream_ordered,
            _ if !config.caching => &mut self.segments,
            Policy::Default => &mut self.pages,
            Policy::Torch if config.expandable_segments => &mut self.expandable,
            Policy::Torch => &mut self.segments,
        }
    }

    fn all_mut(&mut self) -> [&mut dyn GrowthPolicy<B>; 4] {
        [&mut self.segments, &mut self.expandable, &mut self.pages, &mut self.stream_ordered]
    }

    /// Returns whether any pages are mapped.
    fn have_pages(&self) -> bool {
        self.expandable.arenas.pages > 0 || self.pages.arenas.pages > 0
    }
}

impl<B: Backend> GrowthPolicy<B> for Policies<B> {
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let config = miss.shard.lock().config.clone();
        self.in_force(&config).grow(miss)
    }

    fn release_cached(&mut self, core: &Core<B>) {
        if core.is_capturing() {
            return;
        }
        self.retry_refused(core, true);
        self.all_mut().into_iter().for_each(|policy| policy.release_cached(core));
    }

    fn retry_refused(&mut self, core: &Core<B>, all: bool) {
        if core.is_capturing() {
            return;
        }
        self.all_mut().into_iter().for_each(|policy| policy.retry_refused(core, all));
    }
}

impl<B: Backend> GrowthPolicies<B> for Policies<B> {
    fn limit(&mut self, core: &Core<B>, requested: usize) -> Result<Option<usize>, AllocError> {
        // A fraction of 1 means no limit.
        let fraction = lock(&core.memory_fraction).filter(|fraction| *fraction < 1.0);
        let Some(fraction) = fraction else { return Ok(None) };
        if let Some((of, limit)) = self.limit
            && of == fraction
        {
            return Ok(Some(limit));
        }
        let info = core.backend.mem_info();
        let (_, total) = info.map_err(|error| AllocError::from_backend(requested, error))?;
        let limit = (fraction * total as f64) as usize;
        self.limit = Some((fraction, limit));
        Ok(Some(limit))
    }

    fn close(&mut self, backend: &B) {
        if self.have_pages()
            && let Err(error) = backend.synchronize_device()
            && !backend.is_lost(&error)
        {
            // Work may still use the pages, and leaking them is better than a fault.
            std::mem::forget(std::mem::replace(self, Self::new()));
        }
    }
}
