//! Device memory that somebody else allocated.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::{DevicePtr, Driver};

/// Device memory that another library allocated, and whoever releases it: that is dropped with it.
pub struct ForeignMemory {
    driver: Arc<dyn Driver>,
    device: usize,
    ptr: DevicePtr,
    bytes: usize,
    _owner: Box<dyn Any + Send>,
}

impl ForeignMemory {
    /// Takes over `bytes` bytes at `ptr`, memory of a device of this driver. `owner` is dropped with
    /// the result, and releases the memory then. Work that streams were given before may still use
    /// it: like `cuMemFree`, the owner has to wait for the device first.
    ///
    /// # Safety
    /// Until `owner` is dropped the device can read and write all of the memory, and nobody else
    /// uses it.
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
