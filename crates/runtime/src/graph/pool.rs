//! Memory pools of graphs.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use warpline_alloc::cuda::{CudaBackend, CudaBlock};
use warpline_alloc::{MemPool, PoolOptions};
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use super::philox::STATE_BYTES;
use super::{GraphLog, check_device};
use crate::storage::{CapturePool, PoolMembership, ReplayedFlag, Uses, WeakStorage};
use crate::{CudaDevice, ErrorKind, Result, Runtime, Storage};

/// Memory that one or more graphs share (`torch.cuda.graph_pool_handle`). Clones share the pool.
/// Tensors made in a capture lie in the pool. Memory of tensors dropped during a capture is reused
/// in that capture and in later captures with the same pool, so replay such graphs in the order of
/// their captures, as in PyTorch. Replays of a pool's graphs run one after another, on any streams.
#[derive(Clone, Debug)]
pub struct GraphPool(Arc<GraphPoolInner>);

#[derive(Debug)]
struct GraphPoolInner {
    memory: MemPool<CudaBackend>,
    device: usize,
    /// The [`Devices::id`](warpline_stream::Devices::id) of the device.
    devices_id: u64,
    /// Seeds and offsets from which random ops of a replay start, by generator. Each replay counts as a write of this
    /// storage, so the uses of the storage order all graphs of the pool.
    philox_state: OnceLock<Storage>,
    /// The stream for captures that have no stream of their own. All of them use the same stream,
    /// because the allocator keeps free memory per stream.
    stream: OnceLock<Stream>,
    storages: Mutex<PoolStorages>,
    /// Logs of captures that may be in progress.
    logs: Mutex<Vec<Weak<GraphLog>>>,
    /// Values of other crates, at most one per type.
    extensions: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

/// Storages made in captures.
#[derive(Debug, Default)]
struct PoolStorages {
    /// Number of storages made so far.
    made: u64,
    /// Storages that may still exist, by number.
    alive: Vec<(u64, WeakStorage)>,
}

impl GraphPool {
    /// Creates an empty pool on a device.
    #[must_use]
    pub fn new(device: &CudaDevice) -> Self {
        let memory = device.allocator().new_pool(PoolOptions::default());
        Self(Arc::new(GraphPoolInner {
            memory,
            device: device.index(),
            devices_id: device.device().devices_id(),
            philox_state: OnceLock::new(),
            stream: OnceLock::new(),
            storages: Mutex::default(),
            logs: Mutex::default(),
            extensions: Mutex::default(),
        }))
    }

    /// Returns the pool's identifier, unique on its device. Never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.memory.id()
    }

    /// Returns the index of the pool's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// Returns the stream for captures that have no stream of their own. Always the same stream.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if `device` belongs to another runtime.
    /// - [`ErrorKind::DeviceMismatch`] if `device` is not the pool's device.
    /// - [`ErrorKind::Driver`] if the driver cannot create the stream.
    #[track_caller]
    pub fn stream(&self, device: &CudaDevice) -> Result<&Stream> {
        self.check_runtime(device.device().devices_id(), "graph_pool_handle")?;
        check_device("graph_pool_handle", self.device(), device.device().default_stream())?;
        if let Some(stream) = self.0.stream.get() {
            return Ok(stream);
        }
        let stream = device.device().stream_from_pool(0)?;
        Ok(self.0.stream.get_or_init(|| stream))
    }

    /// Returns the value of type `T` that all users of the pool share. The first call creates the value. The pool drops
    /// the value, so the value must not own the pool.
    #[must_use]
    pub fn extension<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let mut extensions = self.0.extensions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = extensions.iter().find_map(|value| Arc::clone(value).downcast().ok());
        known.unwrap_or_else(|| {
            let value = Arc::<T>::default();
            extensions.push(Arc::<T>::clone(&value));
            value
        })
    }

    /// Returns whether the storage was made in a capture with this pool.
    #[must_use]
    pub fn contains(&self, storage: &Storage) -> bool {
        storage.member().is_some_and(|member| self.has(member))
    }

    /// Checks that `devices_id`, the [`Devices::id`](warpline_stream::Devices::id) of a device or a
    /// stream, is equal to the identifier of the pool's device.
    #[track_caller]
    pub(super) fn check_runtime(&self, devices_id: u64, op: &'static str) -> Result<()> {
        if self.0.devices_id == devices_id {
            Ok(())
        } else {
            Err(ErrorKind::RuntimeMismatch.of(op))
        }
    }

    pub(super) fn memory(&self) -> &MemPool<CudaBackend> {
        &self.0.memory
    }

    /// Returns the state of random ops. Allocates it on first use, which must be outside a capture.
    #[track_caller]
    pub(super) fn philox_state(&self, runtime: &Runtime, stream: &Stream) -> Result<&Storage> {
        if let Some(state) = self.0.philox_state.get() {
            return Ok(state);
        }
        let state = Storage::device(runtime, STATE_BYTES, stream)?;
        Ok(self.0.philox_state.get_or_init(|| state))
    }

    fn storages(&self) -> MutexGuard<'_, PoolStorages> {
        self.0.storages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn logs(&self) -> MutexGuard<'_, Vec<Weak<GraphLog>>> {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the log of a new capture.
    pub(super) fn add_log(&self, log: &Arc<GraphLog>) {
        let mut logs = self.logs();
        logs.retain(|log| log.strong_count() > 0);
        logs.push(Arc::downgrade(log));
    }

    pub(super) fn add(&self, storage: &Storage) {
        let mut storages = self.storages();
        storages.made += 1;
        let made = storages.made;
        storages.alive.push((made, storage.downgrade()));
    }

    /// Returns the number of storages made so far, and the storages made after the first `since`
    /// that still exist. The list is `None` if no storage was made after the first `since`.
    pub(super) fn made_since(&self, since: u64) -> (u64, Option<Vec<Storage>>) {
        let mut storages = self.storages();
        let PoolStorages { made, alive } = &mut *storages;
        if *made == since {
            return (since, None);
        }
        let mut new = Vec::new();
        alive.retain(|(number, storage)| {
            if *number <= since {
                return storage.is_alive();
            }
            let storage = storage.upgrade();
            let keeps = storage.is_some();
            new.extend(storage);
            keeps
        });
        (*made, Some(new))
    }

    /// Returns the membership of a storage made in this pool.
    pub(super) fn member(&self, replayed: &ReplayedFlag, of_body: bool) -> PoolMembership {
        let pool: Weak<GraphPoolInner> = Arc::downgrade(&self.0);
        PoolMembership::new(pool, replayed, of_body)
    }

    pub(super) fn has(&self, member: &PoolMembership) -> bool {
        member.is_of(&self.0)
    }
}

impl CapturePool for GraphPoolInner {
    fn leave(&self, key: usize, uses: &Uses, block: CudaBlock) {
        if let Some(state) = self.philox_state.get() {
            state.uses().absorb(uses);
        }
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let logs: Vec<_> = logs.iter().filter_map(Weak::upgrade).collect();
        // Each log with a use of the memory keeps the block until the log's capture no longer needs it.
        let block = Arc::new(block);
        logs.iter().for_each(|log| log.park(key, &block));
    }
}
