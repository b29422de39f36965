//! The state that all shards of an allocator share: the backend, the list of shards in lock order,
//! the policies, the captures and the trace.
//!
//! Lock order: the policies (taken by misses only), then the list of shards, then shards in the
//! order of that list, then the global counters, then the trace. A thread that holds the policies
//! locks one shard at a time, except when it adds up counters.
//!
//! Invariant: no driver call that can block, no observer and no `Drop` of memory runs under a
//! shard's lock. Events are recorded and queried there.

use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::growth::Growth;
use crate::hooks::Hooks;
use crate::release::{self, Releases};
use crate::shard::{Shard, ShardCell};
use crate::stats::{Counters, Global};
use crate::sync::{Lasting, is_same, lock};
use crate::trace::{TraceRing, Tracer};
use crate::{AllocatorConfig, Backend, Policy, SegmentInfo, source};

pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    /// How memory is got of the backend. Held while it is asked for memory or given it back. Taken
    /// before `shards`, never while callers' code runs.
    pub(crate) policies: Mutex<Box<dyn Growth<B>>>,
    /// Share of the device's memory that may be reserved. Locked for itself: a pool's source may change it.
    pub(crate) memory_fraction: Mutex<Option<f64>>,
    /// All shards, in the order in which their locks are taken. Held while more than one is.
    shards: Mutex<Vec<Registered<B>>>,
    /// Taken last.
    pub(crate) global: Mutex<Global>,
    /// Captures under way, during which the backend takes neither memory nor events.
    captures: AtomicUsize,
    pub(crate) releases: Releases<B::Memory>,
    /// Shards that nobody owns any more, but whose memory streams still use.
    pub(crate) orphans: Mutex<Vec<Arc<Shard<B>>>>,
    /// Whether the allocator is no more, so that there is nobody to leave shards to.
    pub(crate) closed: AtomicBool,
    /// Bytes asked for in requests under way that nothing cached fitted.
    pub(crate) waiting: AtomicUsize,
    /// Searches of large pools, while garbage is collected.
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) hooks: Hooks,
}

/// A shard as all know it. Its state counts until it is added to that of shards that are no more,
/// which is after its last owner let go of it.
struct Registered<B: Backend> {
    shard: Weak<Shard<B>>,
    cell: Lasting<ShardCell<B>>,
    pool: u64,
}

/// How a wait for all work on the device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceWait {
    /// Nothing runs any more.
    Done,
    /// The backend has no such wait.
    Unsupported,
    Failed,
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(backend: B, config: &AllocatorConfig, policies: Box<dyn Growth<B>>) -> Self {
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
            hooks: Hooks::default(),
        }
    }

    /// All shards that are alive, first to be locked first.
    pub(crate) fn all_shards(&self) -> Vec<Arc<Shard<B>>> {
        lock(&self.shards).iter().filter_map(|registered| registered.shard.upgrade()).collect()
    }

    /// Those of no private pool.
    pub(crate) fn shared_shards(&self) -> Vec<Arc<Shard<B>>> {
        let mut shards = self.all_shards();
        shards.retain(|shard| shard.pool == 0);
        shards
    }

    /// Raises the peaks to what the shards are at together.
    #[cold]
    pub(crate) fn raise_peaks(&self) {
        self.with_all(|global, shards| global.raise_peaks(shards));
    }

    /// Calls `f` with all counters at one moment.
    pub(crate) fn with_all<R>(&self, f: impl FnOnce(&mut Global, &mut [&mut Counters]) -> R) -> R {
        let registry = lock(&self.shards);
        let mut states: Vec<_> = registry.iter().map(|it| it.cell.lock_counted()).collect();
        states.iter_mut().for_each(|state| state.counters.settle());
        let mut counters: Vec<_> = states.iter_mut().map(|s| &mut s.counters).collect();
        f(&mut lock(&self.global), &mut counters)
    }

    /// All segments, by address, and what happened until that moment.
    pub(crate) fn report(&self) -> (Vec<SegmentInfo>, TraceRing) {
        // So that nothing is being mapped. Inside a source this thread may hold the lock.
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

    /// From when it returns until as many ends, no other thread calls the backend as none may during a
    /// capture.
    pub(crate) fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // Whoever saw no capture before holds one of these locks until it is done. Inside a source it is
        // this thread.
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

    /// Ends a capture; does what had to wait for the last one's end.
    pub(crate) fn end_capture(&self) {
        if self.captures.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        if !release::deferred(self) {
            return;
        }
        for shard in self.all_shards() {
            let mut state = shard.lock();
            // Another capture may have begun, whose end will do it.
            if !self.is_capturing() {
                state.record_deferred(&self.backend);
            }
        }
    }

    /// Releases the orphans that no stream uses any more.
    pub(crate) fn release_orphans(&self) {
        let orphans = std::mem::take(&mut *lock(&self.orphans));
        for shard in &orphans {
            let mut state = shard.lock();
            if !self.is_capturing() {
                state.record_deferred(&self.backend);
                state.poll_events(&self.backend);
            }
        }
        // Those still in use come back.
        drop(orphans);
    }

    /// Adds a shard to those that are counted and released, in the place of the one whose cell it
    /// has.
    pub(crate) fn register(&self, shard: Shard<B>) -> Arc<Shard<B>> {
        let (cell, pool) = (Lasting::clone(&shard.cell), shard.pool);
        let shard = Arc::new(shard);
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.cell, &cell));
        shards.push(Registered { shard: Arc::downgrade(&shard), cell, pool });
        shard
    }

    /// Counts a shard among those that are no more.
    pub(crate) fn unregister(&self, cell: &Lasting<ShardCell<B>>) {
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.cell, cell));
        let mut state = cell.lock();
        state.counters.settle();
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

    /// Waits for all work of a stream; false if that fails and the device is not lost.
    pub(crate) fn wait_for(&self, stream: &B::Stream) -> bool {
        let waited = self.backend.record(stream).and_then(|event| self.backend.synchronize(&event));
        waited.map_or_else(|error| self.backend.is_lost(&error), |()| true)
    }

    /// The options that hold in a pool. Without virtual memory, and in private pools, there are only
    /// segments. With the runtime's pools, which keep what is free themselves, nothing is cached
    /// here. Private pools always keep their memory: replays of what was captured in one go on using
    /// it after it was freed.
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

    /// Bytes held of the backend.
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
