//! Host memory behind simulated device and page-locked memory, mapped from the system and committed
//! only where it is touched.

use std::io;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use crate::system::{self, Backing};
pub(super) use crate::system::{MemoryFile, SharedFile, in_pages};

/// A range of mapped host addresses, unmapped on drop. Addresses are numbers with exposed
/// provenance.
#[derive(Debug)]
pub(crate) struct HostMapping {
    pub(crate) base: usize,
    pub(crate) bytes: usize,
}

impl HostMapping {
    fn new(bytes: usize, backing: Backing) -> io::Result<Self> {
        let bytes = in_pages(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let base = system::map(bytes, backing)?.as_ptr().expose_provenance();
        Ok(Self { base, bytes })
    }

    /// Maps zeroed memory that is committed when it is touched.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, Backing::OnTouch)
    }

    /// Maps addresses that fault.
    pub(super) fn inaccessible(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, Backing::Inaccessible)
    }

    /// Returns the address of a part of the mapping, or `None` if the part does not lie inside.
    fn range(&self, offset: usize, bytes: usize) -> Option<NonNull<u8>> {
        offset.checked_add(bytes).filter(|&end| end <= self.bytes)?;
        NonNull::new(with_exposed_provenance_mut(self.base + offset))
    }

    /// Maps a part of a file at an offset.
    pub(super) fn map_file(
        &self,
        offset: usize,
        bytes: usize,
        file: &MemoryFile,
        from: u64,
    ) -> io::Result<()> {
        let start = self.range(offset, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is a part of this mapping. The driver's lock keeps other threads from
        // it.
        unsafe { system::map_file(start, bytes, file, from) }
    }

    /// Makes a part of the mapping fault again. Pages of a mapped file stay in the file; other
    /// pages are released.
    pub(super) fn make_inaccessible(&self, offset: usize, bytes: usize) {
        if let Some(start) = self.range(offset, bytes) {
            // SAFETY: the range is a part of this mapping. The driver's lock keeps other threads
            // from it.
            unsafe { system::make_inaccessible(start, bytes) };
        }
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        if let Some(start) = self.range(0, self.bytes) {
            // SAFETY: mapped by `new` with this size. No address in it is in use any more.
            unsafe { system::unmap(start, self.bytes) };
        }
    }
}

/// Fills host memory in a mapping of this module.
pub(super) fn fill(at: usize, bytes: usize, value: u8) {
    // SAFETY: callers pass ranges inside a live mapping, and hold the driver's lock.
    unsafe { with_exposed_provenance_mut::<u8>(at).write_bytes(value, bytes) };
}

/// Returns the bytes of host memory in a mapping of this module.
///
/// # Safety
/// The range must be live, readable and unchanged while the result is used.
pub(super) unsafe fn bytes_at<'a>(at: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees that the range is live, readable and unchanged during `'a`.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes) }
}
