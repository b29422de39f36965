//! Host memory shared with other processes.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use super::refused::{ReleaseKind, release, retry};
use crate::system::{self, Backing, HUGE, SharedFile};
use crate::{Driver, DriverError, HostFlags, OsHandle, Result, racy};

/// Host memory that can be given to other processes ([`SharedHostMemory::export`]). The memory is
/// page-locked if a driver was passed. The memory lives until no process has it open or mapped.
///
/// Other processes may write to the memory at any time, so there are no references to its bytes.
/// Bytes are read and written by copies, which are atomic per byte.
///
/// The size is never a multiple of 2 MiB, and the size of simulated device memory always is. The
/// simulator accesses the two kinds of memory in different ways, so an import refuses a file of the
/// wrong kind by its size.
#[derive(Debug)]
pub struct SharedHostMemory {
    /// The mapping; `None` in `drop`.
    pages: Option<SharedPages>,
    file: SharedFile,
    /// The driver and device for which the memory is page-locked.
    driver: Option<(Arc<dyn Driver>, usize)>,
}

/// A mapping of the file, unmapped on drop.
#[derive(Debug)]
struct SharedPages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are plain bytes. This process accesses them atomically, or the caller of an
// `unsafe` method orders the accesses.
unsafe impl Send for SharedPages {}
// SAFETY: `&SharedPages` gives out no references to the bytes, only their address.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    fn map(file: &SharedFile, bytes: usize) -> std::io::Result<Self> {
        let pages = Self { start: system::map(bytes, Backing::Inaccessible)?, bytes };
        // SAFETY: the range is a whole mapping by `system::map`, and no code uses it yet.
        unsafe { system::map_file(pages.start, bytes, &file.file, 0) }?;
        Ok(pages)
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` and not unmapped before. No address in it is in use any more.
        unsafe { system::unmap(self.start, self.bytes) };
    }
}

impl SharedHostMemory {
    /// Allocates zeroed memory of at least `bytes` bytes, in whole pages. The memory is page-locked
    /// for the driver's device if `driver` is given.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the size overflows, or if the system does not support
    ///   shared memory or is out of memory.
    /// - Errors of the [driver call](Driver#errors) that page-locks the memory.
    #[track_caller]
    pub fn new(driver: Option<(&Arc<dyn Driver>, usize)>, bytes: usize) -> Result<Self> {
        let page = system::page_size();
        let whole = system::in_pages(bytes)
            .and_then(|b| if b.is_multiple_of(HUGE) { b.checked_add(page) } else { Some(b) })
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let whole = whole.ok_or_else(|| refused(bytes, "the size overflows"))?;
        let failed = |error: std::io::Error| refused(bytes, &error.to_string());
        let file = SharedFile::create(whole).map_err(failed)?;
        let pages = SharedPages::map(&file, whole).map_err(failed)?;
        // SAFETY: the range is a new mapping of a new file of zeros, and no code uses it yet.
        unsafe { system::populate(pages.start, whole) }.map_err(failed)?;
        Self::locked(driver, file, pages)
    }

    /// Opens memory of `bytes` bytes that another process exported. `bytes` is the size that
    /// [`SharedHostMemory::bytes`] returned there.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the handle does not refer to exported host memory, if
    ///   `bytes` is not the size of that memory, or if the system cannot map the memory.
    /// - Errors of the [driver call](Driver#errors) that page-locks the memory.
    #[track_caller]
    pub fn import(
        driver: Option<(&Arc<dyn Driver>, usize)>,
        bytes: usize,
        handle: OsHandle,
    ) -> Result<Self> {
        if system::in_pages(bytes) != Some(bytes) || bytes.is_multiple_of(HUGE) {
            return Err(refused(bytes, "shared memory of this size is never exported"));
        }
        let failed = |error: std::io::Error| refused(bytes, &error.to_string());
        let file = SharedFile::import(handle, bytes).map_err(failed)?;
        let pages = SharedPages::map(&file, bytes).map_err(failed)?;
        Self::locked(driver, file, pages)
    }

    #[track_caller]
    fn locked(
        driver: Option<(&Arc<dyn Driver>, usize)>,
        file: SharedFile,
        pages: SharedPages,
    ) -> Result<Self> {
        let location = Location::caller();
        if let Some((driver, device)) = driver {
            retry(driver, ReleaseKind::RegisteredMemory);
            let (start, bytes) = (pages.start, pages.bytes);
            // SAFETY: the pages were just mapped and outlive the registration.
            unsafe { driver.host_register(device, start, bytes, HostFlags::default()) }
                .map_err(|e| e.at(location))?;
        }
        let driver = driver.map(|(driver, device)| (Arc::clone(driver), device));
        Ok(Self { pages: Some(pages), file, driver })
    }

    /// Returns a handle with which other processes open the memory, once or several times.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the system cannot create a handle.
    pub fn export(&self) -> Result<OsHandle> {
        self.file.export().map_err(|error| refused(self.bytes(), &error.to_string()))
    }

    /// Returns the size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.bytes)
    }

    /// Returns `true` if the memory is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.driver.is_some()
    }

    /// Returns the address of the first byte, for copies from and to devices. Do not make a
    /// reference from it.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.start)
    }

    /// Returns the address of the range of `bytes` bytes at `offset`.
    fn range(&self, offset: usize, bytes: usize) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: the range was just checked to lie inside the mapping.
            Some(end) if end <= self.bytes() => Ok(unsafe { self.as_ptr().add(offset) }.as_ptr()),
            _ => Err(refused(
                bytes,
                &format!("the range from byte {offset} on does not lie inside the memory"),
            )),
        }
    }

    /// Copies bytes out of the memory. The result may contain parts of concurrent writes by other
    /// processes.
    ///
    /// # Safety
    /// Devices of this process do not write to these bytes during the call.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the range does not lie inside the memory.
    pub unsafe fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = self.range(offset, out.len())?;
        // SAFETY: the range lies inside the mapping. No references to the mapping exist, so `out`
        // does not overlap it. This process accesses the mapping only by such copies. The caller
        // guarantees that no device writes to these bytes.
        unsafe { racy::copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes into the memory. If another process reads these bytes at the same time, it may
    /// read a mixture of old and new bytes. If it writes them, the result may be a mixture of both
    /// writes.
    ///
    /// # Safety
    /// Neither other threads nor devices of this process access these bytes during the call.
    ///
    /// # Errors
    /// The same as [`SharedHostMemory::read`].
    pub unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.range(offset, bytes.len())?;
        // `racy::copy` forms atomics on both ranges, which a shared borrow does not permit.
        let mut own = bytes.to_vec();
        // SAFETY: `own` is a vector of this function, and the other range lies inside the mapping,
        // to which no references exist. The caller guarantees that no other thread and no device
        // accesses these bytes.
        unsafe { racy::copy(own.as_mut_ptr(), to, own.len()) };
        Ok(())
    }
}

impl Drop for SharedHostMemory {
    fn drop(&mut self) {
        let (Some(pages), Some((driver, device))) = (self.pages.take(), self.driver.take()) else {
            return;
        };
        let bytes = pages.bytes;
        // Keep the pages mapped until the driver has unregistered them.
        let unregister = move |driver: &dyn Driver| {
            let pages = &pages;
            // SAFETY: registered with this driver and not unregistered before.
            unsafe { driver.host_unregister(device, pages.start) }
        };
        release(&driver, ReleaseKind::RegisteredMemory, bytes, unregister);
    }
}

fn refused(bytes: usize, reason: &str) -> DriverError {
    let reason = format!("{bytes} bytes of host memory for several processes: {reason}");
    DriverError::InvalidArgument { call: "SharedHostMemory", reason }
}
