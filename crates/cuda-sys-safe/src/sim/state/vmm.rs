//! Physical memory, and its mappings in reservations.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::MemAccess;
use crate::sim::backing::SharedFile;

/// Granularity of sizes and offsets, in bytes. The size of a shared file of device memory is a
/// multiple of it. The size of a shared file of host memory (`owned::SharedHostMemory`) never is.
pub(crate) const GRANULARITY: usize = crate::system::HUGE;

/// Physical memory, without a device address: a piece of the driver's file, or a separate file.
pub(crate) struct PhysicalState {
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    pub(crate) backing: PhysicalBacking,
    pub(crate) mappings: usize,
    pub(crate) released: bool,
}

/// The file of physical memory.
pub(crate) enum PhysicalBacking {
    /// An offset in the driver's file.
    Own(u64),
    /// A file that other processes may have open.
    Shared { file: Arc<SharedFile>, imported: bool },
}

impl PhysicalState {
    pub(crate) fn new(device: usize, bytes: usize, backing: PhysicalBacking) -> Self {
        Self { device, bytes, backing, mappings: 0, released: false }
    }
}

/// The user of memory.
#[derive(Clone, Copy)]
pub(crate) enum MemoryUser {
    /// A kernel on a device.
    Kernel(usize),
    /// A copy or memset, which can access the memory of any device.
    Copy,
}

/// A mapping inside a reservation.
pub(crate) struct MappedRange {
    pub(crate) physical: u64,
    pub(crate) bytes: usize,
    pub(crate) access: BTreeMap<usize, MemAccess>,
}

impl MappedRange {
    /// Returns `true` if a user may access the mapping. A copy may access the mapping if at least
    /// one device may, because a copy engine of that device can run the copy.
    pub(crate) fn allows(&self, user: MemoryUser, write: bool) -> bool {
        let enough = |access: &MemAccess| match access {
            MemAccess::ReadWrite => true,
            MemAccess::Read => !write,
            MemAccess::None => false,
        };
        match user {
            MemoryUser::Kernel(device) => self.access.get(&device).is_some_and(enough),
            MemoryUser::Copy => self.access.values().any(enough),
        }
    }
}

/// Returns the mappings that together cover a range of a reservation, or `None` if there is a gap.
pub(crate) fn covering(
    mappings: &BTreeMap<usize, MappedRange>,
    offset: usize,
    bytes: usize,
) -> Option<impl Iterator<Item = &MappedRange>> {
    let end = offset.checked_add(bytes)?;
    let (&first, _) = mappings.range(..=offset).next_back()?;
    let mut reached = first;
    for (&start, mapped) in mappings.range(first..end) {
        if start != reached {
            return None;
        }
        reached = start + mapped.bytes;
    }
    (reached >= end).then(|| mappings.range(first..end).map(|(_, m)| m))
}

pub(crate) fn aligned(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY)
}
