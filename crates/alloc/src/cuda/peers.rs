//! Access of other devices to a device's mapped memory.
//!
//! `cuCtxEnablePeerAccess` opens memory of `cuMemAlloc`. Memory that is mapped explicitly has an
//! access setting per mapping: it is set here for existing mappings when a peer is allowed, and for
//! each new mapping.

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
    /// By address.
    live: BTreeMap<u64, Mapping>,
}

/// One mapping, unmapped on drop.
#[derive(Debug)]
pub(super) struct TrackedMapping {
    address: u64,
    all: Arc<DeviceMappings>,
}

impl DeviceMappings {
    fn lock(&self) -> MutexGuard<'_, MappingTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a new mapping to its device and the peers.
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

    /// Opens all mappings, present and future, to a peer.
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
        // Under the lock, so that no peer is allowed while the mapping is missing in the list.
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
        // Unmapped without the lock. An address is mapped again only after its last mapping is
        // gone.
        let mapping = self.all.lock().live.remove(&self.address);
        drop(mapping);
    }
}
