//! Virtual memory: address ranges, physical memory, and mappings.

use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, accepted, release, retry};
use crate::{DevicePtr, Driver, DriverError, MemAccess, OsHandle, PhysicalHandle, Result};

/// A range of reserved device addresses. Clones share the reservation. The addresses are freed when
/// the last clone and the last mapping in the range are dropped.
///
/// ```no_run
/// use warpline_cuda_sys_safe::owned::{PhysicalMemory, Reservation};
/// use warpline_cuda_sys_safe::{MemAccess, real};
///
/// let driver = real::load()?;
/// let page = driver.mem_granularity(0)?;
/// let reservation = Reservation::new(&driver, 0, 16 * page)?;
/// let memory = PhysicalMemory::new(&driver, 0, page)?;
/// let mapping = reservation.map(0, &memory, 0, page)?;
/// mapping.set_access(&[(0, MemAccess::ReadWrite)])?;
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Range>);

#[derive(Debug)]
struct Range {
    driver: Arc<dyn Driver>,
    device: usize,
    ptr: DevicePtr,
    bytes: usize,
    released: bool,
}

impl Reservation {
    /// Reserves `bytes` bytes of addresses. `bytes` must be a multiple of
    /// [`Driver::mem_granularity`].
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::Reservation);
        let ptr = driver.address_reserve(device, bytes).map_err(|e| e.at(location))?;
        Ok(Self(Arc::new(Range {
            driver: Arc::clone(driver),
            device,
            ptr,
            bytes,
            released: false,
        })))
    }

    /// Returns the index of the device for which the addresses are reserved.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// Returns the first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.0.ptr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns the address of the range of `bytes` bytes at `offset`, mapped or not.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the range is out of bounds.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        inside("Reservation::range", offset, bytes, self.0.bytes)?;
        // SAFETY: the offset was just checked to lie inside the reservation, which `self` keeps
        // alive.
        Ok(unsafe { self.0.ptr.offset(offset as i64) })
    }

    /// Maps `bytes` bytes of `memory`, from `memory_offset` on, at `offset`. All three numbers must
    /// be multiples of [`Driver::mem_granularity`]. Nothing may access the mapping before
    /// [`Mapping::set_access`].
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if a range does not lie inside the reservation or the
    ///   memory, or if reservation and memory belong to different drivers.
    /// - Errors of the [driver call](Driver#errors), such as for addresses that are already mapped.
    #[track_caller]
    pub fn map(
        &self,
        offset: usize,
        memory: &PhysicalMemory,
        memory_offset: usize,
        bytes: usize,
    ) -> Result<Mapping> {
        const CALL: &str = "Reservation::map";
        let location = Location::caller();
        let driver = &self.0.driver;
        // A refused unmapping may still occupy these addresses.
        retry(driver, ReleaseKind::Mapping);
        if !Arc::ptr_eq(driver, &memory.0.driver) {
            let reason = "reservation and memory belong to different drivers".to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        inside(CALL, offset, bytes, self.0.bytes)?;
        inside(CALL, memory_offset, bytes, memory.0.bytes)?;
        // SAFETY: the offset was just checked to lie inside the reservation.
        let ptr = unsafe { self.0.ptr.offset(offset as i64) };
        // SAFETY: both ranges were just checked, and the result keeps reservation and memory alive.
        unsafe { driver.mem_map(ptr, bytes, memory_offset, memory.0.handle) }
            .map_err(|e| e.at(location))?;
        let (reservation, memory) = (self.clone(), memory.clone());
        Ok(Mapping { reservation, memory, offset, memory_offset, ptr, bytes, released: false })
    }

    /// Frees the addresses now and reports a refusal. Does nothing if a clone or a mapping is left.
    /// Dropping the reservation frees the addresses, too, but a release that the driver refuses is
    /// then kept in [`Refused`](super::Refused).
    ///
    /// # Errors
    /// The unchanged reservation and the driver's error, if the driver refuses the release.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let Some(range) = Arc::get_mut(&mut self.0) else { return Ok(()) };
        // SAFETY: reserved by this driver and not freed before. `drop` does not free it again after
        // a success.
        match accepted(unsafe { range.driver.address_free(range.device, range.ptr, range.bytes) }) {
            Ok(()) => range.released = true,
            Err(error) => return Err(Box::new((self, error))),
        }
        Ok(())
    }
}

