//! The interface between a request that nothing cached fits and the policies. A hit calls none of it.

use std::sync::Arc;

use crate::core::Core;
use crate::shard::{Granted, Request, Shard};
use crate::{AllocError, Backend};

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

/// All policies of an allocator, as one. A request is served by the policy that is in force in its shard.
pub(crate) trait Growth<B: Backend>: GrowthPolicy<B> + Send {
    /// Returns how many bytes may be reserved in all; `None` if there is no limit. `requested` is the size that an error
    /// names, in bytes.
    ///
    /// # Errors
    /// [`AllocError::Backend`] if the backend cannot tell how much memory there is.
    fn limit(&mut self, core: &Core<B>, requested: usize) -> Result<Option<usize>, AllocError>;

    /// Prepares for being dropped, after the last block. Waits for work on the device if pages are mapped, because to drop
    /// them does not. Leaks all pages if it cannot wait.
    fn close(&mut self, backend: &B);
}

/// A request that nothing cached fits.
pub(crate) struct Miss<'a, B: Backend> {
    pub(crate) core: &'a Core<B>,
    pub(crate) shard: &'a Arc<Shard<B>>,
    pub(crate) request: Request,
    /// How many bytes may be reserved in all.
    pub(crate) limit: Option<usize>,
}
