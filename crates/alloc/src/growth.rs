//! The interface between misses and policies. Hits do not use it.

use std::sync::Arc;

use crate::core::Core;
use crate::shard::{AllocatedBlock, Request, Shard};
use crate::{AllocError, Backend};

/// A method of getting memory from the backend. Called by one thread at a time, without a shard's
/// lock.
pub(crate) trait GrowthPolicy<B: Backend> {
    /// Serves a miss. `None` if the backend has no memory or the limit is reached.
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError>;

    /// Releases all segments and pages that are wholly free. Memory that the backend refuses to
    /// take back stays free where it is, or is kept for another attempt.
    fn release_cached(&mut self, core: &Core<B>);

    /// Retries refused releases of memory that serves no requests, until the backend refuses again.
    /// With `all`, tries every release.
    fn retry_refused(&mut self, core: &Core<B>, all: bool);
}

/// All policies of an allocator. The options in force in a request's shard select the policy.
pub(crate) trait GrowthPolicies<B: Backend>: GrowthPolicy<B> + Send {
    /// Returns the maximum number of bytes that may be reserved in total. `None` if there is no
    /// limit. `requested` is the requested size for the error, in bytes.
    ///
    /// # Errors
    /// [`AllocError::Backend`] if the backend cannot report the size of the device's memory.
    fn limit(&mut self, core: &Core<B>, requested: usize) -> Result<Option<usize>, AllocError>;

    /// Prepares for the drop, after the last block was freed. Waits for work on the device if pages
    /// are mapped, because unmapping does not wait. Leaks all pages if the wait fails.
    fn close(&mut self, backend: &B);
}

/// A request that the cache cannot serve.
pub(crate) struct Miss<'a, B: Backend> {
    pub(crate) core: &'a Core<B>,
    pub(crate) shard: &'a Arc<Shard<B>>,
    pub(crate) request: Request,
    /// Maximum number of bytes that may be reserved in total.
    pub(crate) limit: Option<usize>,
}
