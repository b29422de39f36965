//! Membership of a storage in the memory pool of the graph that captured its allocation.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use warpline_alloc::cuda::CudaBlock;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::Uses;

/// Whether captured work has run, and whether it still can. Shared by all storages made in the capture.
pub(crate) type ReplayedFlag = Arc<ReplayState>;

#[derive(Debug, Default)]
pub(crate) struct ReplayState {
    pub(crate) replayed: AtomicBool,
    /// Whether the capture failed, or its graph was dropped.
    pub(crate) graph_dropped: AtomicBool,
}

/// The pool that the storages of a capture lie in.
pub(crate) trait CapturePool: Debug + Send + Sync {
    /// Takes over the uses and the memory of a dropped storage. Later replays write the memory, so
    /// they must wait for its uses. A capture in progress that uses the memory keeps it.
    fn leave(&self, key: usize, uses: &Uses, block: CudaBlock);
}

/// A storage's membership in its pool.
#[derive(Debug)]
pub(crate) struct PoolMembership {
    pool: Weak<dyn CapturePool>,
    replayed: ReplayedFlag,
    /// Whether the storage was made in the body of a conditional node, and so has contents only there.
    of_body: bool,
}

impl PoolMembership {
    pub(crate) fn new(pool: Weak<dyn CapturePool>, replayed: &ReplayedFlag, of_body: bool) -> Self {
        Self { pool, replayed: Arc::clone(replayed), of_body }
    }

    pub(crate) fn replayed(&self) -> &ReplayedFlag {
        &self.replayed
    }

    pub(crate) fn of_body(&self) -> bool {
        self.of_body
    }

    /// Returns whether the storage lies in this pool.
    pub(crate) fn is_of(&self, pool: &Arc<impl CapturePool>) -> bool {
        std::ptr::addr_eq(self.pool.as_ptr(), Arc::as_ptr(pool))
    }

    pub(crate) fn was_replayed(&self) -> bool {
        self.replayed.replayed.load(Ordering::Relaxed)
    }

    /// Returns whether the captured work never ran and never will.
    pub(super) fn is_lost(&self) -> bool {
        self.replayed.graph_dropped.load(Ordering::Acquire) && !self.was_replayed()
    }

    pub(super) fn leave(&self, key: usize, uses: &Uses, block: CudaBlock) {
        if let Some(pool) = self.pool.upgrade() {
            pool.leave(key, uses, block);
        }
    }
}
