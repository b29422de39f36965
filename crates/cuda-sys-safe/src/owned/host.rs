//! Host memory, page-locked or not.

use std::alloc::Layout;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pages::MappedPages;
use super::refused::{ReleaseKind, accepted, release, retry};
use crate::{Driver, DriverError, HostFlags, Result};

/// Alignment of pageable host memory: a cache line, and as much as the widest vector load needs.
const ALIGNMENT: usize = 64;

/// Size in bytes from which pageable memory is mapped. The standard library would zero the memory
/// on one thread at this alignment.
const MAPPED: usize = 1 << 20;

/// Size in bytes below which pageable memory is small.
const SMALL: usize = 1024;

#[derive(Debug)]
enum HostMemoryOrigin {
    Pageable {
        /// Start of the allocation, which is less aligned than the buffer in it.
        start: NonNull<u8>,
        layout: Layout,
    },
    /// Large pageable memory.
    Mapped {
        _pages: MappedPages,
    },
    Pinned {
        driver: Arc<dyn Driver>,
        device: usize,
    },
    Registered {
        driver: Arc<dyn Driver>,
        device: usize,
        pages: MappedPages,
    },
    /// Memory that was released.
    Released,
}

/// A host buffer, released on drop. Its bytes are always initialised.
///
/// `HostMemory` gives out a pointer, never a slice. The owner of the memory must order all accesses
/// to the bytes.
#[derive(Debug)]
pub struct HostMemory {
    ptr: NonNull<u8>,
    bytes: usize,
    origin: HostMemoryOrigin,
}

// SAFETY: the buffer holds plain bytes, and its methods give out only their addresses (`as_ptr`, `ptr_at`).
// Its users order their accesses.
unsafe impl Send for HostMemory {}
// SAFETY: `&HostMemory` gives out no references to the bytes, only their address.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates zeroed pageable memory, aligned to 64 bytes. The system provides the pages of a
    /// large block when they are first written, as huge pages where possible. Threads that write
    /// the block together share this work.
    ///
    /// # Errors
    /// [`DriverError::HostMemory`] if the size overflows or the system is out of memory.
    pub fn pageable(bytes: usize) -> Result<Self> {
        // If the system refuses another mapping, the heap may still have memory.
        if bytes >= MAPPED
            && let Ok(pages) = MappedPages::map(bytes)
        {
            return Ok(Self {
                ptr: pages.start(),
                bytes,
                origin: HostMemoryOrigin::Mapped { _pages: pages },
            });
        }
        let (start, layout) = zeroed(bytes)?;
        // SAFETY: the allocation is larger than the buffer by the largest such distance.
        let ptr = unsafe { start.add(start.align_offset(ALIGNMENT)) };
        Ok(Self { ptr, bytes, origin: HostMemoryOrigin::Pageable { start, layout } })
    }

    /// Allocates page-locked memory from the driver (`cuMemHostAlloc`).
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn pinned(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::PinnedMemory);
        let ptr = driver
            .host_alloc(device, bytes.max(1), HostFlags::default())
            .map_err(|e| e.at(location))?;
        Ok(Self {
            ptr,
            bytes,
            origin: HostMemoryOrigin::Pinned { driver: Arc::clone(driver), device },
        })
    }

    /// Allocates zeroed memory and page-locks it (`cuMemHostRegister`). A forked child finds zeros
    /// at its address, or a copy if the system cannot provide zeros.
    ///
    /// # Errors
    /// [`DriverError::HostMemory`] if the system cannot provide the memory. Errors of the [driver
    /// call](Driver#errors).
    #[track_caller]
    pub fn registered(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        Self::registered_by(driver, device, bytes, 1)
    }

    /// Allocates memory as [`registered`](Self::registered) does, with the system providing the
    /// pages on `threads` threads, as huge pages where possible. Most of the time of page-locking
    /// is spent on providing the pages.
    ///
    /// # Errors
    /// The same as [`registered`](Self::registered).
    #[track_caller]
    pub fn registered_by(
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
        threads: usize,
    ) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::RegisteredMemory);
        let pages = MappedPages::map_for_devices(bytes)
            .and_then(|mut pages| pages.populate(threads).map(|()| pages))
            .map_err(|error| refused(bytes, &error.to_string()))?;
        // SAFETY: the pages were just mapped and outlive the registration.
        unsafe { driver.host_register(device, pages.start(), pages.bytes(), HostFlags::default()) }
            .map_err(|e| e.at(location))?;
        let (driver, ptr) = (Arc::clone(driver), pages.start());
        Ok(Self { ptr, bytes, origin: HostMemoryOrigin::Registered { driver, device, pages } })
    }

    /// Returns the address of the first byte. The caller must order all accesses to the bytes.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Returns the address of the byte at `offset`, or `None` if `offset` is greater than the size.
    /// The end itself has an address.
    #[must_use]
    pub fn ptr_at(&self, offset: usize) -> Option<NonNull<u8>> {
        // SAFETY: the offset stays within the allocation.
        (offset <= self.bytes).then(|| unsafe { self.ptr.add(offset) })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns `true` if the memory is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        !matches!(self.origin, HostMemoryOrigin::Pageable { .. } | HostMemoryOrigin::Mapped { .. })
    }

    /// Releases the memory now and reports a refusal. Dropping the memory releases it, too, but a
    /// release that the driver refuses is then kept in [`Refused`](super::Refused).
    ///
    /// # Errors
    /// The unchanged memory and the driver's error, if the driver refuses the release.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let released = match &self.origin {
            HostMemoryOrigin::Pageable { .. }
            | HostMemoryOrigin::Mapped { .. }
            | HostMemoryOrigin::Released => return Ok(()),
            HostMemoryOrigin::Pinned { driver, device } => {
                // SAFETY: allocated by this driver and not freed before. `drop` does not free it
                // again after a success.
                accepted(unsafe { driver.host_free(*device, self.ptr) })
            }
            HostMemoryOrigin::Registered { driver, device, .. } => {
                // SAFETY: registered with this driver and not unregistered before. `drop` does not
                // unregister it again after a success.
                accepted(unsafe { driver.host_unregister(*device, self.ptr) })
            }
        };
        match released {
            // Dropping the old origin unmaps registered pages.
            Ok(()) => self.origin = HostMemoryOrigin::Released,
            Err(error) => return Err(Box::new((self, error))),
        }
        Ok(())
    }
}

