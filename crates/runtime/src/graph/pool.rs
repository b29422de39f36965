//! The memory that graphs are captured in.

use std::sync::{Arc, PoisonError, Weak};

use warpline_alloc::cuda::{CudaBackend, CudaBlock};
use warpline_alloc::{MemPool, PoolOptions};
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use super::{Log, check_device};
use crate::storage::{Member, Pool, Replayed, Uses, WeakStorage};
use crate::{CudaDevice, ErrorKind, Result, Runtime, Storage};

/// Memory that one or more graphs share (`torch.cuda.graph_pool_handle`). Clones share it. What is
/// made in a capture lies there, and what is dropped in it is used again in it and in later
/// captures into the same pool: replay such graphs in the order in which they were captured, as in
/// PyTorch. Their replays run one after another, whatever streams they are on.
#[derive(Clone, Debug)]
pub struct GraphPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: MemPool<CudaBackend>,
    device: usize,
    /// The world of its device.
    devices_id: u64,
    /// The seed and place that random ops of a replay start from. Each replay writes it, so that
    /// its uses are those of the whole pool.
    state: OnceLock<Storage>,
    /// Where captures run that have no stream of their own. One for all, since the allocator
    /// keeps memory by stream.
    stream: OnceLock<Stream>,
    members: Mutex<Members>,
    /// Captures that may be under way.
    logs: Mutex<Vec<Weak<Log>>>,
}

/// The storages that were made in captures.
#[derive(Debug, Default)]
struct Members {
    /// The number of those that were ever made.
    made: u64,
    /// Those that may be there, by their numbers.
    alive: Vec<(u64, WeakStorage)>,
}

impl GraphPool {
    /// An empty pool of a device.
    #[must_use]
    pub fn new(device: &CudaDevice) -> Self {
        let memory = device.allocator().new_pool(PoolOptions::default());
        Self(Arc::new(Inner {
            memory,
            device: device.index(),
            devices_id: device.device().devices_id(),
            state: OnceLock::new(),
            stream: OnceLock::new(),
            members: Mutex::default(),
            logs: Mutex::default(),
        }))
    }

    /// Its number, which no other pool of the device has; never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.memory.id()
    }

    /// The index of its device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// The stream for captures that have none of their own, which is always the same one.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`] and [`ErrorKind::DeviceMismatch`] for a device that is not its own;
    /// the driver's own, when it has to be made.
    #[track_caller]
    pub fn stream(&self, device: &CudaDevice) -> Result<&Stream> {
        self.check_world(device.device().devices_id(), "graph_pool_handle")?;
        check_device("graph_pool_handle", self.device(), device.device().default_stream())?;
        if let Some(stream) = self.0.stream.get() {
            return Ok(stream);
        }
        let stream = device.device().stream_from_pool(0)?;
        Ok(self.0.stream.get_or_init(|| stream))
    }

    /// Refuses what is of other devices than its own.
    #[track_caller]
    pub(super) fn check_world(&self, devices_id: u64, op: &'static str) -> Result<()> {
        if self.0.devices_id == devices_id {
            Ok(())
        } else {
            Err(ErrorKind::RuntimeMismatch.of(op))
        }
    }

    pub(super) fn memory(&self) -> &MemPool<CudaBackend> {
        &self.0.memory
    }

    /// Where random ops find their state, made now if need be: outside any capture.
    #[track_caller]
    pub(super) fn state(&self, runtime: &Runtime, stream: &Stream) -> Result<&Storage> {
        if let Some(state) = self.0.state.get() {
            return Ok(state);
        }
        let state = Storage::device(runtime, 2 * size_of::<u64>(), stream)?;
        Ok(self.0.state.get_or_init(|| state))
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn logs(&self) -> MutexGuard<'_, Vec<Weak<Log>>> {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a capture that begins.
    pub(super) fn enter_log(&self, log: &Arc<Log>) {
        let mut logs = self.logs();
        logs.retain(|log| log.strong_count() > 0);
        logs.push(Arc::downgrade(log));
    }

    pub(super) fn enter(&self, storage: &Storage) {
        let mut members = self.members();
        members.made += 1;
        let made = members.made;
        members.alive.push((made, storage.downgrade()));
    }

    /// The number of storages that were made in captures by now, and those after the first `since` that are
    /// still there. `None` if there are no more.
    pub(super) fn made_since(&self, since: u64) -> (u64, Option<Vec<Storage>>) {
        let mut members = self.members();
        let Members { made, alive } = &mut *members;
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

    /// What a storage made in it has to know.
    pub(super) fn member(&self, replayed: &Replayed) -> Member {
        let pool: Weak<Inner> = Arc::downgrade(&self.0);
        Member::new(pool, replayed)
    }

    pub(super) fn has(&self, member: &Member) -> bool {
        member.is_of(&self.0)
    }
}

impl Pool for Inner {
    fn leave(&self, key: usize, uses: &Uses, block: CudaBlock) {
        if let Some(state) = self.state.get() {
            state.uses().absorb(uses);
        }
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let logs: Vec<_> = logs.iter().filter_map(Weak::upgrade).collect();
        // Each that uses it keeps it until it is done with it.
        let block = Arc::new(block);
        logs.iter().for_each(|log| log.park(key, &block));
    }
}
