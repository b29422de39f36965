//! Stream-ordered memory pools.

use std::collections::BTreeMap;

use crate::MemAccess;

pub(crate) struct PoolState {
    pub(crate) device: usize,
    /// Release threshold: memory that the pool keeps at synchronisations, in bytes.
    pub(crate) threshold: u64,
    /// Memory that the pool has taken from the device, in bytes.
    pub(crate) reserved: usize,
    /// Part of the reserved memory that is allocated, in bytes.
    pub(crate) used: usize,
    pub(crate) destroyed: bool,
    /// Access of other devices to the pool's memory.
    pub(crate) access: BTreeMap<usize, MemAccess>,
}

impl PoolState {
    /// Returns `true` if a device may access the pool's memory.
    pub(crate) fn allows(&self, device: usize, write: bool) -> bool {
        device == self.device
            || match self.access.get(&device) {
                Some(MemAccess::ReadWrite) => true,
                Some(MemAccess::Read) => !write,
                None | Some(MemAccess::None) => false,
            }
    }
}
