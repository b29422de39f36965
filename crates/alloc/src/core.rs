//! What all shards of an allocator share.

use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::books::Books;
use crate::hooks::Hooks;
use crate::pages::Arenas;
use crate::shard::{Shard, lock};
use crate::slack::{Demand, Slack};
use crate::state::Released;
use crate::stats::{Counters, Global, Quantity};
use crate::sync::{Lasting, is_same};
use crate::trace::{TraceRing, Tracer};
use crate::{AllocatorConfig, Backend, Policy, SegmentInfo};

pub(crate) struct Core<B: Backend> {
    pub(crate) backend: B,
    /// Held while the backend is asked for memory or given it back. Taken before `shards`, never
    /// while callers' code runs.
    pub(crate) slow: Mutex<Slow<B>>,
    /// All shards, in the order in which their locks are taken. Held while more than one is.
    shards: Mutex<Vec<Registered<B>>>,
    /// Taken last.
    pub(crate) global: Mutex<Global>,
    /// Captures under way, during which the backend takes neither memory nor events.
    pub(crate) captures: AtomicUsize,
    /// Held while memory goes, so that no capture begins meanwhile.
    going: Mutex<Going<B::Memory>>,
    /// Shards that nobody has any more, but whose memory streams still use.
    pub(crate) left: Mutex<Vec<Arc<Shard<B>>>>,
    /// Whether the allocator is no more, so that there is nobody to leave shards to.
    pub(crate) closed: AtomicBool,
    /// Bytes asked for that nothing cached fitted, in requests that are not answered yet.
    pub(crate) waiting: AtomicUsize,
    /// Searches of large pools, while garbage is collected.
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) hooks: Hooks,
}

/// A shard as all know it. Its books count until they are added to those of shards that are no
/// more, which is after its last owner let go of it.
struct Registered<B: Backend> {
    shard: Weak<Shard<B>>,
    books: Lasting<Books<B>>,
    pool: u64,
}

/// Segments that are off the books but not given back.
struct Going<M> {
    /// Those that were to go during a capture, and count as gone.
    deferred: Vec<Released<M>>,
    /// Those that the backend refused, and that cannot serve any more where they were. They count
    /// as reserved.
    refused: Vec<Released<M>>,
}

/// What only one thread at a time deals with.
pub(crate) struct Slow<B: Backend> {
    pub(crate) limit: Limit,
    pub(crate) arenas: Arenas<B>,
    pub(crate) slack: Slack,
}

/// How much may be reserved.
pub(crate) struct Limit {
    pub(crate) fraction: Option<f64>,
    /// The fraction in bytes, once it was needed.
    pub(crate) bytes: Option<usize>,
}

impl Limit {
    pub(crate) fn new(fraction: Option<f64>) -> Self {
        // A fraction of 1 is no limit.
        Self { fraction: fraction.filter(|fraction| *fraction < 1.0), bytes: None }
    }
}

