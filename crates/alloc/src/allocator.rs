//! The allocator that callers hold.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::books::Books;
use crate::config::check_fraction;
use crate::core::{Core, Limit};
use crate::mem_pool::{Pool, Routes};
use crate::rules::{PoolKind, round_size};
use crate::shard::{Shard, lock};
use crate::snapshot::ordinal;
use crate::state::{Granted, Request, State};
use crate::stats::{Counters, Quantity};
use crate::sync::Lasting;
use crate::table::Table;
use crate::trace::Step;
use crate::{
    AllocError, AllocatorConfig, Backend, Block, ConfigError, MemoryStats, OutOfMemory,
    SegmentInfo, Snapshot, TraceAction, TraceConfig, summary,
};

/// A caching allocator for the memory of one device. Clones share it.
///
/// Freed memory is kept and used again at once by the stream it was allocated for; only a request
/// that nothing cached fits reaches the backend. Work on that stream may use a block until the
/// block is dropped, other streams' too if [`Block::record_stream`] was told.
///
/// Each stream has books and a lock of its own. Calls of the backend that can take long (allocate,
/// map, free, wait) are made without those locks. Only one thread at a time makes them.
pub struct CachingAllocator<B: Backend> {
    shared: Arc<Shared<B>>,
}

pub(crate) struct Shared<B: Backend> {
    pub(crate) core: Arc<Core<B>>,
    table: Table<B>,
    /// Shards for which the table has no room.
    others: Mutex<Vec<Arc<Shard<B>>>>,
    pub(crate) config: Mutex<AllocatorConfig>,
    /// Private pools that may still be alive.
    pub(crate) pools: Mutex<Vec<Weak<Pool<B>>>>,
    pub(crate) next_pool: AtomicU64,
    pub(crate) routes: Routes<B>,
}

/// Whether the cache was searched for a request that is no hit.
struct Searched(bool);

/// What a block is made of: the books that have it, and what they say.
pub(crate) type Found<B> = (Lasting<Books<B>>, Granted);

impl<B: Backend> CachingAllocator<B> {
    /// An allocator with an empty cache. Does not call the backend.
    pub fn new(backend: B, config: AllocatorConfig) -> Self {
        let shared = Shared {
            core: Arc::new(Core::new(backend, &config)),
            table: Table::new(),
            others: Mutex::default(),
            config: Mutex::new(config),
            pools: Mutex::default(),
            next_pool: AtomicU64::new(0),
            routes: Routes::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Memory of at least `bytes` bytes for work on `stream`. A request of 0 bytes gets an empty
    /// block at address 0.
    ///
    /// # Errors
    /// [`AllocError`]. Whatever it is, blocks that live and later requests are not affected.
    #[inline]
    #[track_caller]
    pub fn malloc(&self, bytes: usize, stream: &B::Stream) -> Result<Block<B>, AllocError> {
        let shared = &self.shared;
        let (id, site) = (B::stream_id(stream), Location::caller());
        let (books, granted) = match shared.hit(bytes, id, site) {
            Ok(found) => found,
            Err(Searched(searched)) => shared.malloc(bytes, stream, site, searched)?,
        };
        Ok(Block::new(books, granted, bytes, id))
    }

    /// Gives all memory that no block uses back to the backend, after waiting for the streams
    /// that still use freed blocks (`torch.cuda.empty_cache`).
    pub fn empty_cache(&self) {
        let core = &self.shared.core;
        let mut slow = lock(&core.slow);
        self.shared.synchronize_events();
        self.shared.release_cached(&mut slow);
        if !core.is_capturing() {
            core.backend.retry_refused();
        }
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.shared.core.backend
    }

    /// The options in use.
    #[must_use]
    pub fn config(&self) -> AllocatorConfig {
        lock(&self.shared.config).clone()
    }

    /// Changes the options for later requests; what is cached stays.
    pub fn set_config(&self, config: AllocatorConfig) {
        let core = &self.shared.core;
        let mut slow = lock(&core.slow);
        slow.limit = Limit::new(config.memory_fraction);
        // Held to the end, so that no new shard starts with the old options.
        let mut current = lock(&self.shared.config);
        *current = config;
        let shards = core.all_shards();
        for shard in &shards {
            shard.lock().set_config(core.in_force(&current, shard.pool));
        }
        drop((current, slow));
    }

    /// Lets at most this share of the device's memory be reserved
    /// (`torch.cuda.set_per_process_memory_fraction`). 1 means no limit.
    ///
    /// # Errors
    /// [`ConfigError::InvalidValue`] unless it is between 0 and 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), ConfigError> {
        let memory_fraction = Some(check_fraction(fraction)?);
        self.set_config(AllocatorConfig { memory_fraction, ..self.config() });
        Ok(())
    }

    /// Calls `observer` whenever a request fails for want of memory, before the request returns
    /// and without any lock, so that it may use the allocator; it is not told of its own requests.
    /// It is kept as long as the allocator, so one that owns a clone keeps that alive for good.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.shared.core.hooks.add_observer(Arc::new(observer));
    }

