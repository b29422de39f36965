//! Membership of a storage that was made in a capture in its graph's pool.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use warpline_alloc::cuda::CudaBlock;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::Uses;

/// Whether the captured work has run since. Shared by all storages made in the capture.
pub(crate) type Replayed = Arc<AtomicBool>;

/// The pool that the storages of a capture lie in.
pub(crate) trait Pool: Debug + Send + Sync {
    /// Takes over the remains of a dropped storage: its uses, because later replays write its
    /// memory, and its memory, for a capture in progress that uses it.
    fn leave(&self, key: usize, uses: &Uses, block: CudaBlock);
}

/// A storage's membership in its pool.
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

    /// Returns whether the storage lies in this pool.
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
