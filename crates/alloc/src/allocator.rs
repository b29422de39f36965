//! The allocator: what a request does, from the cache to the last resort.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::check_fraction;
use crate::rules::{PoolKind, round_size, segment_size};
use crate::state::{Granted, Request, State};
use crate::{
    AllocError, AllocatorConfig, Backend, Block, ConfigError, MemoryStats, OutOfMemory,
    SegmentInfo, events, summary,
};

/// A caching allocator for the memory of one device, with the rules of PyTorch's. Clones share it.
///
/// Freed memory is kept and used again at once by the stream it was allocated for; only a request
/// that nothing cached fits reaches the backend. Work on that stream may use a block until the
/// block is dropped, other streams' too if [`Block::record_stream`] was told.
///
/// Calls of the backend that can take long (allocate, free, wait) are made without the lock that
/// allocation from the cache takes. Only one thread at a time makes them.
pub struct CachingAllocator<B: Backend> {
    shared: Arc<Shared<B>>,
}

type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;
type Callback = Arc<dyn Fn() -> bool + Send + Sync>;

pub(crate) struct Shared<B: Backend> {
    backend: B,
    /// Held while the backend is asked for memory or given it back. Taken before `state`, never
    /// while callers' code runs.
    slow: Mutex<Limit>,
    state: Mutex<State<B>>,
    observers: Mutex<Vec<Observer>>,
    callbacks: Mutex<Vec<Callback>>,
}

/// How much may be reserved.
struct Limit {
    fraction: Option<f64>,
    /// The fraction in bytes, once it was needed.
    bytes: Option<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The books are consistent between any two calls that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend> CachingAllocator<B> {
    /// An allocator with an empty cache. Does not call the backend.
    pub fn new(backend: B, config: AllocatorConfig) -> Self {
        let limit = Limit { fraction: effective(config.memory_fraction), bytes: None };
        let shared = Shared {
            backend,
            state: Mutex::new(State::new(config)),
            slow: Mutex::new(limit),
            observers: Mutex::default(),
            callbacks: Mutex::default(),
        };
        shared.update_collects(&lock(&shared.slow));
        Self { shared: Arc::new(shared) }
    }

    /// Memory of at least `bytes` bytes for work on `stream`. A request of 0 bytes gets an empty
    /// block at address 0.
    ///
    /// # Errors
    /// [`AllocError`]. Whatever it is, blocks that live and later requests are not affected.
    #[inline]
    pub fn malloc(&self, bytes: usize, stream: &B::Stream) -> Result<Block<B>, AllocError> {
        let shared = &self.shared;
        let stream = B::stream_id(stream);
        if bytes == 0 {
            return Ok(Block::empty(shared, stream));
        }
        let mut state = shared.state();
        let rounded = round_size(&state.config, bytes)?;
        let size = if state.config.caching { rounded } else { bytes };
        let request = Request { stream, kind: PoolKind::of(size), requested: bytes, size };
        if !state.pending.is_empty() {
            state.poll_events(&shared.backend);
        }
        if state.config.caching
            && let Some(granted) = state.take_fit(&request)
        {
            drop(state);
            return Ok(Block::new(shared, granted, &request));
        }
        drop(state);
        let granted = shared.miss(&request)?;
        Ok(Block::new(shared, granted, &request))
    }

    /// Gives all memory that no block uses back to the backend, after waiting for the streams
    /// that still use freed blocks (`torch.cuda.empty_cache`).
    pub fn empty_cache(&self) {
        let _slow = lock(&self.shared.slow);
        self.shared.synchronize_events();
        self.shared.release_cached();
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.shared.backend
    }

    /// The options in use.
    #[must_use]
    pub fn config(&self) -> AllocatorConfig {
        self.shared.state().config.clone()
    }

    /// Changes the options for later requests; what is cached stays.
    pub fn set_config(&self, config: AllocatorConfig) {
        let mut slow = lock(&self.shared.slow);
        *slow = Limit { fraction: effective(config.memory_fraction), bytes: None };
        self.shared.state().config = config;
        self.shared.update_collects(&slow);
    }

    /// Lets at most this share of the device's memory be reserved
    /// (`torch.cuda.set_per_process_memory_fraction`). 1 means no limit.
    ///
    /// # Errors
    /// [`ConfigError::InvalidValue`] unless it is between 0 and 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), ConfigError> {
        let fraction = Some(check_fraction(fraction)?);
        let mut slow = lock(&self.shared.slow);
        *slow = Limit { fraction: effective(fraction), bytes: None };
        self.shared.state().config.memory_fraction = fraction;
        self.shared.update_collects(&slow);
        Ok(())
    }

