//! Device memory allocated by the driver.

use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, accepted, release, retry};
use crate::{DevicePtr, Driver, DriverError, IpcMemHandle, Result};

/// A `cuMemAlloc` allocation, freed on drop. Freeing waits for the device, as in CUDA.
#[derive(Debug)]
pub struct DeviceMemory {
    driver: Arc<dyn Driver>,
    device: usize,
    ptr: DevicePtr,
    bytes: usize,
    released: bool,
}

impl DeviceMemory {
    /// Allocates `bytes` bytes on `device`.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as
    /// [`CudaCode::OUT_OF_MEMORY`](crate::CudaCode::OUT_OF_MEMORY).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::DeviceMemory);
        let ptr = driver.mem_alloc(device, bytes).map_err(|e| e.at(location))?;
        Ok(Self { driver: Arc::clone(driver), device, ptr, bytes, released: false })
    }

    /// Returns the driver of the memory's device.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the index of the memory's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the range of `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if the range does not lie inside the memory.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(DriverError::InvalidArgument {
                call: "DeviceMemory::range",
                reason: format!(
                    "{bytes} bytes at offset {offset} do not lie inside the memory of {} bytes",
                    self.bytes
                ),
            });
        }
        // SAFETY: the offset was just checked to lie inside the allocation, which `self` owns.
        Ok(unsafe { self.ptr.offset(offset as i64) })
    }

    /// Returns a handle with which another process opens the memory
    /// ([`SharedMemory::open`](super::SharedMemory::open)).
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn ipc_handle(&self) -> Result<IpcMemHandle> {
        let location = Location::caller();
        // SAFETY: the address is the start of a live allocation.
        unsafe { self.driver.ipc_mem_handle(self.device, self.ptr) }.map_err(|e| e.at(location))
    }

    /// Frees the memory now and reports a refusal. Dropping the memory frees it, too, but a release
    /// that the driver refuses is then kept in [`Refused`](super::Refused).
    ///
    /// # Errors
    /// The unchanged memory and the driver's error, if the driver refuses the release.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        // SAFETY: allocated by this driver and not freed before. `drop` does not free it again
        // after a success.
        match accepted(unsafe { self.driver.mem_free(self.device, self.ptr) }) {
            Ok(()) => self.released = true,
            Err(error) => return Err(Box::new((self, error))),
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        let (device, ptr) = (self.device, self.ptr);
        // SAFETY: allocated by this driver and not freed before. `mem_free` waits for the memory's
        // users.
        let free = move |driver: &dyn Driver| unsafe { driver.mem_free(device, ptr) };
        release(&self.driver, ReleaseKind::DeviceMemory, self.bytes, free);
    }
}
