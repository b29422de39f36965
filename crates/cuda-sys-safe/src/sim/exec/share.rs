//! Locks on memory that several processes share.
//!
//! Work that may access such memory runs under a lock on the memory's file, so no simulator of
//! another process accesses the memory at the same time. A race between processes then gives wrong
//! data, as on a device, but no undefined behaviour. The system releases the lock of a process that
//! ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RunError;
use crate::CudaCode;
use crate::sim::backing::SharedFile;
use crate::sim::state::SimState;

impl SimState {
    /// Locks all memory that other processes may share, until the returned locks are dropped.
    pub(super) fn lock_shared(&self) -> Result<SharedLocks, RunError> {
        // The map removes duplicates: memory that was exported and imported again has two entries.
        // All processes lock in the order of ids, so that they cannot deadlock.
        let files: BTreeMap<_, _> =
            self.shared_files.values().map(|file| (file.id, Arc::clone(file))).collect();
        let mut locked = SharedLocks(Vec::new());
        for file in files.into_values() {
            file.lock().map_err(|why| RunError {
                code: CudaCode::LAUNCH_FAILED,
                why: format!("the host cannot lock memory that processes share: {why}"),
            })?;
            locked.0.push(file);
        }
        Ok(locked)
    }
}

/// Locked files.
pub(super) struct SharedLocks(Vec<Arc<SharedFile>>);

impl Drop for SharedLocks {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.unlock());
    }
}