    /// Calls `callback` when nothing cached fits a request, before the backend is asked. It may
    /// drop blocks, and answers whether it did. No lock is held. It is not called for its own
    /// requests.
    pub fn on_cache_miss(&self, callback: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.core.hooks.add_callback(Arc::new(callback));
    }

    /// Calls `follower` whenever memory that nobody uses goes to another address: with the former
    /// one, the new one, and how many bytes, which need not be whole pages. What was known of the
    /// former address, such as who used that memory last, is from then on known of the new one.
    ///
    /// The allocator is in the middle of a request, or of a block's drop: `follower` must not call
    /// it, nor drop a block.
    pub fn on_remap(&self, follower: impl Fn(u64, u64, usize) + Send + Sync + 'static) {
        self.shared.core.hooks.add_follower(Arc::new(follower));
    }

    // ---- statistics ---------------------------------------------------------------------

    /// All statistics (`torch.cuda.memory_stats`), at one moment.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        let max_split_size = self.config().max_split_size;
        self.shared.core.with_all(|global, shards| {
            if shards.iter().any(|shard| shard.over) {
                global.raise_peaks(shards);
            }
            let mut sum = global.retired.clone();
            shards.iter().for_each(|shard| sum.add(shard));
            global.stats(&sum, max_split_size)
        })
    }

    /// Bytes in callers' hands (`torch.cuda.memory_allocated`).
    #[must_use]
    pub fn memory_allocated(&self) -> usize {
        self.shared.allocated()
    }

    /// Bytes held of the backend (`torch.cuda.memory_reserved`).
    #[must_use]
    pub fn memory_reserved(&self) -> usize {
        self.shared.core.reserved()
    }

    /// Starts all peaks anew from what is current (`torch.cuda.reset_peak_memory_stats`).
    pub fn reset_peak_stats(&self) {
        self.shared.core.with_all(|global, shards| global.reset_peak(shards));
    }

    /// Starts all sums and counts anew from 0 (`torch.cuda.reset_accumulated_memory_stats`).
    pub fn reset_accumulated_stats(&self) {
        self.shared.core.with_all(|global, shards| global.reset_accumulated(shards));
    }

    /// The statistics as a table (`torch.cuda.memory_summary`).
    #[must_use]
    pub fn memory_summary(&self) -> String {
        summary::table(&self.backend().device(), &self.memory_stats())
    }

    /// All segments and their blocks, by address (`torch.cuda.memory_snapshot`).
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let mut segments = self.shared.core.report().0;
        let device = ordinal(&self.backend().device());
        segments.iter_mut().for_each(|segment| segment.device = device);
        segments
    }

    /// All segments, what happened, and the options, to look at or to write as a file
    /// (`torch.cuda.memory._snapshot`).
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        let core = &self.shared.core;
        let action = TraceAction::Snapshot;
        let site = Some(Location::caller());
        core.tracer.record(|| Step { action, address: 0, size: 0, stream: 0, site });
        let (segments, trace) = core.report();
        Snapshot::of_device(&core.backend.device(), segments, trace, self.config())
    }

    /// Records from now on what happens, or no longer with `None`: what was recorded stays until
    /// it is started again (`torch.cuda.memory._record_memory_history`).
    ///
    /// ```
    /// # use warpline_alloc::{AllocatorConfig, TraceConfig, cuda::{CudaAllocator, CudaBackend}};
    /// # use warpline_cuda_sys_safe::{owned::Stream, sim::SimConfig, Driver};
    /// # let driver: std::sync::Arc<dyn Driver> = SimConfig::new(1).build();
    /// # let stream = Stream::default_of(&driver, 0);
    /// # let allocator = CudaAllocator::new(CudaBackend::new(driver, 0), AllocatorConfig::default());
    /// allocator.record_memory_history(Some(TraceConfig::default()));
    /// drop(allocator.malloc(4000, &stream)?);
    /// let steps: Vec<_> = allocator.snapshot().device_traces[0].iter().map(|e| e.action.name()).collect();
    /// assert_eq!(steps, ["segment_map", "alloc", "free_requested", "free_completed", "snapshot"]);
    /// # Ok::<(), warpline_alloc::AllocError>(())
    /// ```
    pub fn record_memory_history(&self, config: Option<TraceConfig>) {
        match config {
            Some(config) => self.shared.core.tracer.start(config),
            None => self.shared.core.tracer.stop(),
        }
    }

    /// Sets a mark in what is recorded.
    #[track_caller]
    pub fn annotate(&self, text: &str) {
        let tracer = &self.shared.core.tracer;
        if tracer.is_on() {
            tracer.ring().annotate(text, Location::caller());
        }
    }

    /// Attaches a text to all that is recorded from now on
    /// (`torch.cuda.memory._set_memory_metadata`).
    pub fn set_memory_metadata(&self, text: &str) {
        self.shared.core.tracer.ring().set_metadata(text);
    }
}

