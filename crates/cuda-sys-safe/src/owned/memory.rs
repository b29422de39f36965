//! Device memory straight from the driver.

use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, accepted, release, retry};
use crate::{DevicePtr, Driver, DriverError, IpcMemHandle, Result};

/// One `cuMemAlloc` allocation, freed on drop. Freeing waits for the device, as CUDA does.
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
    /// The driver's own, out of memory first among them.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, bytes: usize) -> Result<Self> {
        let location = Location::caller();
        retry(driver, ReleaseKind::DeviceMemory);
        let ptr = driver.mem_alloc(device, bytes).map_err(|e| e.at(location))?;
        Ok(Self { driver: Arc::clone(driver), device, ptr, bytes, released: false })
    }

    /// The driver whose device it is on.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    /// Its first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] when they do not lie inside.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<DevicePtr> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(DriverError::InvalidArgument {
                call: "DeviceMemory::range",
                reason: format!(
                    "{bytes} bytes at offset {offset} do not lie inside {} bytes",
                    self.bytes
                ),
            });
        }
        // SAFETY: inside the allocation that `self` owns, as just checked.
        Ok(unsafe { self.ptr.offset(offset as i64) })
    }

    /// A handle with which another process opens it ([`SharedMemory::open`](super::SharedMemory)).
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn ipc_handle(&self) -> Result<IpcMemHandle> {
        let location = Location::caller();
        // SAFETY: the start of an allocation that is alive.
        unsafe { self.driver.ipc_mem_handle(self.device, self.ptr) }.map_err(|e| e.at(location))
    }

    /// Frees it now. Dropping it does too, but what the driver refuses then is out of reach.
    ///
    /// # Errors
    /// The memory, as it was, and why the driver refused.
    pub fn release(mut self) -> Result<(), Box<(Self, DriverError)>> {
        // SAFETY: as in `drop`, which does nothing once this succeeded.
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
        // SAFETY: `ptr` is this driver's and was not freed before; `mem_free` waits for its users.
        let free = move |driver: &dyn Driver| unsafe { driver.mem_free(device, ptr) };
        release(&self.driver, ReleaseKind::DeviceMemory, self.bytes, free);
    }
}
