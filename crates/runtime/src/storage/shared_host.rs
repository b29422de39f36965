//! Host memory that is shared with other processes: a sealed file in memory, mapped and registered
//! with the driver in each process.
//!
//! Invariant: no reference to shared host memory is ever made, because other processes may write to
//! it at any time. `Storage::host_ptr` returns none, so host kernels are refused.
//! `launch::read_bytes` and `write_bytes`, which copies and printing use, copy it byte by byte as
//! atomics; the simulator does the same with registered memory. They copy bytes and not words,
//! because memory that was sent twice has two addresses, and atomics of two sizes must not meet. To
//! devices it is page-locked memory like any other, and `Uses` order their copies.
//!
//! The size of the file is never a multiple of 2 MiB, and that of a simulated device's memory
//! always is, so a peer cannot send one file as both.

use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::owned::SharedHostMemory;

use super::shared::other_memory;
use super::{ExportedStorage, Memory, Storage};
use crate::runtime::new_memory_id;
use crate::{Error, ErrorKind, Result, Runtime};

/// A storage's part in host memory that processes share.
#[derive(Debug)]
pub(super) struct SharedHostBlock {
    pub(super) memory: SharedHostMemory,
    /// The same in each process.
    pub(super) id: u128,
    /// Whether another process made it.
    pub(super) received: bool,
}

impl SharedHostBlock {
    #[track_caller]
    pub(super) fn export(&self, bytes: usize) -> Result<ExportedStorage> {
        let handle = self.memory.export().map_err(|e| Error::driver("send", e))?;
        let (mapped, id, device) = (self.memory.bytes(), self.id, [0; 16]);
        // Whose driver it is locked by is each process's own affair.
        Ok(ExportedStorage { handle, bytes, mapped, id, device, host: true, driver: "" })
    }
}

/// Whom host memory is page-locked for.
fn driver(runtime: &Runtime) -> Option<(&Arc<dyn Driver>, usize)> {
    runtime.driver().ok().filter(|_| runtime.device_count() > 0).map(|driver| (driver, 0))
}

impl Storage {
    /// Zeroed host memory that [`Storage::export`] can give to other processes, page-locked where
    /// there is a GPU. It does not come from the page-locked cache.
    ///
    /// Host code reads and writes it with [`crate::launch::read_bytes`] and
    /// [`crate::launch::write_bytes`] alone.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] where the system has no such memory, or none left; the driver's own.
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
        let (id, location) = (new_memory_id(), Location::caller());
        runtime.shared_storage(id, None, || {
            let block = SharedHostBlock { memory, id, received: false };
            Ok(Self::build(runtime, Memory::SharedHost(block), bytes, None, location))
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
            Ok(Self::build(runtime, Memory::SharedHost(block), bytes, None, location))
        })?;
        if storage.bytes() != bytes || !storage.is_shared_host() {
            return Err(other_memory("recv"));
        }
        Ok(storage)
    }

    /// Whether it is host memory that other processes may have too.
    #[must_use]
    pub fn is_shared_host(&self) -> bool {
        matches!(self.0.memory, Memory::SharedHost(_))
    }

    /// Where devices copy such memory from and to. No reference may be made of it.
    pub(crate) fn shared_host_ptr(&self) -> Option<*mut u8> {
        match &self.0.memory {
            Memory::SharedHost(block) => Some(block.memory.as_ptr().as_ptr()),
            _ => None,
        }
    }

    /// Copies bytes out of such memory.
    ///
    /// # Safety
    /// As of [`SharedHostMemory::read`].
    #[track_caller]
    pub(crate) unsafe fn read_shared_host(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let Memory::SharedHost(block) = &self.0.memory else { return Ok(()) };
        // SAFETY: the caller's.
        unsafe { block.memory.read(offset, out) }.map_err(|e| Error::driver("read_bytes", e))
    }

    /// Copies bytes into such memory.
    ///
    /// # Safety
    /// As of [`SharedHostMemory::write`].
    #[track_caller]
    pub(crate) unsafe fn write_shared_host(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let Memory::SharedHost(block) = &self.0.memory else { return Ok(()) };
        // SAFETY: the caller's.
        unsafe { block.memory.write(offset, bytes) }.map_err(|e| Error::driver("write_bytes", e))
    }
}
