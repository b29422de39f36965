//! Access of other devices to a device's mapped memory.
//!
//! `cuCtxEnablePeerAccess` gives access to memory of `cuMemAlloc`. Explicitly mapped memory has an
//! access setting per mapping instead. The setting is made here, for existing mappings when a peer
//! is allowed, and for each new mapping.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::Mapping;
use warpline_cuda_sys_safe::{DriverError, MemAccess};
use warpline_sync::{Mutex, MutexGuard};

/// All mappings of a device's memory.
#[derive(Debug, Default)]
pub(super) struct DeviceMappings(Mutex<MappingTable>);

#[derive(Debug, Default)]
struct MappingTable {
    peers: Vec<usize>,
    /// Live mappings by address.
    live: BTreeMap<u64, Mapping>,
}

/// A mapping in the table, unmapped on drop.
#[derive(Debug)]
pub(super) struct TrackedMapping {
    address: u64,
    all: Arc<DeviceMappings>,
}

impl DeviceMappings {
    fn lock(&self) -> MutexGuard<'_, MappingTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a mapping, and gives its device and the peers access.
    pub(super) fn add(
        self: &Arc<Self>,
        device: usize,
        mapping: Mapping,
    ) -> Result<TrackedMapping, DriverError> {
        let mut state = self.lock();
        let access: Vec<_> = std::iter::once(device)
            .chain(state.peers.iter().copied())
            .map(|d| (d, MemAccess::ReadWrite))
            .collect();
        mapping.set_access(&access)?;
        let address = mapping.ptr().addr();
        state.live.insert(address, mapping);
        Ok(TrackedMapping { address, all: Arc::clone(self) })
    }

    /// Returns the devices that may access the mappings.
    pub(super) fn peers(&self) -> Vec<usize> {
        self.lock().peers.clone()
    }

    /// Gives a peer access to all mappings, present and future.
    pub(super) fn allow(&self, peer: usize) -> Result<(), DriverError> {
        let mut state = self.lock();
        if state.peers.contains(&peer) {
            return Ok(());
        }
        for mapping in state.live.values() {
            mapping.set_access(&[(peer, MemAccess::ReadWrite)])?;
        }
        state.peers.push(peer);
        Ok(())
    }
}

impl TrackedMapping {
    /// Unmaps the mapping.
    ///
    /// # Errors
    /// The mapping, if the driver refuses.
    pub(super) fn release(self) -> Result<(), Self> {
        // The mapping is not in the table during the release. Hold the lock until the release is
        // done, so that a concurrent `allow` does not miss a mapping whose release is refused.
        let mut state = self.all.lock();
        let Some(mapping) = state.live.remove(&self.address) else { return Ok(()) };
        if let Err(refused) = mapping.release() {
            state.live.insert(self.address, refused.0);
            drop(state);
            return Err(self);
        }
        drop(state);
        Ok(())
    }
}

impl Drop for TrackedMapping {
    fn drop(&mut self) {
        // Unmap without the lock. No new mapping can have the same address before this one is
        // dropped.
        let mapping = self.all.lock().live.remove(&self.address);
        drop(mapping);
    }
}
