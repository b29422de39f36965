//! The state that all shards of an allocator share: the backend, the list of shards in lock order,
//! the policies, the captures and the trace.
//!
//! # Lock order
//!
//! 1. The policies.
//! 2. The lists of segments to release (`Releases::lists`).
//! 3. The overflow shards (`AllocatorState::overflow`), or the shards of a private pool
//!    (`PrivatePool::shards`).
//! 4. The options (`AllocatorState::config`).
//! 5. The orphans.
//! 6. The list of shards.
//! 7. Shards, in the order of that list.
//! 8. The global counters, then the trace.
//!
//! The remaining locks protect the memory fraction, the routes, the list of pools,
//! `Releases::late`, the hooks, and the vacant cells. A thread that holds one of them takes no
//! further lock. A thread locks several shards at once only while it holds the lock of the list of
//! shards, to add up counters or to report segments.
//!
//! Invariant: no driver call that can block, no observer and no drop of memory runs under a shard's
//! lock. Recording and querying events is allowed.

use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::growth::GrowthPolicies;
use crate::hooks::AllocatorHooks;
use crate::release::{self, Releases};
use crate::shard::{Shard, ShardCell};
use crate::stats::{Counters, Global};
use crate::sync::{StaticRef, is_same, lock};
use crate::trace::{TraceRing, Tracer};
use crate::{AllocatorConfig, Backend, Policy, SegmentInfo, source};

pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    /// The policies for getting memory. Locked by misses, `empty_cache`, reports of segments, and
    /// the start of a capture. A miss holds the lock during backend calls that allocate, map, free
    /// or wait. A free that returns its segment to the backend does not take the lock.
    ///
    /// Cache-miss callbacks and out-of-memory observers run without the lock. Observers of moves
    /// run while the lock is held if a miss moves the memory.
    pub(crate) policies: Mutex<Box<dyn GrowthPolicies<B>>>,
    /// Share of the device's memory that may be reserved. A separate lock, because a pool's source
    /// may change the share.
    pub(crate) memory_fraction: Mutex<Option<f64>>,
    /// All shards, in lock order. The lock is held while more than one shard is locked.
    shards: Mutex<Vec<RegisteredShard<B>>>,
    /// Statistics that all shards share. Locked after all shards.
    pub(crate) global: Mutex<Global>,
    /// Number of captures in progress, during which the backend can neither release memory nor
    /// record events on captured streams.
    captures: AtomicUsize,
    pub(crate) releases: Releases<B::Memory>,
    /// Dropped shards with freed blocks that streams still use.
    pub(crate) orphans: Mutex<Vec<Arc<Shard<B>>>>,
    /// Whether the allocator was dropped. From then on, no shard becomes an orphan.
    pub(crate) closed: AtomicBool,
    /// Requested bytes of the misses in progress.
    pub(crate) waiting: AtomicUsize,
    /// Number of searches of large pools, counted for garbage collection.
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) hooks: AllocatorHooks,
}

/// A registered shard. The entry stays after the last reference to the shard is dropped, until the
/// shard's counters are added to those of retired shards.
struct RegisteredShard<B: Backend> {
    shard: Weak<Shard<B>>,
    cell: StaticRef<ShardCell<B>>,
    pool: u64,
}

