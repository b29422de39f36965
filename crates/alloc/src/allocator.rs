//! The allocator that programs use: requests, options, statistics and history of one device.
//!
//! The problem: a driver takes milliseconds to free memory, and may wait for the device, while a program allocates and
//! frees thousands of times per second. The approach: freed memory stays in a cache. Each stream has a part of the
//! cache, called a shard, with a lock of its own. A request goes through up to three stages:
//!
//! 1. `malloc.rs` finds the stream's shard without a lock and searches the shard (a hit). A block
//!    that is dropped returns to its shard, so most requests end here.
//! 2. `miss.rs` serves requests that fit into no free block of the shard. One miss runs at a time.
//! 3. `policy/` gets memory from the backend. [`Policy`](crate::Policy) selects the rules.
//!
//! Limits: a free block serves another stream than its shard's only as the last attempt of a miss, after the policy has
//! failed. The default policy moves free pages between streams before that (`policy/pages/migrate.rs`). Reading
//! consistent statistics locks all shards.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::Mutex;
use warpline_sync::atomic::AtomicU64;

use crate::config::check_fraction;
use crate::core::Core;
use crate::malloc::CacheSearched;
use crate::policy::Policies;
use crate::routes::Routes;
use crate::shard::StreamTable;
use crate::shared::AllocatorState;
use crate::snapshot::ordinal;
use crate::sync::lock;
use crate::trace::TraceStep;
use crate::{
    AllocError, AllocatorConfig, Backend, Block, ConfigError, MemoryStats, OutOfMemory,
    SegmentInfo, Snapshot, TraceAction, TraceConfig, source, summary,
};

/// A caching allocator for the memory of one device. Clones share the allocator.
///
/// The stream for which memory was allocated can reuse the memory as soon as it is freed. A request reaches the backend
/// only if the cache cannot serve it. Work on that stream may use a block until the block is dropped. Work on other
/// streams may use it after [`Block::record_stream`](crate::Block::record_stream).
///
/// Each stream has a shard with a lock of its own. Backend calls that can take long (allocate, map, free, wait) run
/// without a shard's lock. The allocator serves one miss at a time. A free that returns its memory to the backend,
/// because caching is off or its pool was dropped, can run at the same time as a miss.
pub struct CachingAllocator<B: Backend> {
    shared: Arc<AllocatorState<B>>,
}

impl<B: Backend> CachingAllocator<B> {
    /// Creates an allocator with an empty cache. Does not call the backend.
    pub fn new(backend: B, config: AllocatorConfig) -> Self {
        let shared = AllocatorState {
            core: Arc::new(Core::new(backend, &config, Box::new(Policies::new()))),
            table: StreamTable::new(),
            overflow: Mutex::default(),
            config: Mutex::new(config),
            pools: Mutex::default(),
            next_pool: AtomicU64::new(0),
            routes: Routes::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Allocates at least `bytes` bytes for work on `stream`. A request of 0 bytes returns an empty
    /// block at address 0.
    ///
    /// # Errors
    /// After any error, existing blocks and later requests are not affected.
    /// - [`AllocError::OutOfMemory`] if neither the cache nor the backend has the memory.
    /// - [`AllocError::TooLarge`] if the request is 1 EB or more.
    /// - [`AllocError::SizeOverflow`] if the reserved memory and the new memory together exceed
    ///   `usize::MAX` bytes.
    /// - [`AllocError::InsideSource`] in the source of a memory pool, or in the drop of foreign
    ///   memory. Only requests of 0 bytes succeed there, and, while no route to a pool exists,
    ///   requests that the stream's cache serves.
    /// - [`AllocError::Backend`] if the backend fails for another reason.
    #[inline]
    #[track_caller]
    pub fn malloc(&self, bytes: usize, stream: &B::Stream) -> Result<Block<B>, AllocError> {
        let shared = self.shared();
        let (id, site) = (B::stream_id(stream), Location::caller());
        let (cell, allocated) = match shared.hit(bytes, id, site) {
            Ok(found) => found,
            Err(CacheSearched(searched)) => shared.malloc_slow(bytes, stream, site, searched)?,
        };
        Ok(Block::new(cell, allocated, bytes, id))
    }

    /// Releases all unused memory outside the private pools to the backend, after waiting for the streams that still
    /// use freed blocks (`torch.cuda.empty_cache`). Releases nothing during a capture. Does nothing if it is called by
    /// the source of a pool or by the drop of foreign memory.
    pub fn empty_cache(&self) {
        let core = &self.shared.core;
        if source::is_inside() {
            return; // another call of this thread has the lock
        }
        let mut policies = lock(&core.policies);
        self.shared.synchronize_events();
        policies.release_cached(core);
        if !core.is_capturing() {
            core.backend.retry_refused();
        }
    }

    /// Returns the backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.shared.core.backend
    }

    /// Returns the current options.
    #[must_use]
    pub fn config(&self) -> AllocatorConfig {
        lock(&self.shared.config).clone()
    }

    /// Changes the options for later requests. Cached memory stays.
    pub fn set_config(&self, config: AllocatorConfig) {
        let core = &self.shared.core;
        // Hold this lock to the end, so that no new shard starts with the old options.
        let mut current = lock(&self.shared.config);
        *lock(&core.memory_fraction) = config.memory_fraction;
        *current = config;
        let shards = core.all_shards();
        for shard in &shards {
            shard.lock().set_config(core.in_force(&current, shard.pool));
        }
        drop(current);
    }

    /// Limits the share of the device's memory that may be reserved
    /// (`torch.cuda.set_per_process_memory_fraction`). 1 means no limit.
    ///
    /// # Errors
    /// [`ConfigError::InvalidValue`] if `fraction` is not between 0 and 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), ConfigError> {
        let memory_fraction = Some(check_fraction(fraction)?);
        self.set_config(AllocatorConfig { memory_fraction, ..self.config() });
        Ok(())
    }

