//! Physical memory shared with other processes by file descriptors.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::sys::CUmemAllocationHandleType;

use super::CudaDriver;
use super::raw::{WrittenProperties, shareable_on};
use crate::{CudaCode, DriverError, PhysicalHandle, Result};

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl CudaDriver {
    pub(super) fn create_shareable(&self, device: usize, bytes: usize) -> Result<PhysicalHandle> {
        const CALL: &str = "cuMemCreate";
        self.enter(CALL, device)?;
        let function = self.api.cuMemCreate()?;
        let (mut raw, properties) = (0, shareable_on(device));
        // SAFETY: the pointers point to locals, and the device's context is current.
        let status = unsafe { function(&mut raw, bytes, &properties, 0) };
        self.check(CALL, device, status)
            .map_err(|e| e.with_detail(|| format!("{bytes} bytes for other processes")))?;
        // SAFETY: this driver has just created the object.
        Ok(unsafe { PhysicalHandle::from_raw(device, raw) })
    }

    /// # Safety
    /// The same as [`crate::Driver::mem_export`].
    pub(super) unsafe fn export(&self, memory: PhysicalHandle) -> Result<OwnedFd> {
        const CALL: &str = "cuMemExportToShareableHandle";
        let device = memory.device();
        self.enter(CALL, device)?;
        let function = self.api.cuMemExportToShareableHandle()?;
        let mut fd: c_int = -1;
        // SAFETY: the handle is live. For this handle type the driver writes an `int`.
        let status =
            unsafe { function(ptr::from_mut(&mut fd).cast(), memory.raw(), DESCRIPTOR, 0) };
        self.check(CALL, device, status)?;
        // SAFETY: the call created the descriptor, and no other code owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Programs that this process starts must not inherit the descriptor. The driver leaves it
        // inheritable.
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }

    pub(super) fn import(&self, device: usize, fd: OwnedFd) -> Result<PhysicalHandle> {
        const CALL: &str = "cuMemImportFromShareableHandle";
        const ASK: &str = "cuMemGetAllocationPropertiesFromHandle";
        self.enter(CALL, device)?;
        let import = self.api.cuMemImportFromShareableHandle()?;
        let ask = self.api.cuMemGetAllocationPropertiesFromHandle()?;
        let release = self.api.cuMemRelease()?;
        let mut raw = 0;
        let descriptor = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: for this handle type the call takes an open descriptor in place of an address.
        let status = unsafe { import(&mut raw, descriptor, DESCRIPTOR) };
        self.check(CALL, device, status)
            .map_err(|e| e.with_detail(|| "memory that another process sent".into()))?;
        let mut properties = WrittenProperties::default();
        // SAFETY: the handle was just created, and the struct has room for everything that the
        // driver writes.
        let status = unsafe { ask(&mut properties, raw) };
        let asked = self.check(ASK, device, status).and_then(|()| match properties.device() {
            Some(owner) if owner == device => Ok(()),
            _ => Err(DriverError::cuda(CALL, CudaCode::INVALID_DEVICE, Some(device)).with_detail(
                || "the memory that another process sent is on another device".into(),
            )),
        });
        if let Err(error) = asked {
            // SAFETY: the handle was just created, and no other code has it.
            unsafe { release(raw) };
            return Err(error);
        }
        // SAFETY: this driver has just created the object.
        Ok(unsafe { PhysicalHandle::from_raw(device, raw) })
    }
}
