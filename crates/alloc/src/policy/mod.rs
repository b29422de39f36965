//! How an allocator gets memory of its backend, and gives it back: four policies behind one
//! interface. Hits know nothing of them: they find free blocks in a heap, whoever put these there.
//!
//! - [`segments`]: allocations of the backend, each a segment that is split into blocks.
//! - [`expandable`]: PyTorch's expandable segments, reserved addresses that pages are mapped to.
//! - [`pages`]: pages that move to where they are needed (the default).
//! - [`stream_ordered`]: the runtime's own pools, without a cache.
//!
//! Which one serves a request follows from the options in force in its shard. Those of a running
//! allocator can change, and private pools always have segments: so each policy gives back what it
//! got, whichever is in force by then. `arenas` has what those with pages share.

mod arenas;
pub(crate) mod expandable;
mod pages;
mod segments;
mod stream_ordered;

use std::sync::Arc;

use crate::core::Core;
use crate::shard::{Granted, Request, Shard, lock};
use crate::{AllocError, AllocatorConfig, Backend, Policy};

use expandable::ExpandableSegments;
use pages::MovablePages;
use segments::ExactSegments;
use stream_ordered::StreamOrdered;

/// A way to get memory of the backend. All calls are made by one thread at a time, and without any
/// shard's lock.
pub(crate) trait GrowthPolicy<B: Backend> {
    /// Serves a request that nothing cached fits. `None` if the backend, or the limit, says that
    /// there is no memory for it.
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<Granted>, AllocError>;

    /// Gives all memory back that is wholly free. What the backend refuses to take stays free where
    /// it is, or is kept to be tried again.
    fn release_cached(&mut self, core: &Core<B>);

    /// Tries again to give back what the backend refused and what serves no requests, until it
    /// refuses again, or all of it.
    fn retry_refused(&mut self, core: &Core<B>, all: bool);
}

/// A request that nothing cached fits.
pub(crate) struct Miss<'a, B: Backend> {
    pub(crate) core: &'a Core<B>,
    pub(crate) shard: &'a Arc<Shard<B>>,
    pub(crate) request: Request,
    /// How many bytes may be reserved in all.
    pub(crate) limit: Option<usize>,
}

impl<B: Backend> Miss<'_, B> {
    /// Whether the limit lets `bytes` more bytes be reserved.
    fn may_reserve(&self, bytes: usize) -> Result<bool, AllocError> {
        let reserved = self.core.reserved();
        let overflow = AllocError::SizeOverflow { what: "reserved memory", bytes };
        let reserved = reserved.checked_add(bytes).ok_or(overflow)?;
        Ok(self.limit.is_none_or(|limit| reserved <= limit))
    }

    /// Counts pages for this request as got from the backend.
    fn count_created(&self, bytes: usize) {
        let mut global = lock(&self.core.global);
        global.reserved_bytes.increase(self.request.kind, bytes as i64);
        global.num_device_alloc += 1;
    }

    /// `Ok` if an error means that there is no memory, and what the request fails with otherwise.
    fn out_of_memory(&self, bytes: usize, error: B::Error) -> Result<(), AllocError> {
        if self.core.backend.is_out_of_memory(&error) {
            return Ok(());
        }
        Err(AllocError::from_backend(bytes, error))
    }
}

/// All policies of an allocator, and the limit that they share.
pub(crate) struct Policies<B: Backend> {
    /// A share of the device's memory and its bytes, once they were needed.
    limit: Option<(f64, usize)>,
    pub(crate) segments: ExactSegments,
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

    /// How many bytes may be reserved in all.
    pub(crate) fn limit(
        &mut self,
        core: &Core<B>,
        requested: usize,
    ) -> Result<Option<usize>, AllocError> {
        // A fraction of 1 is no limit.
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

    /// Serves a request by the policy that is in force in its shard.
    pub(crate) fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<Granted>, AllocError> {
        let config = miss.shard.lock().config.clone();
        self.in_force(&config).grow(miss)
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

    /// Gives all memory back that is wholly free.
    pub(crate) fn release_cached(&mut self, core: &Core<B>) {
        if core.is_capturing() {
            return;
        }
        self.retry_refused(core, true);
        self.each().into_iter().for_each(|policy| policy.release_cached(core));
    }

    /// Tries again to give back what the backend refused.
    pub(crate) fn retry_refused(&mut self, core: &Core<B>, all: bool) {
        if core.is_capturing() {
            return;
        }
        self.each().into_iter().for_each(|policy| policy.retry_refused(core, all));
    }

    fn each(&mut self) -> [&mut dyn GrowthPolicy<B>; 4] {
        [&mut self.segments, &mut self.expandable, &mut self.pages, &mut self.stream_ordered]
    }

    /// Whether anything is mapped.
    pub(crate) fn have_pages(&self) -> bool {
        self.expandable.arenas.pages > 0 || self.pages.arenas.pages > 0
    }
}
