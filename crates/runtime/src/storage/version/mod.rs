//! Detection of writes to a storage.

use std::sync::{Arc, Weak};

use warpline_sync::atomic::Ordering;

use super::{Storage, StorageInner};

/// A snapshot of a storage's write count, to find out later whether its bytes may have been written
/// since, without reading them. It does not keep the storage alive. The counterpart in PyTorch is
/// `Tensor._version`, which views share as well.
///
/// The version changes with each launch, copy, replay and host access that writes to the storage,
/// through any view, when it is enqueued. Writes by the program's own code through an address are
/// not counted.
#[derive(Clone, Debug)]
pub struct Version {
    // The weak reference keeps the address from being reused, so comparing addresses is exact.
    storage: Weak<StorageInner>,
    writes: u64,
}

impl Version {
    /// Returns whether `storage` is the same memory and was not written since the snapshot. Always
    /// `false` for memory that another process may write to.
    #[must_use]
    pub fn is_of(&self, storage: &Storage) -> bool {
        !storage.is_shared()
            && std::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(&storage.0))
            && self.writes == storage.writes()
    }
}

impl Storage {
    /// Returns the current version. To copy the bytes, take the version before the copy: a write by
    /// another thread in between then counts as a later write.
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
        // Check `attached` after the count is read. A replay sets `attached` before it counts its
        // write, and replays of an attached storage are not counted.
        if self.0.attached.load(Ordering::Acquire) {
            let _detached = self.uses();
            writes = self.writes();
        }
        Version { storage: Arc::downgrade(&self.0), writes }
    }

    /// Returns whether there is no other reference to this storage: no tensor, view or graph.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Acquire)
    }

    /// Counts a write that is about to be made. The caller holds the lock that orders this write
    /// with other writes: the lock on `uses`, or the host lock for a write by host code.
    pub(crate) fn record_write(&self) {
        self.0.writes.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