impl<B: Backend> Core<B> {
    pub(crate) fn new(backend: B, config: &AllocatorConfig) -> Self {
        let limit = Limit::new(config.memory_fraction);
        Self {
            backend,
            slow: Mutex::new(Slow { limit, arenas: Arenas::default(), slack: Slack::default() }),
            shards: Mutex::default(),
            global: Mutex::default(),
            captures: AtomicUsize::new(0),
            going: Mutex::new(Going { deferred: Vec::new(), refused: Vec::new() }),
            left: Mutex::default(),
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
        let mut states: Vec<_> = registry.iter().map(|it| it.books.lock_counted()).collect();
        states.iter_mut().for_each(|state| state.counters.settle());
        let mut counters: Vec<_> = states.iter_mut().map(|s| &mut s.counters).collect();
        f(&mut lock(&self.global), &mut counters)
    }

    /// All segments, by address, and what happened until that moment.
    pub(crate) fn report(&self) -> (Vec<SegmentInfo>, TraceRing) {
        // So that nothing is being mapped.
        let slow = lock(&self.slow);
        let registry = lock(&self.shards);
        let mut segments = Vec::new();
        let states: Vec<_> = registry.iter().map(|it| (it.pool, it.books.lock())).collect();
        states.iter().for_each(|(pool, state)| state.report(*pool, &mut segments));
        let trace = self.tracer.copy();
        drop(states);
        drop((registry, slow));
        segments.sort_by_key(|segment| segment.address);
        (segments, trace)
    }

    /// Gives segments back to the backend. Called without a shard's lock.
    pub(crate) fn gone(&self, released: Vec<Released<B::Memory>>) {
        if released.is_empty() {
            return;
        }
        let mut going = lock(&self.going);
        if self.is_capturing() {
            self.defer(&mut going, released);
        } else {
            let refused = self.free(released, false);
            going.refused.extend(refused);
        }
    }

    /// The same for a shard: what the backend refuses is free there again.
    pub(crate) fn give_back(&self, shard: &Shard<B>, released: Vec<Released<B::Memory>>) {
        if released.is_empty() {
            return;
        }
        let mut going = lock(&self.going);
        if self.is_capturing() {
            self.defer(&mut going, released);
            return;
        }
        for refused in self.free(released, false) {
            let restored = shard.lock().restore(refused);
            going.refused.extend(restored.err());
        }
    }

    /// Tries to give back what the backend refused and what serves nobody, until it refuses again,
    /// or all of it.
    pub(crate) fn retry_refused(&self, all: bool) {
        let mut going = lock(&self.going);
        if going.refused.is_empty() || self.is_capturing() {
            return;
        }
        let mut again = std::mem::take(&mut going.refused);
        while !again.is_empty() {
            let first = if all { again.len() } else { 1 };
            let refused = self.free(again.drain(..first).collect(), false);
            let stop = !refused.is_empty();
            going.refused.extend(refused);
            if stop {
                break;
            }
        }
        // Those that were not tried come first next time.
        going.refused.splice(0..0, again);
    }

    /// Counts segments out that go once no capture is under way.
    fn defer(&self, going: &mut Going<B::Memory>, released: Vec<Released<B::Memory>>) {
        let mut global = lock(&self.global);
        for segment in released {
            global.segment_gone(segment.kind, segment.size, segment.oversize);
            going.deferred.push(segment);
        }
    }

    /// Gives segments back and counts those out that the backend takes, unless they count as gone
    /// already; answers the others.
    fn free(&self, released: Vec<Released<B::Memory>>, gone: bool) -> Vec<Released<B::Memory>> {
        let mut refused = Vec::new();
        for Released { kind, size, oversize, refused: before, stream, memory } in released {
            let freed = B::free(memory);
            let mut global = lock(&self.global);
            let Err(memory) = freed else {
                if !gone {
                    global.segment_gone(kind, size, oversize);
                }
                if before {
                    global.refused_segments.accept(size);
                }
                continue;
            };
            global.num_refused += 1;
            if gone {
                global.segment_back(kind, size, oversize);
            }
            if !before {
                global.refused_segments.refuse(size);
            }
            refused.push(Released { kind, size, oversize, refused: true, stream, memory });
        }
        refused
    }

    /// From when it returns until as many ends, no thread calls the backend as none may during a
    /// capture.
    pub(crate) fn begin_capture(&self) {
        self.captures.fetch_add(1, Ordering::SeqCst);
        // Whoever saw no capture before holds one of these locks until it is done.
        drop(lock(&self.slow));
        drop(lock(&self.going));
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
        {
            let mut going = lock(&self.going);
            if self.is_capturing() {
                return;
            }
            let deferred = std::mem::take(&mut going.deferred);
            let refused = self.free(deferred, true);
            going.refused.extend(refused);
        }
        for shard in self.all_shards() {
            let mut state = shard.lock();
            // Another capture may have begun, whose end will do it.
            if !self.is_capturing() {
                state.await_deferred(&self.backend);
            }
        }
    }

    /// Releases the shards that were left over and that no stream uses any more.
    pub(crate) fn release_left(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        for shard in &left {
            let mut state = shard.lock();
            if !self.is_capturing() {
                state.await_deferred(&self.backend);
                state.poll_events(&self.backend);
            }
        }
        // Those still in use come back.
        drop(left);
    }

    /// Enters a shard among those that are counted and given back, in the place of the one whose
    /// books it has.
    pub(crate) fn register(&self, shard: Shard<B>) -> Arc<Shard<B>> {
        let (books, pool) = (Lasting::clone(&shard.books), shard.pool);
        let shard = Arc::new(shard);
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.books, &books));
        shards.push(Registered { shard: Arc::downgrade(&shard), books, pool });
        shard
    }

    /// Counts a shard among those that are no more.
    pub(crate) fn unregister(&self, books: &Lasting<Books<B>>) {
        let mut shards = lock(&self.shards);
        shards.retain(|other| !is_same(&other.books, books));
        let mut state = books.lock();
        state.counters.settle();
        lock(&self.global).retired.add(&state.counters);
    }

    /// Waits for all work on the device, if the backend can. `None` if that fails and the device is
    /// not lost.
    pub(crate) fn wait_for_device(&self) -> Option<bool> {
        let waited = self.backend.synchronize_device();
        waited.map_or_else(|error| self.backend.is_lost(&error).then_some(true), Some)
    }

    /// Waits for all work of a stream; false if that fails and the device is not lost.
    pub(crate) fn wait_for(&self, stream: &B::Stream) -> bool {
        let waited = self.backend.record(stream).and_then(|event| self.backend.synchronize(&event));
        waited.map_or_else(|error| self.backend.is_lost(&error), |()| true)
    }

    /// What can be had of the options in a pool: without virtual memory, and in private ones,
    /// there are only segments. Private pools always keep their memory: replays of what was captured
    /// in one go on using it after it was freed.
    pub(crate) fn in_force(&self, config: &AllocatorConfig, pool: u64) -> AllocatorConfig {
        let mut config = config.clone();
        if pool > 0 || self.backend.virtual_memory().is_none() {
            config.policy = Policy::Torch;
            config.expandable_segments = false;
        }
        config.caching |= pool > 0;
        config
    }

    /// Bytes held of the backend.
    pub(crate) fn reserved(&self) -> usize {
        lock(&self.global).reserved_bytes.current() as usize
    }

    /// What was asked for by now, if `bytes` more are.
    pub(crate) fn demand(&self, bytes: usize) -> Demand {
        self.with_all(|global, shards| {
            let at = Quantity::RequestedBytes as usize;
            let now: i64 = shards.iter().map(|shard| shard.now()[2][at]).sum();
            let peak = global.peak(Quantity::RequestedBytes).max(now + bytes as i64) as usize;
            Demand { peak, requests: global.requests(shards) }
        })
    }

    pub(crate) fn searches(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
}

impl<B: Backend> Drop for Core<B> {
    fn drop(&mut self) {
        let slow = self.slow.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Pages are unmapped here, and what nobody told the allocator of may still use them.
        if slow.arenas.pages > 0
            && let Err(error) = self.backend.synchronize_device()
            && !self.backend.is_lost(&error)
        {
            // Better that the addresses stay for good than that work runs into them.
            std::mem::forget(std::mem::take(&mut slow.arenas));
        }
    }
}
