//! Device memory of other processes.

use std::panic::Location;
use std::sync::Arc;

use super::refused::{ReleaseKind, release};
use crate::{DevicePtr, Driver, IpcMemHandle, Result};

/// Device memory that another process allocated and shares, closed on drop.
///
/// The other process creates the handle with
/// [`DeviceMemory::ipc_handle`](super::DeviceMemory::ipc_handle), and keeps the allocation while it
/// is open here. [`Event::ipc_handle`](super::Event::ipc_handle) and
/// [`Event::open_ipc`](super::Event::open_ipc) share events between processes.
#[derive(Debug)]
pub struct SharedMemory {
    driver: Arc<dyn Driver>,
    device: usize,
    ptr: DevicePtr,
    bytes: usize,
}

impl SharedMemory {
    /// Opens an allocation of another process.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as for an allocation that is freed or that
    /// this process made.
    ///
    /// # Safety
    /// The allocation has at least `bytes` bytes. Its owner keeps the allocation until the result
    /// is dropped.
    #[track_caller]
    pub unsafe fn open(
        driver: &Arc<dyn Driver>,
        device: usize,
        handle: IpcMemHandle,
        bytes: usize,
    ) -> Result<Self> {
        let location = Location::caller();
        let ptr = driver.ipc_open_mem(device, handle).map_err(|e| e.at(location))?;
        Ok(Self { driver: Arc::clone(driver), device, ptr, bytes })
    }

    /// Returns the index of the device on which the memory is open.
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

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let (device, ptr) = (self.device, self.ptr);
        // SAFETY: opened by this driver and not closed before.
        let close = move |driver: &dyn Driver| unsafe { driver.ipc_close_mem(device, ptr) };
        release(&self.driver, ReleaseKind::SharedMemory, self.bytes, close);
    }
}