    /// Calls `observer` whenever a request fails for want of memory, before the request returns
    /// and without any lock, so that it may use the allocator.
    pub fn on_out_of_memory(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        lock(&self.shared.observers).push(Arc::new(observer));
    }

    /// Calls `callback` when nothing cached fits a request, before the backend is asked. It may
    /// drop blocks, and answers whether it did. No lock is held.
    pub fn on_cache_miss(&self, callback: impl Fn() -> bool + Send + Sync + 'static) {
        lock(&self.shared.callbacks).push(Arc::new(callback));
    }

    // ---- statistics ---------------------------------------------------------------------

    /// All statistics (`torch.cuda.memory_stats`).
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        let state = self.shared.state();
        state.counters.stats(state.config.max_split_size)
    }

    /// Bytes in callers' hands (`torch.cuda.memory_allocated`).
    #[must_use]
    pub fn memory_allocated(&self) -> usize {
        self.shared.state().counters.allocated_bytes.current() as usize
    }

    /// Bytes held of the backend (`torch.cuda.memory_reserved`).
    #[must_use]
    pub fn memory_reserved(&self) -> usize {
        self.shared.state().counters.reserved_bytes.current() as usize
    }

    /// Starts all peaks anew from what is current (`torch.cuda.reset_peak_memory_stats`).
    pub fn reset_peak_stats(&self) {
        self.shared.state().counters.reset_peak();
    }

    /// Starts all sums and counts anew from 0 (`torch.cuda.reset_accumulated_memory_stats`).
    pub fn reset_accumulated_stats(&self) {
        self.shared.state().counters.reset_accumulated();
    }

    /// The statistics as a table (`torch.cuda.memory_summary`).
    #[must_use]
    pub fn memory_summary(&self) -> String {
        summary::table(&self.shared.backend.device(), &self.memory_stats())
    }

    /// All segments and their blocks, by address (`torch.cuda.memory_snapshot`).
    #[must_use]
    pub fn snapshot(&self) -> Vec<SegmentInfo> {
        self.shared.state().snapshot()
    }
}

/// A fraction of 1 is no limit.
fn effective(fraction: Option<f64>) -> Option<f64> {
    fraction.filter(|fraction| *fraction < 1.0)
}

