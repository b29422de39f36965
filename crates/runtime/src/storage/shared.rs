//! Device memory that is shared with other processes.
//!
//! Each shared storage is physical memory of its own, created as exportable, zeroed, and mapped
//! separately in each process, so that no other memory of this process is visible through it. The
//! memory lives as long as any process has it. There are no counters and no files, so a killed
//! process leaves nothing to clean up.

use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use warpline_cuda_sys_safe::owned::{PhysicalMemory, Reservation};
use warpline_cuda_sys_safe::{CudaCode, DriverError, MemsetValue, OsHandle};
use warpline_stream::Stream;

use super::{Storage, StorageMemory, Uses};
use crate::launch::TOKEN;
use crate::runtime::{SharedMapping, UnusedMemory, new_memory_id};
use crate::{CudaDevice, Error, ErrorKind, Result, Runtime, Site};

/// Device memory that processes share.
#[derive(Debug)]
pub(super) struct SharedBlock {
    pub(super) device: usize,
    pub(super) mapping: Arc<SharedMapping>,
    /// Identifier, the same in each process.
    pub(super) id: u128,
    /// Whether another process created the memory.
    received: bool,
}

/// A storage exported to another process. The other process imports it with [`Storage::import`].
#[derive(Debug)]
pub struct ExportedStorage {
    /// Handle that transfers the memory.
    pub handle: OsHandle,
    /// Size of the storage, in bytes.
    pub bytes: usize,
    /// Size of the memory, in bytes. At least `bytes`.
    pub mapped: usize,
    /// Identifier, the same in each process that has the memory.
    pub id: u128,
    /// UUID of the device. Zeros for host memory.
    pub device: [u8; 16],
    /// Whether this is host memory.
    pub host: bool,
    /// Name of the driver that created the memory, such as `cuda`. Empty for host memory.
    pub driver: &'static str,
}

/// Creates the error for a message that reuses the identifier of other memory.
#[cold]
#[track_caller]
pub(super) fn other_memory(op: &'static str) -> Error {
    Error::invalid(op, "other memory was received under this identifier before")
}

impl Storage {
    /// Allocates zeroed memory on the stream's device that [`Storage::export`] can pass to other
    /// processes. The memory does not come from the caching allocator and does not count in its
    /// statistics.
    ///
    /// # Errors
    /// - [`ErrorKind::CannotShare`] if the driver, device or system cannot share memory.
    /// - [`ErrorKind::Capturing`] while the stream is captured.
    /// - [`ErrorKind::RuntimeMismatch`] if the stream belongs to another runtime.
    /// - [`ErrorKind::InvalidArgument`] if the stream is the twin of a captured stream.
    /// - [`ErrorKind::Driver`] if a driver call fails, for example because the device is out of
    ///   memory, and in a forked child.
    #[track_caller]
    pub fn shared(runtime: &Runtime, bytes: usize, stream: &Stream) -> Result<Self> {
        const OP: &str = "share_memory";
        runtime.check_stream(stream, OP)?;
        runtime.check_process(OP)?;
        let device = runtime.device(stream.device_index())?;
        runtime.sweep_shared();
        let memory = match create(device, bytes) {
            Ok(memory) => memory,
            Err(error) => return Err(cannot_share(OP, error)),
        };
        let mapping = map(runtime, device, &memory).map_err(|e| Error::driver(OP, e))?;
        // Clear the memory: it may hold old data of this process, which other processes must not
        // see.
        let cleared = clear(stream, &mapping, Site::here(OP));
        let id = new_memory_id();
        if let Err(error) = cleared {
            runtime.retire_shared(
                id,
                UnusedMemory::Device(mapping),
                std::iter::once(stream.clone()),
            );
            return Err(error);
        }
        let location = Location::caller();
        let storage = runtime.shared_storage(id, None, || {
            Ok(Self::of_shared(runtime, device, mapping, bytes, (id, false), location))
        })?;
        let prior = Uses::after_prior_storage(stream);
        *storage.uses() = prior;
        Ok(storage)
    }

