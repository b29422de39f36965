//! Host memory that is shared with other processes: a sealed file in memory, mapped and registered
//! with the driver in each process.
//!
//! Invariant: no Rust reference to shared host memory is ever created, because other processes may
//! write to it at any time. `Storage::host_ptr` returns `None`, so host kernels are refused.
//! `launch::read_bytes` and `write_bytes`, which copies and printing use, copy it byte by byte with
//! atomics; the simulator does the same with registered memory. They copy single bytes, because
//! memory that was sent twice has two addresses, and atomics of different sizes must not overlap.
//! Devices use the memory as ordinary page-locked memory, and `Uses` orders their copies.
//!
//! The size of the file is never a multiple of 2 MiB, and that of a simulated device's memory
//! always is, so a peer cannot send one file as both kinds.

use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::owned::SharedHostMemory;

use super::shared::other_memory;
use super::{ExportedStorage, Storage, StorageMemory};
use crate::runtime::new_memory_id;
use crate::{Error, ErrorKind, Result, Runtime};

/// Host memory that processes share.
#[derive(Debug)]
pub(super) struct SharedHostBlock {
    pub(super) memory: SharedHostMemory,
    /// Identifier, the same in each process.
    pub(super) id: u128,
    /// Whether another process created the memory.
    pub(super) received: bool,
}

impl SharedHostBlock {
    #[track_caller]
    pub(super) fn export(&self, bytes: usize) -> Result<ExportedStorage> {
        let handle = self.memory.export().map_err(|e| Error::driver("send", e))?;
        let (mapped, id, device) = (self.memory.bytes(), self.id, [0; 16]);
        // Each process registers the memory with its own driver.
        Ok(ExportedStorage { handle, bytes, mapped, id, device, host: true, driver: "" })
    }
}

/// Returns the driver and device that host memory is page-locked for, if there is a device.
fn driver(runtime: &Runtime) -> Option<(&Arc<dyn Driver>, usize)> {
    runtime.driver().ok().filter(|_| runtime.device_count() > 0).map(|driver| (driver, 0))
}

impl Storage {
    /// Allocates zeroed host memory that [`Storage::export`] can pass to other processes. The
    /// memory is page-locked if there is a GPU, and does not come from the page-locked cache.
    ///
    /// Host code can access it only with [`crate::launch::read_bytes`] and
    /// [`crate::launch::write_bytes`].
    ///
    /// # Errors
    /// - [`ErrorKind::CannotShare`] if the system does not support such memory or has none left.
    /// - [`ErrorKind::Driver`] if the driver cannot register the memory, and in a forked child.
    #[track_caller]
    pub fn shared_host(runtime: &Runtime, bytes: usize) -> Result<Self> {
        const OP: &str = "share_memory";
        runtime.check_process(OP)?;
        runtime.sweep_shared();
        let location = Location::caller();
        let memory = SharedHostMemory::new(driver(runtime), bytes).map_err(|e| match e.code() {
            None => ErrorKind::CannotShare { reason: e.to_string() }.of(OP).at(location),
            Some(_) => Error::driver(OP, e),
        })?;
        let id = new_memory_id();
        runtime.shared_storage(id, None, || {
            let block = SharedHostBlock { memory, id, received: false };
            Ok(Self::build(
                runtime,
                StorageMemory::SharedHost(block),
                bytes,
                Default::default(),
                location,
            ))
        })
    }

    #[track_caller]
    pub(super) fn import_host(
        runtime: &Runtime,
        exported: ExportedStorage,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        runtime.sweep_shared();
        let ExportedStorage { handle, bytes, mapped, id, .. } = exported;
        let location = Location::caller();
        let storage = runtime.shared_storage(id, deadline, || {
            let memory = SharedHostMemory::import(driver(runtime), mapped, handle);
            let memory = memory.map_err(|e| Error::driver("recv", e))?;
            let block = SharedHostBlock { memory, id, received: true };
            Ok(Self::build(
                runtime,
                StorageMemory::SharedHost(block),
                bytes,
                Default::default(),
                location,
            ))
        })?;
        if storage.bytes() != bytes || !storage.is_shared_host() {
            return Err(other_memory("recv"));
        }
        Ok(storage)
    }

    /// Returns whether this is host memory that other processes may share.
    #[must_use]
    pub fn is_shared_host(&self) -> bool {
        matches!(self.0.memory, StorageMemory::SharedHost(_))
    }

    /// Returns the host address for copies by devices. Do not create a reference from it.
    pub(crate) fn shared_host_ptr(&self) -> Option<*mut u8> {
        match &self.0.memory {
            StorageMemory::SharedHost(block) => Some(block.memory.as_ptr().as_ptr()),
            _ => None,
        }
    }

    /// Copies bytes out of shared host memory.
    ///
    /// # Safety
    /// Devices of this process do not write to these bytes during the call.
    #[track_caller]
    pub(crate) unsafe fn read_shared_host(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let StorageMemory::SharedHost(block) = &self.0.memory else { return Ok(()) };
        // SAFETY: the caller guarantees that no device of this process writes to these bytes.
        unsafe { block.memory.read(offset, out) }.map_err(|e| Error::driver("read_bytes", e))
    }

    /// Copies bytes into shared host memory.
    ///
    /// # Safety
    /// Neither other threads nor devices of this process access these bytes during the call.
    #[track_caller]
    pub(crate) unsafe fn write_shared_host(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let StorageMemory::SharedHost(block) = &self.0.memory else { return Ok(()) };
        // SAFETY: the caller guarantees that no other thread or device of this process accesses
        // these bytes.
        unsafe { block.memory.write(offset, bytes) }.map_err(|e| Error::driver("write_bytes", e))
    }
}
