//! Host memory that other processes may have too.

use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use super::refused::{ReleaseKind, release, retry};
use crate::system::{self, Behind, HUGE, SharedFile};
use crate::{Driver, DriverError, HostFlags, OsHandle, Result, racy};

/// Host memory that [`SharedHostMemory::export`] gives to other processes, page-locked if it was made
/// for a driver. It lives until nobody has it open or mapped.
///
/// Others may write to it at any time, so no reference to its bytes can be had: they are read and
/// written by copies, each byte whole.
///
/// Its size is never a multiple of 2 MiB, as that of a simulated device's memory always is: the file
/// of one cannot be passed off as the other's, which this process's simulator touches otherwise.
#[derive(Debug)]
pub struct SharedHostMemory {
    /// Nothing once dropped.
    pages: Option<Pages>,
    file: SharedFile,
    /// Whom it is page-locked for.
    driver: Option<(Arc<dyn Driver>, usize)>,
}

/// A mapping of the file, unmapped on drop.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain bytes; this process touches them by atomics, and who orders other accesses says so.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(file: &SharedFile, bytes: usize) -> std::io::Result<Self> {
        let pages = Self { start: system::map(bytes, Behind::Nothing)?, bytes };
        // SAFETY: all of a mapping of our own, in whole pages, that nobody uses yet.
        unsafe { system::place(pages.start, bytes, &file.file, 0) }?;
        Ok(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` and not unmapped before; nobody uses it any more.
        unsafe { system::unmap(self.start, self.bytes) };
    }
}

impl SharedHostMemory {
    /// Zeroed memory in whole pages, page-locked for a driver's device if there is one.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] where the system has no such memory, or not so much of it; the
    /// driver's own.
    #[track_caller]
    pub fn new(driver: Option<(&Arc<dyn Driver>, usize)>, bytes: usize) -> Result<Self> {
        let page = system::page_size();
        let whole = system::in_pages(bytes)
            .and_then(|b| if b.is_multiple_of(HUGE) { b.checked_add(page) } else { Some(b) })
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let whole = whole.ok_or_else(|| refused(bytes, "the size overflows"))?;
        let failed = |error: std::io::Error| refused(bytes, &error.to_string());
        let file = SharedFile::create(whole).map_err(failed)?;
        let pages = Pages::map(&file, whole).map_err(failed)?;
        // SAFETY: a new mapping of a new file, all zeros, that nobody uses yet.
        unsafe { system::populate(pages.start, whole) }.map_err(failed)?;
        Self::locked(driver, file, pages)
    }

    /// Memory of so many bytes that another process exported.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if it is no such memory; the driver's own.
    #[track_caller]
    pub fn import(
        driver: Option<(&Arc<dyn Driver>, usize)>,
        bytes: usize,
        handle: OsHandle,
    ) -> Result<Self> {
        if system::in_pages(bytes) != Some(bytes) || bytes.is_multiple_of(HUGE) {
            return Err(refused(bytes, "none such has this size"));
        }
        let failed = |error: std::io::Error| refused(bytes, &error.to_string());
        let file = SharedFile::import(handle, bytes).map_err(failed)?;
        let pages = Pages::map(&file, bytes).map_err(failed)?;
        Self::locked(driver, file, pages)
    }

    #[track_caller]
    fn locked(
        driver: Option<(&Arc<dyn Driver>, usize)>,
        file: SharedFile,
        pages: Pages,
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

    /// What another process opens it with, once or more often.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] with the system's reason.
    pub fn export(&self) -> Result<OsHandle> {
        self.file.export().map_err(|error| refused(self.bytes(), &error.to_string()))
    }

    /// Its size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.bytes)
    }

    /// Whether it is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.driver.is_some()
    }

    /// Its first byte, for copies from and to devices. No reference may be made of it.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.start)
    }

    /// The byte at an offset with so many after it.
    fn range(&self, offset: usize, bytes: usize) -> Result<*mut u8> {
        match offset.checked_add(bytes) {
            // SAFETY: inside the mapping.
            Some(end) if end <= self.bytes() => Ok(unsafe { self.as_ptr().add(offset) }.as_ptr()),
            _ => Err(refused(bytes, &format!("from byte {offset} on they lie outside"))),
        }
    }

    /// Copies bytes out of it. What others write meanwhile may be there in part.
    ///
    /// # Safety
    /// Devices of this process do not write to these bytes meanwhile.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if they lie outside.
    pub unsafe fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let from = self.range(offset, out.len())?;
        // SAFETY: inside the mapping, of which nobody has a reference, so that `out` is elsewhere; this
        // process touches it by such copies, and by its devices, which the caller keeps from it.
        unsafe { racy::copy(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes into it. What others read or write there meanwhile is mixed with them.
    ///
    /// # Safety
    /// Neither other threads nor devices of this process touch these bytes meanwhile.
    ///
    /// # Errors
    /// As [`SharedHostMemory::read`].
    pub unsafe fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let to = self.range(offset, bytes.len())?;
        // Atomics may not be made of what is borrowed for reading.
        let mut own = bytes.to_vec();
        // SAFETY: a vector, and bytes inside the mapping; as above.
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
        // The pages stay mapped until the driver has let go of them.
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
