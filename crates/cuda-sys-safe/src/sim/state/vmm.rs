//! Physical memory, and its mappings in reservations.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::MemAccess;
use crate::sim::backing::SharedFile;

/// Sizes and offsets are multiples of this, in bytes. The size of a shared file tells device memory from host memory by it
/// (`owned::SharedHostMemory`).
pub(crate) const GRANULARITY: usize = crate::system::HUGE;

/// Memory without an address: a piece of the driver's file, or a file of its own.
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    pub(crate) source: Source,
    pub(crate) mappings: usize,
    pub(crate) released: bool,
}

/// Where the bytes of physical memory are.
pub(crate) enum Source {
    /// At an offset of the driver's file.
    Own(u64),
    /// In a file that other processes may have too.
    Shared { file: Arc<SharedFile>, imported: bool },
}

impl Physical {
    pub(crate) fn new(device: usize, bytes: usize, source: Source) -> Self {
        Self { device, bytes, source, mappings: 0, released: false }
    }
}

/// On whose behalf memory is touched.
#[derive(Clone, Copy)]
pub(crate) enum User {
    /// A kernel on a device.
    Kernel(usize),
    /// A copy or memset, which reaches any device's memory.
    Copy,
}

/// A mapping inside a reservation.
pub(crate) struct Mapped {
    pub(crate) physical: u64,
    pub(crate) bytes: usize,
    pub(crate) access: BTreeMap<usize, MemAccess>,
}

impl Mapped {
    /// Whether somebody may touch it. A copy may if any device may: some engine can do it.
    pub(crate) fn allows(&self, user: User, write: bool) -> bool {
        let enough = |access: &MemAccess| match access {
            MemAccess::ReadWrite => true,
            MemAccess::Read => !write,
            MemAccess::None => false,
        };
        match user {
            User::Kernel(device) => self.access.get(&device).is_some_and(enough),
            User::Copy => self.access.values().any(enough),
        }
    }
}

/// The mappings that together cover a range of a reservation, if they do.
pub(crate) fn covering(
    mappings: &BTreeMap<usize, Mapped>,
    offset: usize,
    bytes: usize,
) -> Option<impl Iterator<Item = &Mapped>> {
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