    /// Adds an observer, which is called whenever a request fails because memory is exhausted,
    /// before the request returns. No lock is held, so the observer may use the allocator; its
    /// requests call neither observers nor callbacks. The allocator keeps the observer, so an
    /// observer that owns a clone of the allocator keeps the allocator alive forever.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.shared.core.hooks.add_observer(Arc::new(observer));
    }

    /// Adds a callback, which is called when the cache cannot serve a request, before the backend
    /// is called. The callback may drop blocks, and returns whether it did. No lock is held, so the
    /// callback may use the allocator; its requests call neither callbacks nor observers.
    pub fn on_cache_miss(&self, callback: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.core.hooks.add_callback(Arc::new(callback));
    }

    /// Adds an observer, which is called whenever unused memory moves to another address: with the former address, the
    /// new address, and the number of bytes, which need not be whole pages. Anything recorded about the former address,
    /// such as its last user, then applies to the new address.
    ///
    /// The call happens during a request or the drop of a block: `observer` must neither call the
    /// allocator nor drop a block.
    pub fn on_remap(&self, observer: impl Fn(u64, u64, usize) + Send + Sync + 'static) {
        self.shared.core.hooks.add_remap_observer(Arc::new(observer));
    }

    // ---- statistics ---------------------------------------------------------------------

    /// Returns all statistics at one moment (`torch.cuda.memory_stats`).
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

    /// Returns the number of bytes in live blocks (`torch.cuda.memory_allocated`).
    #[must_use]
    pub fn memory_allocated(&self) -> usize {
        self.shared.allocated()
    }

    /// Returns the number of bytes reserved from the backend (`torch.cuda.memory_reserved`).
    #[must_use]
    pub fn memory_reserved(&self) -> usize {
        self.shared.core.reserved()
    }

    /// Resets all peaks to the current values (`torch.cuda.reset_peak_memory_stats`).
    pub fn reset_peak_stats(&self) {
        self.shared.core.with_all(|global, shards| global.reset_peak(shards));
    }

    /// Resets all sums and counts to 0 (`torch.cuda.reset_accumulated_memory_stats`).
    pub fn reset_accumulated_stats(&self) {
        self.shared.core.with_all(|global, shards| global.reset_accumulated(shards));
    }

    /// Returns the statistics as a table (`torch.cuda.memory_summary`).
    #[must_use]
    pub fn memory_summary(&self) -> String {
        summary::table(&self.backend().device(), &self.memory_stats())
    }

    /// Returns all segments, mapped ranges of arenas and aliases, with their blocks, in order of
    /// address (`torch.cuda.memory_snapshot`).
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let mut segments = self.shared.core.report().0;
        let device = ordinal(&self.backend().device());
        segments.iter_mut().for_each(|segment| segment.device = device);
        segments
    }

    /// Returns the [`segments`](Self::segments), the recorded history and the options, to inspect or
    /// to write to a file (`torch.cuda.memory._snapshot`).
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        let core = &self.shared.core;
        let action = TraceAction::Snapshot;
        let site = Some(Location::caller());
        core.tracer.record(|| TraceStep { action, address: 0, size: 0, stream: 0, site });
        let (segments, trace) = core.report();
        Snapshot::of_device(&core.backend.device(), segments, trace, self.config())
    }

    /// Starts to record the allocator's history, or stops with `None`. Entries recorded before a
    /// stop stay until the next start (`torch.cuda.memory._record_memory_history`).
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

    /// Adds an annotation to the recorded history.
    #[track_caller]
    pub fn annotate(&self, text: &str) {
        let tracer = &self.shared.core.tracer;
        if tracer.is_on() {
            tracer.ring().annotate(text, Location::caller());
        }
    }

    /// Attaches `text` to the entries recorded from now on, until the history is started again
    /// (`torch.cuda.memory._set_memory_metadata`).
    pub fn set_memory_metadata(&self, text: &str) {
        self.shared.core.tracer.ring().set_metadata(text);
    }
}

impl<B: Backend> CachingAllocator<B> {
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<AllocatorState<B>> {
        &self.shared
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