fn refused(bytes: usize, reason: &str) -> DriverError {
    DriverError::HostMemory { bytes, reason: reason.to_owned() }
}

/// Allocates zeroed memory with room for an aligned buffer. The heap is several times slower if it has to align the
/// memory itself.
fn zeroed(bytes: usize) -> Result<(NonNull<u8>, Layout)> {
    let layout =
        bytes.checked_add(ALIGNMENT).and_then(|size| Layout::array::<u128>(size.div_ceil(16)).ok());
    let layout = layout.ok_or_else(|| refused(bytes, "the size overflows the address space"))?;
    // SAFETY: the layout's size is not zero.
    let start = unsafe {
        if bytes < SMALL {
            // The heap's cache of the thread serves `alloc`, but not `alloc_zeroed`, into which the compiler would turn
            // an allocation with zeroing.
            std::hint::black_box(std::alloc::alloc(layout))
        } else {
            std::alloc::alloc_zeroed(layout)
        }
    };
    let start = NonNull::new(start).ok_or_else(|| refused(bytes, "the system is out of memory"))?;
    if bytes < SMALL {
        // SAFETY: the memory was just allocated with this size.
        unsafe { start.write_bytes(0, layout.size()) };
    }
    Ok((start, layout))
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        /// Address of memory that a refused release keeps.
        struct Address(NonNull<u8>);
        // SAFETY: only the release uses the address, and the release is the sole owner of the
        // memory.
        unsafe impl Send for Address {}

        let address = Address(self.ptr);
        match std::mem::replace(&mut self.origin, HostMemoryOrigin::Released) {
            // SAFETY: allocated with this layout and not freed before.
            HostMemoryOrigin::Pageable { start, layout } => unsafe {
                std::alloc::dealloc(start.as_ptr(), layout);
            },
            HostMemoryOrigin::Pinned { driver, device } => {
                let free = move |driver: &dyn Driver| {
                    let Address(ptr) = &address;
                    // SAFETY: allocated by this driver and not freed before.
                    unsafe { driver.host_free(device, *ptr) }
                };
                release(&driver, ReleaseKind::PinnedMemory, self.bytes, free);
            }
            HostMemoryOrigin::Registered { driver, device, pages } => {
                let bytes = pages.bytes();
                // Keep the pages mapped until the driver has unregistered them. Otherwise a new
                // mapping at the same addresses would count as registered.
                let unregister = move |driver: &dyn Driver| {
                    // SAFETY: registered with this driver and not unregistered before.
                    unsafe { driver.host_unregister(device, pages.start()) }
                };
                release(&driver, ReleaseKind::RegisteredMemory, bytes, unregister);
            }
            // Dropping the origin unmaps the pages.
            HostMemoryOrigin::Mapped { .. } | HostMemoryOrigin::Released => {}
        }
    }
}