    /// Exports the memory for another process. Work on it may still be running.
    ///
    /// # Errors
    /// - [`ErrorKind::CannotShare`] if the storage was not created by [`Storage::shared`] or
    ///   [`Storage::shared_host`], or came from another process.
    /// - [`ErrorKind::Driver`] if the system cannot export the memory.
    #[track_caller]
    pub fn export(&self) -> Result<ExportedStorage> {
        const OP: &str = "send";
        let received = match &self.0.memory {
            StorageMemory::Shared(block) => block.received,
            StorageMemory::SharedHost(block) => block.received,
            _ => return Err(self.not_shared(OP)),
        };
        if received {
            let reason = "it came from another process, and only the process that created it can \
                          send it; send a copy";
            return Err(ErrorKind::CannotShare { reason: reason.into() }.of(OP));
        }
        let block = match &self.0.memory {
            StorageMemory::Shared(block) => block,
            StorageMemory::SharedHost(block) => return block.export(self.bytes()),
            _ => return Err(self.not_shared(OP)),
        };
        let device = self.0.runtime.device(block.device)?;
        let handle = block.mapping.memory().export().map_err(|e| Error::driver(OP, e))?;
        Ok(ExportedStorage {
            handle,
            bytes: self.0.bytes,
            mapped: block.mapping.bytes(),
            id: block.id,
            device: device.properties().uuid,
            host: false,
            driver: device.driver().name(),
        })
    }

    /// Imports memory that another process exported. If this process has the memory already,
    /// returns the same storage.
    ///
    /// Other processes may write to the memory at any time. On a device this can at worst yield
    /// wrong data. If work in this process still uses the memory after its storage was dropped, the
    /// host waits for that work until `deadline`.
    ///
    /// # Errors
    /// - [`ErrorKind::CannotShare`] if the memory's driver or device is not that of this runtime.
    /// - The errors of [`Runtime::devices`] if it is device memory and this runtime has no devices.
    /// - [`ErrorKind::TimedOut`] if the work is not complete at `deadline`, and the errors of
    ///   [`Stream::host_wait`] if the work fails.
    /// - [`ErrorKind::InvalidArgument`] if the storage has more bytes than the memory, or if this identifier was
    ///   received before for other memory.
    /// - [`ErrorKind::Driver`] if the handle does not belong to exported memory, if the memory cannot be
    ///   mapped, and in a forked child.
    #[track_caller]
    pub fn import(
        runtime: &Runtime,
        exported: ExportedStorage,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        const OP: &str = "recv";
        runtime.check_process(OP)?;
        if exported.bytes > exported.mapped {
            let (bytes, mapped) = (exported.bytes, exported.mapped);
            let reason = format!("{bytes} bytes do not lie inside memory of {mapped} bytes");
            return Err(Error::invalid(OP, reason));
        }
        if exported.host {
            return Self::import_host(runtime, exported, deadline);
        }
        let ExportedStorage { handle, bytes, mapped, id, device: uuid, driver, .. } = exported;
        let device = device_of(runtime, uuid, driver)?;
        runtime.sweep_shared();
        let failed = |e| Error::driver(OP, e);
        let location = Location::caller();
        let storage = runtime.shared_storage(id, deadline, || {
            let memory = PhysicalMemory::import(device.driver(), device.index(), mapped, handle);
            let mapping = map(runtime, device, &memory.map_err(failed)?).map_err(failed)?;
            Ok(Self::of_shared(runtime, device, mapping, bytes, (id, true), location))
        })?;
        let found = storage.cuda_device().map(CudaDevice::index);
        if storage.bytes() != bytes || found != Some(device.index()) {
            return Err(other_memory(OP));
        }
        Ok(storage)
    }

    fn of_shared(
        runtime: &Runtime,
        device: &CudaDevice,
        mapping: Arc<SharedMapping>,
        bytes: usize,
        (id, received): (u128, bool),
        location: &'static Location<'static>,
    ) -> Self {
        let block = SharedBlock { device: device.index(), mapping, id, received };
        Self::build(runtime, StorageMemory::Shared(block), bytes, Default::default(), location)
    }

