//! Stream-ordered memory pools.

use std::collections::BTreeMap;

use crate::MemAccess;

pub(crate) struct Pool {
    pub(crate) device: usize,
    /// What it keeps at synchronisations instead of giving it back.
    pub(crate) threshold: u64,
    /// Bytes taken from the device.
    pub(crate) reserved: usize,
    /// Bytes of them that are allocated.
    pub(crate) used: usize,
    pub(crate) destroyed: bool,
    /// What other devices may do with its memory.
    pub(crate) access: BTreeMap<usize, MemAccess>,
}

impl Pool {
    /// Whether a device may touch its memory.
    pub(crate) fn allows(&self, device: usize, write: bool) -> bool {
        device == self.device
            || match self.access.get(&device) {
                Some(MemAccess::ReadWrite) => true,
                Some(MemAccess::Read) => !write,
                None | Some(MemAccess::None) => false,
            }
    }
}