/// Result of a wait for all work on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceWait {
    /// No work is running any more.
    Done,
    /// The backend cannot wait for the device.
    Unsupported,
    Failed,
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(
        backend: B,
        config: &AllocatorConfig,
        policies: Box<dyn GrowthPolicies<B>>,
    ) -> Self {
        Self {
            backend,
            policies: Mutex::new(policies),
            memory_fraction: Mutex::new(config.memory_fraction),
            shards: Mutex::default(),
            global: Mutex::default(),
            captures: AtomicUsize::new(0),
            releases: Releases::default(),
            orphans: Mutex::default(),
            closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            clock: Arc::default(),
            tracer: Arc::default(),
            hooks: AllocatorHooks::default(),
        }
    }

    /// Returns all live shards, in lock order.
    pub(crate) fn all_shards(&self) -> Vec<Arc<Shard<B>>> {
        lock(&self.shards).iter().filter_map(|registered| registered.shard.upgrade()).collect()
    }

    /// Returns the shards that belong to no private pool.
    pub(crate) fn shared_shards(&self) -> Vec<Arc<Shard<B>>> {
        let mut shards = self.all_shards();
        shards.retain(|shard| shard.pool == 0);
        shards
    }

    /// Raises the peaks to the current sums of all shards.
    #[cold]
    pub(crate) fn raise_peaks(&self) {
        self.with_all(|global, shards| global.raise_peaks(shards));
    }

    /// Calls `f` with the counters of all shards at one moment.
    pub(crate) fn with_all<R>(&self, f: impl FnOnce(&mut Global, &mut [&mut Counters]) -> R) -> R {
        let registry = lock(&self.shards);
        let mut states: Vec<_> = registry.iter().map(|it| it.cell.lock_counted()).collect();
        states.iter_mut().for_each(|state| state.counters.apply_pending());
        let mut counters: Vec<_> = states.iter_mut().map(|s| &mut s.counters).collect();
        f(&mut lock(&self.global), &mut counters)
    }

    /// Returns all segments, mapped ranges of arenas and aliases, in order of address, and the
    /// history until that moment.
    pub(crate) fn report(&self) -> (Vec<SegmentInfo>, TraceRing) {
        // Holding the lock keeps other threads from mapping pages. Inside a source, this thread may
        // hold the lock already.
        let policies = (!source::is_inside()).then(|| lock(&self.policies));
        let registry = lock(&self.shards);
        let mut segments = Vec::new();
        let states: Vec<_> = registry.iter().map(|it| (it.pool, it.cell.lock())).collect();
        states.iter().for_each(|(pool, state)| state.heap.report(*pool, &mut segments));
        let trace = self.tracer.copy();
        drop(states);
        drop((registry, policies));
        segments.sort_by_key(|segment| segment.address);
        (segments, trace)
    }

    /// Begins a capture. From the return of this call until the matching end, other threads make no
    /// backend call that a capture forbids.
    pub(crate) fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // Take each lock once, to wait for backend calls in progress: a thread that saw no capture
        // holds one of these locks until its backend call is finished. If this thread is inside a
        // source, it may hold the first two locks itself.
        if !source::is_inside() {
            drop(lock(&self.policies));
            self.releases.wait();
        }
        self.all_shards().iter().for_each(|shard| drop(shard.lock()));
    }

    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        self.captures.load(Ordering::Relaxed) > 0
    }

    /// Ends a capture. The end of the last capture does the deferred work.
    pub(crate) fn end_capture(&self) {
        if self.captures.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if !release::release_deferred(self) {
            return;
        }
        for shard in self.all_shards() {
            let mut state = shard.lock();
            // If another capture has begun, its end records the events.
            if !self.is_capturing() {
                state.record_deferred(&self.backend);
            }
        }
    }

    /// Releases orphaned shards that no stream uses any more.
    pub(crate) fn release_orphans(&self) {
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        for shard in &orphans {
            let mut state = shard.lock();
            if !self.is_capturing() {
                state.record_deferred(&self.backend);
                state.poll_events(&self.backend);
            }
        }
        // If streams still use a shard, its drop makes it an orphan again.
        drop(orphans);
    }

    /// Adds a shard. Replaces a registered shard that has the same cell.
    pub(crate) fn register(&self, shard: Shard<B>) -> Arc<Shard<B>> {
        let (cell, pool) = (StaticRef::clone(&shard.cell), shard.pool);
        let shard = Arc::new(shard);
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.cell, &cell));
        shards.push(RegisteredShard { shard: Arc::downgrade(&shard), cell, pool });
        shard
    }

    /// Removes a shard from the list and adds its counters to those of retired shards.
    pub(crate) fn unregister(&self, cell: &StaticRef<ShardCell<B>>) {
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.cell, cell));
        let mut state = cell.lock();
        state.counters.apply_pending();
        lock(&self.global).retired.add(&state.counters);
    }

    /// Waits for all work on the device.
    pub(crate) fn wait_for_device(&self) -> DeviceWait {
        match self.backend.synchronize_device() {
            Ok(true) => DeviceWait::Done,
            Ok(false) => DeviceWait::Unsupported,
            Err(error) if self.backend.is_lost(&error) => DeviceWait::Done,
            Err(_) => DeviceWait::Failed,
        }
    }

    /// Waits for all work of a stream. Returns `false` if the wait fails although the device is not
    /// lost.
    pub(crate) fn wait_for(&self, stream: &B::Stream) -> bool {
        let waited = self.backend.record(stream).and_then(|event| self.backend.synchronize(&event));
        waited.map_or_else(|error| self.backend.is_lost(&error), |()| true)
    }

    /// Returns the options in force for a pool. Private pools, and backends without virtual memory,
    /// use only segments. Under [`Policy::CudaMallocAsync`] the driver's pool keeps free memory, so
    /// this allocator does not also cache it. Private pools always cache, because replays of a
    /// capture use memory of the pool even after it was freed.
    pub(crate) fn in_force(&self, config: &AllocatorConfig, pool: u64) -> AllocatorConfig {
        let mut config = config.clone();
        let has_pages = || self.backend.virtual_memory().is_some();
        match config.policy {
            Policy::CudaMallocAsync if pool == 0 => config.caching = false,
            Policy::Default | Policy::Torch if pool == 0 && has_pages() => {}
            _ => {
                config.policy = Policy::Torch;
                config.expandable_segments = false;
            }
        }
        config.caching |= pool > 0;
        config
    }

    /// Returns the number of bytes reserved from the backend.
    pub(crate) fn reserved(&self) -> usize {
        lock(&self.global).reserved_bytes.current() as usize
    }

    pub(crate) fn searches(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
}

impl<B: Backend> Drop for Core<B> {
    fn drop(&mut self) {
        let policies = self.policies.get_mut().unwrap_or_else(PoisonError::into_inner);
        policies.close(&self.backend);
    }
}
