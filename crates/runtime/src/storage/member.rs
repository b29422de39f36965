//! What a storage that was made in a capture knows of the graph it is part of.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use warpline_alloc::cuda::CudaBlock;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::Uses;

/// Whether what was captured has run since, shared with all that was made in the capture.
pub(crate) type Replayed = Arc<AtomicBool>;

/// The memory that a capture's storages lie in.
pub(crate) trait Pool: Debug + Send + Sync {
    /// Takes what is left of a storage that is dropped: its uses, since later replays write its
    /// memory, and its memory, for a capture under way that uses it.
    fn leave(&self, key: usize, uses: &Uses, block: CudaBlock);
}

/// A storage's tie to its pool.
#[derive(Debug)]
pub(crate) struct Member {
    pool: Weak<dyn Pool>,
    replayed: Replayed,
}

impl Member {
    pub(crate) fn new(pool: Weak<dyn Pool>, replayed: &Replayed) -> Self {
        Self { pool, replayed: Arc::clone(replayed) }
    }

    pub(crate) fn replayed(&self) -> &Replayed {
        &self.replayed
    }

    /// Whether it lies in this pool, which is alive.
    pub(crate) fn is_of(&self, pool: &Arc<impl Pool>) -> bool {
        std::ptr::addr_eq(self.pool.as_ptr(), Arc::as_ptr(pool))
    }

    pub(crate) fn was_replayed(&self) -> bool {
        self.replayed.load(Ordering::Relaxed)
    }

    pub(super) fn leave(&self, key: usize, uses: &Uses, block: CudaBlock) {
        if let Some(pool) = self.pool.upgrade() {
            pool.leave(key, uses, block);
        }
    }
}
