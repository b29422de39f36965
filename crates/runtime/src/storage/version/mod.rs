//! Whether a storage was written since.

use std::sync::{Arc, Weak};

use warpline_sync::atomic::Ordering;

use super::{Inner, Storage};

/// A storage as it was at some time: to find out later, without looking at its bytes, whether they
/// may have been written since. It keeps no memory alive. PyTorch has `Tensor._version` for this,
/// which views share as they do here.
///
/// It moves with each launch, copy, replay and host access that writes to the storage, through
/// whichever view, as it is enqueued. What the program writes by itself, through an address, it does
/// not know of.
#[derive(Clone, Debug)]
pub struct Version {
    // As long as this is held no other storage can have the same place.
    storage: Weak<Inner>,
    writes: u64,
}

impl Version {
    /// Whether this is `storage` as it is now: the same memory, and nothing has written to it since.
    /// Never, of memory that another process may write to.
    #[must_use]
    pub fn is_of(&self, storage: &Storage) -> bool {
        !storage.is_shared()
            && std::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(&storage.0))
            && self.writes == storage.writes()
    }
}

impl Storage {
    /// The storage as it is now. Who copies the bytes takes it before it copies: a write of another
    /// thread in between then counts as one that came later.
    ///
    /// ```
    /// # use warpline_runtime::{Runtime, RuntimeConfig, Storage, launch};
    /// # let reason = warpline_cuda_sys_safe::DriverError::NoDevice { reason: "none".into() };
    /// # let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    /// let storage = Storage::pageable(&runtime, 8)?;
    /// let version = storage.version();
    /// assert!(version.is_of(&storage));
    /// launch::write_bytes((&storage, 0), &[1])?;
    /// assert!(!version.is_of(&storage));
    /// # Ok::<(), warpline_runtime::Error>(())
    /// ```
    #[must_use]
    pub fn version(&self) -> Version {
        let mut writes = self.writes();
        // Read after the count: replays set it before they enter the first write, and count no others.
        if self.0.attached.load(Ordering::Acquire) {
            let _detached = self.uses();
            writes = self.writes();
        }
        Version { storage: Arc::downgrade(&self.0), writes }
    }

    /// Whether nobody else has this storage: no tensor, no view, no graph.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Acquire)
    }

    /// Enters that the bytes are about to be written. Called under the lock that orders the write
    /// with others': that on `uses`, or of host memory its host lock.
    pub(crate) fn enter_write(&self) {
        self.0.writes.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