impl<B: Backend> CachingAllocator<B> {
    pub(crate) fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }
}

impl<B: Backend> Shared<B> {
    /// What a request gets that the stream's cache serves; an error if it does not, or something
    /// else stands against it. All that a hit does is inlined here, by force, and this nowhere: so
    /// it takes as long whoever calls. Calls within it would be a tenth of that.
    #[inline(never)]
    fn hit(
        &self,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
    ) -> Result<Found<B>, Searched> {
        if self.routes.exist() {
            return Err(Searched(false));
        }
        let (books, _) = self.table.find(stream).ok_or(Searched(false))?;
        if bytes == 0 {
            return Ok((Lasting::clone(books), Granted::NOTHING));
        }
        let mut locked = books.lock_parked();
        let state = &mut *locked;
        if state.stream_id != stream || !state.config.caching {
            return Err(Searched(false));
        }
        if !state.pending.is_empty() && !self.core.is_capturing() {
            state.poll_events(&self.core.backend);
        }
        let granted = match state.take_parked(bytes, site) {
            Some(granted) => granted,
            None => {
                let size = round_size(&state.config, bytes).map_err(|_| Searched(false))?;
                let kind = PoolKind::of(&state.config, size);
                let request = Request { kind, requested: bytes, size, site };
                state.take_fit(request).ok_or(Searched(true))?
            }
        };
        let over = state.counters.over;
        if state.is_stitched(granted.block) && self.core.hooks.are_followed() {
            // It was parked, and what is known of its memory had gone home.
            let homes = state.homes_of(granted.block);
            drop(locked);
            homes.iter().for_each(|&(to, from, bytes)| self.core.hooks.moved(from, to, bytes));
        } else {
            drop(locked);
        }
        if over {
            self.core.raise_peaks();
        }
        Ok((Lasting::clone(books), granted))
    }

