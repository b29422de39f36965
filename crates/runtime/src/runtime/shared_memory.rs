//! Memory shared with other processes: the devices that can access it, and its unmapping.
//!
//! Unmapping does not wait for work that uses the addresses. Dropped memory that work may still use
//! is therefore *retired*: an event is recorded on each stream that used it, and a later call unmaps
//! the memory when the events have completed. The host waits for this work only at the end of the
//! runtime, or if the memory is received again before the work is complete.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;
use warpline_cuda_sys_safe::owned::{Event, Mapping, SharedHostMemory, SharedWords};
use warpline_cuda_sys_safe::{DriverError, EventFlags, MemAccess};
use warpline_stream::Stream;
use warpline_sync::{Mutex, MutexGuard};

use super::Runtime;
use crate::storage::WeakStorage;
use crate::{ErrorKind, Result, Storage};

/// Interval at which the host polls for completed work while it waits with a timeout.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Maximum number of retired mappings that are checked whenever memory is shared or received.
const SWEEP_LIMIT: usize = 16;

/// A mapping of shared memory, and its device.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    device: usize,
    mapping: Mapping,
}

impl Deref for SharedMapping {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

/// All memory of a runtime that is shared with other processes.
#[derive(Debug, Default)]
pub(super) struct RuntimeSharedMemory {
    state: Mutex<SharedMemoryState>,
    /// The storage of each memory, by identifier. Memory that is received twice gets one storage,
    /// so that all work on it is ordered. The entry is removed after the storage was dropped and
    /// its memory retired.
    storages: Mutex<HashMap<u128, WeakStorage>>,
}

#[derive(Debug, Default)]
struct SharedMemoryState {
    /// Mappings that may still exist.
    live: Vec<Weak<SharedMapping>>,
    /// Pairs of devices: the first can access the second's memory.
    peers: Vec<(usize, usize)>,
    /// Dropped memory that work may still use. Memory that was checked last is at the end.
    retired: VecDeque<RetiredMemory>,
}

/// Shared memory that this process no longer references.
#[derive(Debug)]
pub(crate) enum UnusedMemory {
    Device(Arc<SharedMapping>),
    Host(SharedHostMemory),
    Words(SharedWords),
}

impl UnusedMemory {
    fn bytes(&self) -> usize {
        match self {
            Self::Device(mapping) => mapping.bytes(),
            Self::Host(memory) => memory.bytes(),
            Self::Words(words) => words.bytes(),
        }
    }
}

impl SharedMemoryState {
    /// Returns the streams that may still use dropped memory with this identifier.
    fn users(&self, id: u128) -> Vec<Stream> {
        let retired = self.retired.iter().filter(|retired| retired.id == id);
        retired.flat_map(|retired| retired.streams.iter().map(|(s, _)| s.clone())).collect()
    }
}

/// Dropped shared memory, and the streams that may still use it, with their events.
#[derive(Debug)]
struct RetiredMemory {
    id: u128,
    memory: UnusedMemory,
    streams: SmallVec<[(Stream, Option<Event>); 2]>,
}

impl RetiredMemory {
    /// Returns whether all streams have completed their use of the memory.
    fn is_unused(&mut self) -> bool {
        // Dropping a tensor must not wait for work. The driver may wait when it releases host
        // memory, so host memory that was used is usually released by a later call. The words of a
        // semaphore can be released now, because the drop of their channel has already waited.
        let at_once = !matches!(self.memory, UnusedMemory::Host(_));
        self.streams.retain(|(stream, event)| {
            if stream.raw().driver().lost(stream.device_index()).is_some() {
                return false;
            }
            if event.is_none() && !stream.is_capturing() {
                if at_once && stream.raw().query().unwrap_or(false) {
                    return false;
                }
                *event = recorded(stream).ok();
            }
            match event.as_ref().map(Event::query) {
                Some(Ok(done)) => !done,
                // The query fails, for example, if the event was recorded in a capture that began
                // after the check above.
                Some(Err(_)) => {
                    *event = None;
                    true
                }
                None => true,
            }
        });
        self.streams.is_empty()
    }
}

fn recorded(stream: &Stream) -> Result<Event, DriverError> {
    let device = stream.device_index();
    let event = Event::new(stream.raw().driver(), device, EventFlags::default())?;
    event.record(stream.raw())?;
    Ok(event)
}

impl RuntimeSharedMemory {
    fn lock(&self) -> MutexGuard<'_, SharedMemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the storages. Do not drop a storage while the lock is held.
    fn storages(&self) -> MutexGuard<'_, HashMap<u128, WeakStorage>> {
        self.storages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `device` access all present and future shared memory of `memory_device`.
    pub(super) fn allow(&self, device: usize, memory_device: usize) -> Result<(), DriverError> {
        let mut state = self.lock();
        for mapping in state.live.iter().filter_map(Weak::upgrade) {
            if mapping.device == memory_device {
                mapping.set_access(&[(device, MemAccess::ReadWrite)])?;
            }
        }
        state.peers.push((device, memory_device));
        Ok(())
    }
}

impl Drop for RuntimeSharedMemory {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for RetiredMemory { memory, streams, .. } in state.retired.drain(..) {
            let lost = |s: &Stream| s.raw().driver().lost(s.device_index()).is_some();
            if !streams.iter().all(|(s, _)| s.raw().synchronize().is_ok() || lost(s)) {
                // Work may still use the memory, so it stays mapped as long as the process lives.
                std::mem::forget(memory);
            }
        }
    }
}