impl<B: Backend> Shared<B> {
    #[inline]
    pub(crate) fn state(&self) -> MutexGuard<'_, State<B>> {
        lock(&self.state)
    }

    #[inline]
    pub(crate) fn free(&self, block: u32) {
        let mut state = self.state();
        state.free(&self.backend, block);
        if !state.config.caching {
            let released = state.take_cached();
            drop(state);
            drop(released);
        }
    }

    /// What a request does that nothing cached fits.
    #[cold]
    fn miss(&self, request: &Request) -> Result<Granted, AllocError> {
        if self.run_callbacks()
            && let Some(granted) = self.search(State::take_fit, request)
        {
            return Ok(granted);
        }
        let mut slow = lock(&self.slow);
        // Another thread may have brought memory while this one waited.
        if let Some(granted) = self.search(State::take_fit_again, request) {
            return Ok(granted);
        }
        let limit = self.limit(&mut slow)?;
        self.collect_garbage(limit);
        if let Some(granted) = self.grow(request, limit)? {
            return Ok(granted);
        }
        if self.release_oversize(request)
            && let Some(granted) = self.grow(request, limit)?
        {
            return Ok(granted);
        }
        self.synchronize_events();
        if let Some(granted) = self.search(State::take_fit_again, request) {
            return Ok(granted);
        }
        self.release_cached();
        self.state().counters.num_alloc_retries += 1;
        if let Some(granted) = self.grow(request, limit)? {
            return Ok(granted);
        }
        let facts = self.out_of_memory(request, limit);
        drop(slow);
        let observers = lock(&self.observers).clone();
        for observer in observers {
            observer(&facts);
        }
        Err(AllocError::OutOfMemory(Box::new(facts)))
    }

    fn search(
        &self,
        how: impl Fn(&mut State<B>, &Request) -> Option<Granted>,
        request: &Request,
    ) -> Option<Granted> {
        let mut state = self.state();
        if state.config.caching { how(&mut state, request) } else { None }
    }

    /// Asks the backend for a segment. `None` if it, or the limit, says that there is no memory.
    fn grow(&self, request: &Request, limit: Option<usize>) -> Result<Option<Granted>, AllocError> {
        let bytes = {
            let mut state = self.state();
            let bytes = if state.config.caching {
                segment_size(&state.config, request.size)
            } else {
                request.size
            };
            let overflow = AllocError::SizeOverflow { what: "reserved memory", bytes };
            let reserved = state.reserved.checked_add(bytes).ok_or(overflow)?;
            if limit.is_some_and(|limit| reserved > limit) {
                return Ok(None);
            }
            state.reserved = reserved;
            bytes
        };
        match self.backend.alloc(bytes) {
            Ok(memory) => {
                let address = B::address(&memory);
                Ok(Some(self.state().add_segment(memory, address, bytes, request)))
            }
            Err(error) => {
                self.state().reserved -= bytes;
                if self.backend.is_out_of_memory(&error) {
                    return Ok(None);
                }
                Err(AllocError::from_backend(bytes, error))
            }
        }
    }

    fn run_callbacks(&self) -> bool {
        let callbacks = lock(&self.callbacks).clone();
        // Each of them is called, whatever the others answer.
        callbacks.iter().filter(|callback| callback()).count() > 0
    }

    /// The memory fraction in bytes.
    fn limit(&self, slow: &mut Limit) -> Result<Option<usize>, AllocError> {
        if let Some(fraction) = slow.fraction
            && slow.bytes.is_none()
        {
            let (_, total) =
                self.backend.mem_info().map_err(|error| AllocError::from_backend(0, error))?;
            slow.bytes = Some((fraction * total as f64) as usize);
        }
        Ok(slow.bytes)
    }

    fn update_collects(&self, slow: &Limit) {
        let mut state = self.state();
        state.collects =
            slow.fraction.is_some() && state.config.garbage_collection_threshold.is_some();
    }

    fn collect_garbage(&self, limit: Option<usize>) {
        let mut state = self.state();
        if let (Some(limit), Some(share)) = (limit, state.config.garbage_collection_threshold) {
            let garbage = state.take_garbage((share * limit as f64) as usize);
            drop(state);
            drop(garbage);
        }
    }

    fn release_oversize(&self, request: &Request) -> bool {
        let mut released = Vec::new();
        self.state().take_oversize(request, &mut released)
        // `released` goes back to the backend here, after the lock.
    }

    fn release_cached(&self) {
        let released = self.state().take_cached();
        drop(released);
    }

    /// Waits for all pending events without the lock, then frees what waited for them.
    fn synchronize_events(&self) {
        let mut done = Vec::new();
        let mut queues = {
            let mut state = self.state();
            state.counters.num_sync_all_streams += 1;
            state.pending.take(&self.backend, &mut done)
        };
        events::wait(&self.backend, &mut queues, &mut done);
        let mut state = self.state();
        state.events_came(&mut done);
        state.pending.put_back(queues);
    }

    fn out_of_memory(&self, request: &Request, limit: Option<usize>) -> OutOfMemory {
        let memory = self.backend.mem_info().ok();
        let device = self.backend.device();
        let mut state = self.state();
        state.counters.num_ooms += 1;
        OutOfMemory {
            device,
            requested: request.requested,
            segment: if state.config.caching {
                segment_size(&state.config, request.size)
            } else {
                request.size
            },
            free: memory.map(|(free, _)| free),
            total: memory.map(|(_, total)| total),
            limit,
            allocated: state.counters.allocated_bytes.current() as usize,
            reserved: state.reserved,
            ..OutOfMemory::default()
        }
    }
}

impl<B: Backend> Drop for Shared<B> {
    fn drop(&mut self) {
        // No block is left, but other streams may still use freed ones.
        self.synchronize_events();
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
            .field("device", &self.shared.backend.device())
            .field("reserved", &self.memory_reserved())
            .field("allocated", &self.memory_allocated())
            .finish_non_exhaustive()
    }
}
