//! Device memory that another library allocated.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{DevicePtr, Driver};

/// Device memory that another library allocated, with its owner. Dropping this value drops
/// the owner, which releases the memory.
pub struct ForeignMemory {
    driver: Arc<dyn Driver>,
    device: usize,
    ptr: DevicePtr,
    bytes: usize,
    _owner: Box<dyn Any + Send>,
}

impl ForeignMemory {
    /// Takes over `bytes` bytes at `ptr`, memory of a device of this driver. The result drops
    /// `owner`, which then releases the memory. Enqueued work may still use the memory at that
    /// time, so `owner` must first wait for the device, as `cuMemFree` does.
    ///
    /// # Safety
    /// Until `owner` is dropped, the device can read and write all of the memory, and no other code
    /// uses the memory.
    #[must_use]
    pub unsafe fn new(
        driver: &Arc<dyn Driver>,
        device: usize,
        ptr: DevicePtr,
        bytes: usize,
        owner: impl Any + Send,
    ) -> Self {
        Self { driver: Arc::clone(driver), device, ptr, bytes, _owner: Box::new(owner) }
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
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMemory")
            .field("device", &self.device)
            .field("ptr", &self.ptr)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