impl PartialEq for Reservation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Reservation {}

impl Drop for Range {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let (device, ptr, bytes) = (self.device, self.ptr, self.bytes);
        // SAFETY: reserved by this driver and not freed before. Every mapping holds an `Arc` of the
        // reservation until it is unmapped, so no mapping is left.
        let free = move |driver: &dyn Driver| unsafe { driver.address_free(device, ptr, bytes) };
        release(&self.driver, ReleaseKind::Reservation, bytes, free);
    }
}

/// Physical memory of one device. Clones share the memory. It is released when the last clone and
/// the last mapping of the memory are dropped.
#[derive(Clone, Debug)]
pub struct PhysicalMemory(Arc<Physical>);

#[derive(Debug)]
struct Physical {
    driver: Arc<dyn Driver>,
    handle: PhysicalHandle,
    bytes: usize,
    released: bool,
}

impl PhysicalMemory {
    /// Allocates `bytes` bytes of the device's memory. `bytes` must be a multiple of
    /// [`Driver::mem_granularity`].
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as
    /// [`CudaCode::OUT_OF_MEMORY`](crate::CudaCode::OUT_OF_MEMORY).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::Mapping);
        retry(driver, ReleaseKind::PhysicalMemory);
        let handle = driver.mem_create(device, bytes).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Physical { driver, handle, bytes, released: false })))
    }

    /// Allocates memory as [`PhysicalMemory::new`] does. [`export`](Self::export) can give this
    /// memory to other processes.
    ///
    /// # Errors
    /// Errors of [`Driver::mem_create_shareable`].
    #[track_caller]
    pub fn shareable(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::Mapping);
        retry(driver, ReleaseKind::PhysicalMemory);
        let handle = driver.mem_create_shareable(device, bytes).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Physical { driver, handle, bytes, released: false })))
    }

    /// Returns a handle with which other processes open the memory, once or several times. The
    /// memory lives until no process has it open or mapped and no handle is in transit, even if
    /// this process is killed.
    ///
    /// # Errors
    /// Errors of [`Driver::mem_export`], such as for memory that is not
    /// [`shareable`](Self::shareable).
    #[track_caller]
    pub fn export(&self) -> Result<OsHandle> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.mem_export(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Opens memory that another process exported. Other processes may write to the memory at any
    /// time.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `bytes` is not a positive multiple of
    ///   [`Driver::mem_granularity`].
    /// - Errors of [`Driver::mem_import`]. The real driver reports memory with fewer than `bytes`
    ///   bytes only when the memory is mapped.
    #[track_caller]
    pub fn import(
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
        handle: OsHandle,
    ) -> Result<Self> {
        let location = Location::caller();
        let unit = driver.mem_granularity(device).map_err(|e| e.at(location))?;
        if bytes == 0 || !bytes.is_multiple_of(unit.max(1)) {
            let reason = format!("{bytes} bytes are not a positive multiple of {unit}");
            return Err(DriverError::InvalidArgument { call: "PhysicalMemory::import", reason });
        }
        let handle = driver.mem_import(device, bytes, handle).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Physical { driver, handle, bytes, released: false })))
    }

    /// Returns the index of the memory's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Releases the memory now and reports a refusal. Does nothing if a clone or a mapping is left.
    /// Dropping the memory releases it, too, but a release that the driver refuses is then kept in
    /// [`Refused`](super::Refused).
    ///
    /// # Errors
    /// The unchanged memory and the driver's error, if the driver refuses the release.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let Some(physical) = Arc::get_mut(&mut self.0) else { return Ok(()) };
        // SAFETY: created by this driver and not released before. `drop` does not release it again
        // after a success.
        match accepted(unsafe { physical.driver.mem_release(physical.handle) }) {
            Ok(()) => physical.released = true,
            Err(error) => return Err(Box::new((self, error))),
        }
        Ok(())
    }
}

