//! Virtual memory: address ranges, physical memory, and mappings of one in the other.

use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, accepted, release, retry};
use crate::{DevicePtr, Driver, DriverError, MemAccess, OsHandle, PhysicalHandle, Result};

/// A range of device addresses without memory behind it, given back once neither it nor a mapping
/// inside it is left. Clones share it.
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
    /// Reserves `bytes` bytes of addresses, a multiple of [`Driver::mem_granularity`].
    ///
    /// # Errors
    /// The driver's own.
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

    /// The device it was reserved for.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// Its first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.0.ptr
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The address of `bytes` bytes at `offset`, mapped or not.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] when they do not lie inside.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        inside("Reservation::range", offset, bytes, self.0.bytes)?;
        // SAFETY: inside the reservation that `self` keeps, as just checked.
        Ok(unsafe { self.0.ptr.offset(offset as i64) })
    }

    /// Maps `bytes` bytes of `memory`, from `memory_offset` on, at `offset`. All three are
    /// multiples of [`Driver::mem_granularity`]. Nothing may use the mapping before
    /// [`Mapping::set_access`].
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] when either range does not lie inside, or the memory is
    /// another driver's; the driver's own, for addresses that are mapped already among others.
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
        // Those may be at these addresses.
        retry(driver, ReleaseKind::Mapping);
        if !Arc::ptr_eq(driver, &memory.0.driver) {
            let reason = "reservation and memory belong to different drivers".to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        inside(CALL, offset, bytes, self.0.bytes)?;
        inside(CALL, memory_offset, bytes, memory.0.bytes)?;
        // SAFETY: inside the reservation, as just checked.
        let ptr = unsafe { self.0.ptr.offset(offset as i64) };
        // SAFETY: both ranges lie inside, as just checked, and the result keeps both alive.
        unsafe { driver.mem_map(ptr, bytes, memory_offset, memory.0.handle) }
            .map_err(|e| e.at(location))?;
        let (reservation, memory) = (self.clone(), memory.clone());
        Ok(Mapping { reservation, memory, offset, memory_offset, ptr, bytes, released: false })
    }

    /// Gives the addresses back now, if no clone and no mapping is left. Dropping it does too, but
    /// what the driver refuses then is out of reach.
    ///
    /// # Errors
    /// The reservation, as it was, and why the driver refused.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let Some(range) = Arc::get_mut(&mut self.0) else { return Ok(()) };
        // SAFETY: as in `drop`, which does nothing once this succeeded.
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
        // SAFETY: reserved by this driver and not freed before; every mapping held an `Arc` of
        // this until it was unmapped, so none is left.
        let free = move |driver: &dyn Driver| unsafe { driver.address_free(device, ptr, bytes) };
        release(&self.driver, ReleaseKind::Reservation, bytes, free);
    }
}

/// Physical memory of one device, given back once neither it nor a mapping of it is left. Clones
/// share it.
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
    /// Takes `bytes` bytes of the device's memory, a multiple of [`Driver::mem_granularity`].
    ///
    /// # Errors
    /// The driver's own, out of memory first among them.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::Mapping);
        retry(driver, ReleaseKind::PhysicalMemory);
        let handle = driver.mem_create(device, bytes).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Physical { driver, handle, bytes, released: false })))
    }

    /// As [`PhysicalMemory::new`], of memory that [`export`](Self::export) can give to other
    /// processes.
    ///
    /// # Errors
    /// The driver's own: out of memory, or that it cannot share memory.
    #[track_caller]
    pub fn shareable(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::Mapping);
        retry(driver, ReleaseKind::PhysicalMemory);
        let handle = driver.mem_create_shareable(device, bytes).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Physical { driver, handle, bytes, released: false })))
    }

    /// What another process opens it with, once or more often. The memory lives until nobody has it
    /// open, mapped or on its way, also if this process is killed.
    ///
    /// # Errors
    /// The driver's own: memory that is not [`shareable`](Self::shareable).
    #[track_caller]
    pub fn export(&self) -> Result<OsHandle> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.mem_export(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Memory that another process exported. Others may write to it at any time.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] unless the size is a positive multiple of
    /// [`Driver::mem_granularity`]; the driver's own: it is no such memory of this device. That it
    /// has less than `bytes` bytes the real driver says when it is mapped.
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

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Gives the memory back now, if no clone and no mapping is left. Dropping it does too, but what
    /// the driver refuses then is out of reach.
    ///
    /// # Errors
    /// The memory, as it was, and why the driver refused.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let Some(physical) = Arc::get_mut(&mut self.0) else { return Ok(()) };
        // SAFETY: as in `drop`, which does nothing once this succeeded.
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
        // SAFETY: made by this driver and not released before.
        let give_back = move |driver: &dyn Driver| unsafe { driver.mem_release(handle) };
        release(&self.driver, ReleaseKind::PhysicalMemory, self.bytes, give_back);
    }
}

/// Physical memory mapped at device addresses, unmapped on drop. It keeps both alive; the same
/// memory may be mapped more than once.
///
/// Unmapping does not wait: whoever enqueued work that uses the addresses waits for it first.
#[derive(Debug)]
pub struct Mapping {
    // Dropped in this order, after `drop` below has unmapped.
    memory: PhysicalMemory,
    reservation: Reservation,
    offset: usize,
    memory_offset: usize,
    ptr: DevicePtr,
    bytes: usize,
    released: bool,
}

impl Mapping {
    /// Where it begins in its reservation, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Where it begins in its memory, in bytes.
    #[must_use]
    pub fn memory_offset(&self) -> usize {
        self.memory_offset
    }

    /// Its first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The addresses it lies in.
    #[must_use]
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// The memory behind it.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Says which devices may do what with it.
    ///
    /// # Errors
    /// The driver's own: a device that cannot reach the memory.
    #[track_caller]
    pub fn set_access(&self, access: &[(usize, MemAccess)]) -> Result<()> {
        let location = Location::caller();
        let range = &self.reservation.0;
        // SAFETY: the whole of a mapping that is alive.
        unsafe { range.driver.mem_set_access(range.device, self.ptr, self.bytes, access) }
            .map_err(|e| e.at(location))
    }

    /// The address of `bytes` bytes at `offset` from its own first.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] when they do not lie inside.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        inside("Mapping::range", offset, bytes, self.bytes)?;
        // SAFETY: inside the mapping, as just checked.
        Ok(unsafe { self.ptr.offset(offset as i64) })
    }

    /// Unmaps it now. Dropping it does too, but what the driver refuses then is out of reach.
    ///
    /// # Errors
    /// The mapping, as it was, and why the driver refused.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        let range = &self.reservation.0;
        // SAFETY: as in `drop`, which does nothing once this succeeded.
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
        // Addresses and memory stay until the driver has unmapped them.
        let (memory, reservation) = (self.memory.clone(), self.reservation.clone());
        let (device, ptr, bytes) = (reservation.0.device, self.ptr, self.bytes);
        let unmap = move |driver: &dyn Driver| {
            let _kept = (&memory, &reservation);
            // SAFETY: mapped by this driver, as one piece, and not unmapped before.
            unsafe { driver.mem_unmap(device, ptr, bytes) }
        };
        release(&self.reservation.0.driver, ReleaseKind::Mapping, bytes, unmap);
    }
}

fn inside(call: &'static str, offset: usize, bytes: usize, whole: usize) -> Result<()> {
    if offset.checked_add(bytes).is_some_and(|end| end <= whole) {
        return Ok(());
    }
    let reason = format!("{bytes} bytes at offset {offset} do not lie inside {whole} bytes");
    Err(DriverError::InvalidArgument { call, reason })
}
