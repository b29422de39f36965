//! Host memory behind device memory: mapped from the system, spent only where touched.

use std::io;
use std::ptr::with_exposed_provenance_mut;

pub(super) const PAGE: usize = 4096;

/// A private mapping, unmapped on drop. Addresses are numbers with exposed provenance.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) base: usize,
    pub(super) bytes: usize,
}

pub(super) fn page_up(bytes: usize) -> usize {
    bytes.div_ceil(PAGE).saturating_mul(PAGE)
}

fn map(
    at: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> io::Result<usize> {
    // SAFETY: either the system chooses the place, or `at` lies in a reservation of ours.
    let base = unsafe {
        libc::mmap(with_exposed_provenance_mut(at), bytes, protection, flags, fd, offset)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base.expose_provenance())
}

const RESERVED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Mapping {
    /// Zeroed memory that nothing is set aside for.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        let bytes = page_up(bytes.max(1));
        Ok(Self { base: map(0, bytes, READ_WRITE, RESERVED, -1, 0)?, bytes })
    }

    /// Addresses that fault.
    pub(super) fn inaccessible(bytes: usize) -> io::Result<Self> {
        let bytes = page_up(bytes.max(1));
        Ok(Self { base: map(0, bytes, libc::PROT_NONE, RESERVED, -1, 0)?, bytes })
    }

    /// Puts part of a file at an offset.
    pub(super) fn place(
        &self,
        offset: usize,
        bytes: usize,
        file: &SparseFile,
        from: u64,
    ) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        map(self.base + offset, bytes, READ_WRITE, flags, file.fd, from as i64).map(|_| ())
    }

    /// Makes part of it fault again, and gives back its pages.
    pub(super) fn hide(&self, offset: usize, bytes: usize) {
        let flags = RESERVED | libc::MAP_FIXED;
        let _ = map(self.base + offset, bytes, libc::PROT_NONE, flags, -1, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; whoever held addresses in it is gone.
        unsafe { libc::munmap(with_exposed_provenance_mut(self.base), self.bytes) };
    }
}

/// One sparse file in memory that holds all physical memory of a driver, so that a piece can be
/// mapped at several addresses.
#[derive(Debug)]
pub(super) struct SparseFile {
    fd: i32,
    end: u64,
}

impl SparseFile {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: the name is a literal with a NUL.
        let fd = unsafe { libc::memfd_create(c"warpline-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { fd, end: 0 }) }
    }

    /// A fresh zeroed piece: its offset.
    pub(super) fn extend(&mut self, bytes: usize) -> io::Result<u64> {
        let offset = self.end;
        let end = offset + bytes as u64;
        // SAFETY: `fd` is ours and open.
        if unsafe { libc::ftruncate(self.fd, end as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.end = end;
        Ok(offset)
    }

    /// Gives back the pages of a piece.
    pub(super) fn punch(&self, offset: u64, bytes: usize) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: `fd` is ours and open.
        unsafe { libc::fallocate(self.fd, mode, offset as i64, bytes as i64) };
    }
}

impl Drop for SparseFile {
    fn drop(&mut self) {
        // SAFETY: `fd` is ours and open.
        unsafe { libc::close(self.fd) };
    }
}

/// Fills host memory at an address of one of our mappings.
pub(super) fn fill(at: usize, bytes: usize, value: u8) {
    // SAFETY: callers pass ranges inside a live mapping, under the driver's lock.
    unsafe { with_exposed_provenance_mut::<u8>(at).write_bytes(value, bytes) };
}

/// The bytes of host memory at an address of one of our mappings.
///
/// # Safety
/// The range must be live, readable and unchanged while the result is used.
pub(super) unsafe fn bytes_at<'a>(at: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes) }
}