    /// What a request does that is no hit.
    #[cold]
    fn malloc(
        &self,
        bytes: usize,
        stream: &B::Stream,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<Found<B>, AllocError> {
        if bytes == 0 {
            let shard = self.shard_for(stream);
            return Ok((Lasting::clone(&shard.books), Granted::NOTHING));
        }
        let id = B::stream_id(stream);
        if let Some(pool) = self.routes.find(id) {
            let shard = pool.shard(&self.core, &self.config, stream);
            if let Some(found) = self.malloc_in(&shard, bytes, id, site, false)? {
                return Ok(found);
            }
        }
        loop {
            let shard = self.shard_for(stream);
            if let Some(found) = self.malloc_in(&shard, bytes, id, site, searched)? {
                return Ok(found);
            }
        }
    }

    /// `None` if the shard serves another stream by now.
    pub(crate) fn malloc_in(
        &self,
        shard: &Arc<Shard<B>>,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<Option<Found<B>>, AllocError> {
        let mut state = shard.lock();
        if state.stream_id != stream {
            return Ok(None);
        }
        let rounded = round_size(&state.config, bytes)?;
        let caching = state.config.caching;
        let size = if caching { rounded } else { bytes };
        let kind = PoolKind::of(&state.config, size);
        let request = Request { kind, requested: bytes, size, site };
        if !state.pending.is_empty() && !self.core.is_capturing() {
            state.poll_events(&self.core.backend);
        }
        let hit = match caching {
            true if searched => state.take_fit_again(request),
            true => state.take_fit(request),
            false => None,
        };
        let over = state.counters.over;
        if let Some(granted) = hit {
            drop(state);
            if over {
                self.core.raise_peaks();
            }
            return Ok(Some((Lasting::clone(&shard.books), granted)));
        }
        // Meanwhile the shard must not serve another stream.
        state.misses += 1;
        drop(state);
        self.core.waiting.fetch_add(bytes, Ordering::Relaxed);
        let found = self.miss(shard, request);
        self.core.waiting.fetch_sub(bytes, Ordering::Relaxed);
        shard.books.lock_parked().misses -= 1;
        let (shard, granted) = found?;
        self.core.raise_peaks();
        Ok(Some((Lasting::clone(&shard.books), granted)))
    }

    /// The shard that serves a stream, a new one if need be.
    #[cold]
    fn shard_for(&self, stream: &B::Stream) -> Arc<Shard<B>> {
        let id = B::stream_id(stream);
        let mut others = lock(&self.others);
        let served = self.table.find(id).map(|(_, shard)| shard);
        let known = served.or_else(|| others.iter().find(|s| s.lock().stream_id == id));
        if let Some(shard) = known.filter(|shard| shard.lock().stream_id == id) {
            return Arc::clone(shard);
        }
        for shard in self.table.iter() {
            let mut state = shard.lock();
            if state.is_vacant() {
                state.serve(stream.clone());
                self.table.rename(shard, id);
                return Arc::clone(shard);
            }
        }
        let mut state =
            State::new(stream.clone(), Arc::clone(&self.core.clock), Arc::clone(&self.core.tracer));
        let config = lock(&self.config);
        state.set_config(self.core.in_force(&config, 0));
        let shard = self.core.register(Shard::new(&self.core, state, 0));
        drop(config);
        if !self.table.insert(id, &shard) {
            others.push(Arc::clone(&shard));
        }
        shard
    }

    pub(crate) fn allocated(&self) -> usize {
        let at = Quantity::AllocatedBytes as usize;
        let of = |shard: &Counters| shard.current[0][at] + shard.current[1][at];
        self.core.with_all(|_, shards| shards.iter().map(|s| of(s)).sum::<i64>()) as usize
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::SeqCst);
        // They keep the core alive.
        let left = std::mem::take(&mut *lock(&self.core.left));
        drop(left);
        let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.table.iter().chain(others.iter()).for_each(Shard::retire);
    }
}

impl<B: Backend> Clone for CachingAllocator<B> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<B: Backend> fmt::Debug for CachingAllocator<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachingAllocator")
            .field("device", &self.backend().device())
            .field("reserved", &self.memory_reserved())
            .field("allocated", &self.memory_allocated())
            .finish_non_exhaustive()
    }
}