    /// Returns whether other processes may share this memory.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.0.memory, StorageMemory::Shared(_) | StorageMemory::SharedHost(_))
    }

    /// Returns the identifier that the memory has in each process.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if no other process can have the storage.
    #[track_caller]
    pub fn shared_id(&self, op: &'static str) -> Result<u128> {
        match &self.0.memory {
            StorageMemory::Shared(block) => Ok(block.id),
            StorageMemory::SharedHost(block) => Ok(block.id),
            _ => Err(self.not_shared(op)),
        }
    }

    /// Blocks the host until all work on the storage enqueued in this process is complete.
    ///
    /// # Errors
    /// - [`ErrorKind::Surfaced`] if that work failed on the device.
    /// - [`ErrorKind::TimedOut`] if work of another process that the bytes depend on is not complete
    ///   within the limit set on receipt.
    /// - [`ErrorKind::IndexCheck`], [`ErrorKind::Collective`] or [`ErrorKind::PeerGone`] if the bytes
    ///   depend on a failed check of indices, a failed collective, or unfinished work of a process
    ///   that is gone.
    /// - [`ErrorKind::Driver`] in a forked child, which cannot use the device.
    #[track_caller]
    pub fn wait_until_unused(&self) -> Result<()> {
        self.wait_for_host(true)?;
        self.check_marks(0..self.bytes())
    }

    #[track_caller]
    fn not_shared(&self, op: &'static str) -> Error {
        let reason = match &self.0.memory {
            StorageMemory::Pageable(_) | StorageMemory::Small(_) | StorageMemory::Pinned(_) => {
                "it is in host memory of this process alone; share the tensor that `share_memory` \
                 returns"
            }
            _ => {
                "its memory belongs to the caching allocator and may hold other tensors too; share \
                 the tensor that `share_memory` returns"
            }
        };
        ErrorKind::CannotShare { reason: reason.into() }.of(op)
    }
}

/// Creates memory in whole pages. If the device is out of memory, releases unused memory of the
/// allocator and tries again.
#[track_caller]
fn create(device: &CudaDevice, bytes: usize) -> Result<PhysicalMemory, DriverError> {
    let (driver, index) = (device.driver(), device.index());
    let page = driver.mem_granularity(index)?.max(1);
    let whole = bytes.max(1).checked_next_multiple_of(page).filter(|&b| b <= isize::MAX as usize);
    let whole = whole.ok_or_else(|| {
        let reason = format!("{bytes} bytes are more than can be addressed");
        DriverError::InvalidArgument { call: "cuMemCreate", reason }
    })?;
    match PhysicalMemory::shareable(driver, index, whole) {
        Err(e) if e.code() == Some(CudaCode::OUT_OF_MEMORY) => {
            device.allocator().empty_cache();
            PhysicalMemory::shareable(driver, index, whole)
        }
        made => made,
    }
}

#[track_caller]
fn map(
    runtime: &Runtime,
    device: &CudaDevice,
    memory: &PhysicalMemory,
) -> Result<Arc<SharedMapping>, DriverError> {
    let bytes = memory.bytes();
    let range = Reservation::new(device.driver(), device.index(), bytes)?;
    runtime.open_shared(device.index(), range.map(0, memory, 0, bytes)?)
}

/// Fills new memory with zeros.
#[track_caller]
fn clear(stream: &Stream, mapping: &SharedMapping, site: Site) -> Result<()> {
    let words = mapping.bytes() / 4;
    let failed = |e: Error| match e.driver_error() {
        Some(source) => Error::driver(site.op, source.clone().at(site.location)),
        None => e,
    };
    stream
        .submit(TOKEN, |handle| {
            if stream.is_capturing() {
                return Err(Error::new(ErrorKind::Capturing, site));
            }
            let driver = stream.raw().driver();
            // SAFETY: the words lie inside the mapping. The caller retires the mapping with this
            // stream, or records a use by this stream, so it is unmapped only after the stream has
            // completed the memset.
            unsafe { driver.memset_async(mapping.ptr(), MemsetValue::U32(0), words, handle) }?;
            stream.note_launch(site, [("bytes", [words * 4].as_slice())].into_iter());
            Ok::<_, Error>(())
        })
        .map_err(failed)?;
    Ok(())
}

#[track_caller]
fn device_of<'a>(runtime: &'a Runtime, uuid: [u8; 16], driver: &str) -> Result<&'a CudaDevice> {
    let location = Location::caller();
    let refuse = |reason: String| Err(ErrorKind::CannotShare { reason }.of("recv").at(location));
    let own = runtime.driver()?.name();
    if own != driver {
        return refuse(format!("it is memory of the {driver} driver, and this runtime has {own}"));
    }
    let mut all = (0..runtime.device_count()).filter_map(|index| runtime.device(index).ok());
    let hex = || uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match all.find(|device| device.properties().uuid == uuid) {
        Some(device) => Ok(device),
        None => refuse(format!("it is on the GPU {}, which is not visible to this process", hex())),
    }
}

#[cold]
#[track_caller]
pub(super) fn cannot_share(op: &'static str, error: DriverError) -> Error {
    if error.code() == Some(CudaCode::NOT_SUPPORTED) {
        return ErrorKind::CannotShare { reason: error.to_string() }.of(op);
    }
    Error::driver(op, error)
}
