//! Workspaces of cuBLAS: scratch memory from the caching allocator, one block per device and stream.
//!
//! A device has one cuBLAS handle, and each of its streams has a block of its own, so products on several streams never
//! share scratch memory. A launch takes its stream's block, declares it as an operand, and returns it. The next launch
//! on the stream reuses the block in the order of the stream. If two threads launch on one stream at the same time, the
//! second allocates a block, and one of the two is freed in stream order.
//!
//! Pools to which the program routes requests (`MemPool`) serve no workspaces, because a workspace would keep the pool's
//! memory.
//!
//! The device keeps blocks and not storages, because a storage keeps the runtime alive.
//!
//! A captured launch allocates its workspace from the graph's pool instead, and frees it at once: the graph owns the
//! memory for all replays, and later captured work reuses it in order.

use std::collections::HashMap;
use std::sync::PoisonError;

use warpline_alloc::cuda::CudaBlock;
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard};

use super::{CudaDevice, Runtime};
use crate::{Result, Storage};

/// The blocks that no launch uses at the moment, by stream.
#[derive(Debug, Default)]
pub(super) struct Workspaces(Mutex<HashMap<u64, CudaBlock>>);

impl Workspaces {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, CudaBlock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CudaDevice {
    /// Frees the cuBLAS workspaces of all streams (`torch._C._cuda_clearCublasWorkspaces`). The memory returns to the
    /// caching allocator, in the order of each stream. Later products allocate anew. Graphs keep their workspaces.
    pub fn clear_cublas_workspaces(&self) {
        self.workspaces.lock().clear();
    }

    /// Returns the size of a cuBLAS workspace, in bytes: [`RuntimeConfig::cublas_workspace`](crate::RuntimeConfig), by
    /// default 32 MiB on GPUs of compute capability 9.0 to 12.x, and 8,320 KiB on others, as in PyTorch.
    #[must_use]
    pub fn cublas_workspace_bytes(&self) -> usize {
        let default = || match self.properties().compute_capability.0 {
            9..=12 => 32 << 20,
            _ => (2 * 4096 + 8 * 16) << 10,
        };
        self.workspace_bytes.unwrap_or_else(default)
    }
}

/// The cuBLAS workspace of a stream, for one launch. Dropping it keeps the memory for the stream's next launch.
#[derive(Debug)]
pub struct Workspace<'a> {
    /// `None` only within `drop`.
    storage: Option<Storage>,
    /// The device and the stream that keep the memory. `None` in a capture.
    keeper: Option<(&'a CudaDevice, u64)>,
}

impl<'a> Workspace<'a> {
    /// Takes the workspace of a stream. Allocates it on the first use.
    ///
    /// # Errors
    /// - [`ErrorKind::Alloc`](crate::ErrorKind::Alloc) if the memory cannot be allocated.
    /// - [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another runtime.
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the stream is the twin of a captured
    ///   stream.
    #[track_caller]
    pub fn of(runtime: &'a Runtime, stream: &Stream) -> Result<Self> {
        runtime.check_stream(stream, "empty")?;
        let device = runtime.device(stream.device_index())?;
        let (bytes, id) = (device.cublas_workspace_bytes(), stream.id());
        let allocate = || {
            let _route = device.allocator().use_default_pool();
            Storage::device(runtime, bytes, stream)
        };
        if stream.is_capturing() {
            let storage = allocate()?;
            return Ok(Self { storage: Some(storage), keeper: None });
        }
        let kept = device.workspaces.lock().remove(&id);
        let storage = match kept {
            Some(block) => Storage::from_block(runtime, block, bytes, stream, None),
            None => {
                // A program may make and drop any number of streams.
                device.workspaces.lock().retain(|id, _| device.device().has_stream(*id));
                allocate()?
            }
        };
        Ok(Self { storage: Some(storage), keeper: Some((device, id)) })
    }

    /// Returns the memory.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        match &self.storage {
            Some(storage) => storage,
            None => unreachable!("only `drop` takes it"),
        }
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        let storage = self.storage.take();
        let (Some(storage), Some((device, id))) = (storage, self.keeper) else { return };
        let Some(block) = storage.into_block() else { return };
        device.workspaces.lock().insert(id, block);
    }
}