impl Runtime {
    /// Gives access to a new mapping: to its device, and to the devices that have access to that
    /// device's memory.
    pub(crate) fn open_shared(
        &self,
        device: usize,
        mapping: Mapping,
    ) -> Result<Arc<SharedMapping>, DriverError> {
        let mut state = self.0.shared.lock();
        let peers = state.peers.iter().filter(|(_, memory_device)| *memory_device == device);
        let peers = peers.map(|&(peer, _)| peer);
        let access: SmallVec<[(usize, MemAccess); 4]> =
            std::iter::once(device).chain(peers).map(|d| (d, MemAccess::ReadWrite)).collect();
        mapping.set_access(&access)?;
        let mapping = Arc::new(SharedMapping { device, mapping });
        state.live.retain(|other| other.strong_count() > 0);
        state.live.push(Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Returns the storage of this memory, or the storage that `make` creates for it. If work still
    /// uses the memory after its storage was dropped, the host waits for that work until
    /// `deadline`.
    ///
    /// # Errors
    /// - [`ErrorKind::TimedOut`] if the work is not complete at the deadline.
    /// - Errors of `make` and of the awaited work ([`Stream::host_wait`]).
    #[track_caller]
    pub(crate) fn shared_storage(
        &self,
        id: u128,
        deadline: Option<Instant>,
        make: impl FnOnce() -> Result<Storage>,
    ) -> Result<Storage> {
        let shared = &self.0.shared;
        loop {
            let mut storages = shared.storages();
            match storages.get(&id).map(WeakStorage::upgrade) {
                Some(Some(storage)) => return Ok(storage),
                Some(None) => {
                    // Another thread is dropping the storage and is about to retire the memory.
                    drop(storages);
                    std::thread::yield_now();
                    continue;
                }
                None => {}
            }
            let used = shared.lock().users(id);
            if used.is_empty() {
                let storage = make()?;
                storages.insert(id, storage.downgrade());
                return Ok(storage);
            }
            drop(storages);
            match deadline {
                None => used.iter().try_for_each(|stream| stream.host_wait(stream.last_op()))?,
                Some(deadline) if Instant::now() >= deadline => {
                    let reason = "this process received the memory before, and its earlier work on \
                                  the memory was not complete before the timeout";
                    let (op, location) = ("recv", Location::caller());
                    return Err(ErrorKind::TimedOut { reason: reason.to_owned() }
                        .of(op)
                        .at(location));
                }
                Some(_) => std::thread::sleep(POLL_INTERVAL),
            }
            self.sweep(usize::MAX);
        }
    }

    /// Retires memory: unmaps it after these streams have completed their work so far. Unmapping
    /// host memory also unlocks its pages, which may make the driver wait.
    pub(crate) fn retire_shared(
        &self,
        id: u128,
        memory: UnusedMemory,
        streams: impl Iterator<Item = Stream>,
    ) {
        let mut retired = RetiredMemory { id, memory, streams: SmallVec::new() };
        for stream in streams {
            if !retired.streams.iter().any(|(known, _)| *known == stream) {
                retired.streams.push((stream, None));
            }
        }
        let shared = &self.0.shared;
        // Memory that is already unused is unmapped here, while the lock is not held.
        if !retired.is_unused() {
            shared.lock().retired.push_back(retired);
        }
        shared.storages().remove(&id);
    }

    /// Unmaps retired memory that no work uses any more. Checks at most [`SWEEP_LIMIT`] mappings,
    /// beginning with those that were not checked for longest.
    pub(crate) fn sweep_shared(&self) {
        self.sweep(SWEEP_LIMIT);
    }

    /// Checks up to `most` mappings, and unmaps those that no work uses.
    fn sweep(&self, most: usize) {
        let mut state = self.0.shared.lock();
        let mut unused = Vec::new();
        for _ in 0..state.retired.len().min(most) {
            let Some(mut retired) = state.retired.pop_front() else { break };
            match retired.is_unused() {
                true => unused.push(retired),
                false => state.retired.push_back(retired),
            }
        }
        drop(state);
        drop(unused); // unmapped without the lock
    }

    /// Releases memory that was shared with other processes, was dropped here, and is no longer
    /// used by any work (`torch.cuda.ipc_collect`). Sharing or receiving memory also does this, for
    /// some mappings. Returns the number of bytes still in use.
    pub fn ipc_collect(&self) -> usize {
        self.sweep(usize::MAX);
        let state = self.0.shared.lock();
        state.retired.iter().map(|retired| retired.memory.bytes()).sum()
    }
}

/// Returns an identifier that is unique among all processes. The identifier must not be easy to
/// guess, because a process that sends it gets access to the memory that it identifies.
pub(crate) fn new_memory_id() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    let seed = (time, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let [high, low] = [(); 2].map(|()| u128::from(RandomState::new().hash_one(seed)));
    high << 64 | low
}