impl PartialEq for PhysicalMemory {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PhysicalMemory {}

impl Drop for Physical {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let handle = self.handle;
        // SAFETY: created by this driver and not released before.
        let give_back = move |driver: &dyn Driver| unsafe { driver.mem_release(handle) };
        release(&self.driver, ReleaseKind::PhysicalMemory, self.bytes, give_back);
    }
}

/// Physical memory mapped at device addresses, unmapped on drop. A mapping keeps its memory and its
/// reservation alive. The same memory may be mapped more than once.
///
/// Unmapping does not wait. Before you drop a mapping, wait for all work that uses its addresses.
#[derive(Debug)]
pub struct Mapping {
    // Memory and reservation are dropped after `drop` has unmapped the range.
    memory: PhysicalMemory,
    reservation: Reservation,
    offset: usize,
    memory_offset: usize,
    ptr: DevicePtr,
    bytes: usize,
    released: bool,
}

impl Mapping {
    /// Returns the offset of the mapping in its reservation, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the offset of the mapping in its memory, in bytes.
    #[must_use]
    pub fn memory_offset(&self) -> usize {
        self.memory_offset
    }

    /// Returns the first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the reservation that contains the mapping.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Returns the mapped memory.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Sets the access of devices to the mapping.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as for a device that cannot access the
    /// memory.
    #[track_caller]
    pub fn set_access(&self, access: &[(usize, MemAccess)]) -> Result<()> {
        let location = Location::caller();
        let range = &self.reservation.0;
        // SAFETY: the range is a whole mapping, which is alive.
        unsafe { range.driver.mem_set_access(range.device, self.ptr, self.bytes, access) }
            .map_err(|e| e.at(location))
    }

    /// Returns the address of the range of `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the range is out of bounds.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        inside("Mapping::range", offset, bytes, self.bytes)?;
        // SAFETY: the offset was just checked to lie inside the mapping.
        Ok(unsafe { self.ptr.offset(offset as i64) })
    }

    /// Unmaps the memory now and reports a refusal. Dropping the mapping unmaps it, too, but a
    /// release that the driver refuses is then kept in [`Refused`](super::Refused).
    ///
    /// # Errors
    /// The unchanged mapping and the driver's error, if the driver refuses the release.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let range = &self.reservation.0;
        // SAFETY: the range is a whole mapping of this driver, not unmapped before. `drop` does not
        // unmap it again after a success.
        match accepted(unsafe { range.driver.mem_unmap(range.device, self.ptr, self.bytes) }) {
            Ok(()) => self.released = true,
            Err(error) => return Err(Box::new((self, error))),
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // The closure keeps addresses and memory alive until the driver has unmapped them.
        let (memory, reservation) = (self.memory.clone(), self.reservation.clone());
        let (device, ptr, bytes) = (reservation.0.device, self.ptr, self.bytes);
        let unmap = move |driver: &dyn Driver| {
            let _kept = (&memory, &reservation);
            // SAFETY: the range is a whole mapping of this driver, not unmapped before.
            unsafe { driver.mem_unmap(device, ptr, bytes) }
        };
        release(&self.reservation.0.driver, ReleaseKind::Mapping, bytes, unmap);
    }
}

fn inside(call: &'static str, offset: usize, bytes: usize, whole: usize) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= whole) {
        return Ok(());
    }
    let reason =
        format!("{bytes} bytes at offset {offset} do not lie inside the range of {whole} bytes");
    Err(DriverError::InvalidArgument { call, reason })
}
