//! The cache of page-locked host memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;

use crate::events::{self, PendingEvents};
use crate::stats::Count;
use crate::{AllocError, HostBackend, Stat};

/// A cache of page-locked host memory, which is dear to allocate. Clones share it.
///
/// Sizes are rounded up to a power of two. A block is used again only once all streams that were
/// [recorded](PinnedBlock::record_use) as using it are done.
pub struct HostCache<H: HostBackend> {
    shared: Arc<Shared<H>>,
}

struct Shared<H: HostBackend> {
    backend: H,
    state: Mutex<State<H>>,
}

struct State<H: HostBackend> {
    /// Free memory of 2^i bytes.
    free: [Vec<H::HostMemory>; usize::BITS as usize],
    pending: PendingEvents<H>,
    /// Memory that streams still use; a token is an index.
    waiting: Vec<Option<Waiting<H::HostMemory>>>,
    unused: Vec<u32>,
    active_requests: Count,
    active_bytes: Count,
    allocations: Count,
    allocated_bytes: Count,
    alloc_time: DurationStat,
    free_time: DurationStat,
}

struct Waiting<M> {
    memory: M,
    size: usize,
    events: usize,
}

/// How long a kind of call took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStat {
    /// All calls together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest.
    pub min: u64,
    /// How many there were.
    pub count: u64,
}

impl DurationStat {
    /// The mean.
    #[must_use]
    pub fn avg(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }

    fn add(&mut self, start: Instant) {
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.min = if self.count == 0 { micros } else { self.min.min(micros) };
        self.max = self.max.max(micros);
        self.total = self.total.saturating_add(micros);
        self.count += 1;
    }
}

/// What [`HostCache::stats`] answers (`torch.cuda.host_memory_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMemoryStats {
    /// Allocations held of the backend, free ones included.
    pub allocations: Stat,
    /// Their bytes.
    pub allocated_bytes: Stat,
    /// Blocks in callers' hands or still used by a stream.
    pub active_requests: Stat,
    /// Their bytes.
    pub active_bytes: Stat,
    /// Allocations made by the backend.
    pub num_host_alloc: u64,
    /// Allocations given back to it.
    pub num_host_free: u64,
    /// How long the former took.
    pub host_alloc_time: DurationStat,
    /// How long the latter took.
    pub host_free_time: DurationStat,
}

impl<H: HostBackend> HostCache<H> {
    /// An empty cache. Does not call the backend.
    pub fn new(backend: H) -> Self {
        let state = State {
            free: std::array::from_fn(|_| Vec::new()),
            pending: PendingEvents::new(),
            waiting: Vec::new(),
            unused: Vec::new(),
            active_requests: Count::default(),
            active_bytes: Count::default(),
            allocations: Count::default(),
            allocated_bytes: Count::default(),
            alloc_time: DurationStat::default(),
            free_time: DurationStat::default(),
        };
        Self { shared: Arc::new(Shared { backend, state: Mutex::new(state) }) }
    }

    /// Page-locked memory of at least `bytes` bytes.
    ///
    /// # Errors
    /// [`AllocError::SizeOverflow`], and [`AllocError::Backend`] if the backend fails even after
    /// the cache was emptied.
    pub fn alloc(&self, bytes: usize) -> Result<PinnedBlock<H>, AllocError> {
        let overflow = AllocError::SizeOverflow { what: "rounding to a power of two", bytes };
        let size = bytes.checked_next_power_of_two().ok_or(overflow)?;
        if let Some(memory) = self.take_cached(size) {
            return Ok(self.block(memory, bytes, size));
        }
        let memory = match self.allocate(size) {
            Ok(memory) => memory,
            Err(_) => {
                self.synchronize_events();
                if let Some(memory) = self.take_cached(size) {
                    return Ok(self.block(memory, bytes, size));
                }
                self.empty_cache();
                self.allocate(size).map_err(|error| AllocError::from_backend(size, error))?
            }
        };
        Ok(self.block(memory, bytes, size))
    }

    /// Gives all memory that nobody uses back to the backend.
    pub fn empty_cache(&self) {
        let free: Vec<(usize, H::HostMemory)> = {
            let mut state = self.shared.state();
            state.poll(&self.shared.backend);
            let free = state.free.iter_mut().enumerate();
            free.flat_map(|(i, list)| list.drain(..).map(move |memory| (1usize << i, memory)))
                .collect()
        };
        for (size, memory) in free {
            let start = Instant::now();
            drop(memory);
            let mut state = self.shared.state();
            state.free_time.add(start);
            state.allocations.decrease(1);
            state.allocated_bytes.decrease(size as i64);
        }
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> HostMemoryStats {
        let state = self.shared.state();
        HostMemoryStats {
            allocations: state.allocations.stat(),
            allocated_bytes: state.allocated_bytes.stat(),
            active_requests: state.active_requests.stat(),
            active_bytes: state.active_bytes.stat(),
            num_host_alloc: state.alloc_time.count,
            num_host_free: state.free_time.count,
            host_alloc_time: state.alloc_time,
            host_free_time: state.free_time,
        }
    }

    /// Starts all peaks anew from what is current.
    pub fn reset_peak_stats(&self) {
        self.shared.state().counts().into_iter().for_each(Count::reset_peak);
    }

    /// Starts all sums, counts and times anew from 0.
    pub fn reset_accumulated_stats(&self) {
        let mut state = self.shared.state();
        state.counts().into_iter().for_each(Count::reset_accumulated);
        state.alloc_time = DurationStat::default();
        state.free_time = DurationStat::default();
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &H {
        &self.shared.backend
    }

    fn take_cached(&self, size: usize) -> Option<H::HostMemory> {
        let mut state = self.shared.state();
        state.poll(&self.shared.backend);
        let memory = state.free[size.ilog2() as usize].pop()?;
        state.hand_out(size);
        Some(memory)
    }

    fn allocate(&self, size: usize) -> Result<H::HostMemory, H::Error> {
        let start = Instant::now();
        let memory = self.shared.backend.alloc_host(size)?;
        let mut state = self.shared.state();
        state.alloc_time.add(start);
        state.allocations.increase(1);
        state.allocated_bytes.increase(size as i64);
        state.hand_out(size);
        Ok(memory)
    }

    fn synchronize_events(&self) {
        self.shared.synchronize_events();
    }

    fn block(&self, memory: H::HostMemory, bytes: usize, size: usize) -> PinnedBlock<H> {
        let shared = Arc::clone(&self.shared);
        PinnedBlock { shared, memory: Some(memory), bytes, size, uses: Mutex::default() }
    }
}

impl<H: HostBackend> Shared<H> {
    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn synchronize_events(&self) {
        let mut done = Vec::new();
        let mut queues = self.state().pending.take(&self.backend, &mut done);
        events::wait(&self.backend, &mut queues, &mut done);
        let mut state = self.state();
        state.events_came(done);
        state.pending.put_back(queues);
    }
}

impl<H: HostBackend> State<H> {
    fn counts(&mut self) -> [&mut Count; 4] {
        [
            &mut self.active_requests,
            &mut self.active_bytes,
            &mut self.allocations,
            &mut self.allocated_bytes,
        ]
    }

    fn hand_out(&mut self, size: usize) {
        self.active_requests.increase(1);
        self.active_bytes.increase(size as i64);
    }

    fn make_free(&mut self, memory: H::HostMemory, size: usize) {
        self.active_requests.decrease(1);
        self.active_bytes.decrease(size as i64);
        self.free[size.ilog2() as usize].push(memory);
    }

    fn poll(&mut self, backend: &H) {
        if !self.pending.is_empty() {
            let mut done = Vec::new();
            self.pending.poll(backend, &mut done);
            self.events_came(done);
        }
    }

    fn events_came(&mut self, done: Vec<u32>) {
        for token in done {
            if let Some(waiting) = &mut self.waiting[token as usize] {
                waiting.events -= 1;
                if waiting.events > 0 {
                    continue;
                }
            }
            if let Some(waiting) = self.waiting[token as usize].take() {
                self.unused.push(token);
                self.make_free(waiting.memory, waiting.size);
            }
        }
    }

    /// Takes a block back from its caller.
    fn free(&mut self, backend: &H, memory: H::HostMemory, size: usize, uses: &[H::Stream]) {
        if uses.is_empty() {
            return self.make_free(memory, size);
        }
        let token = self.unused.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            (self.waiting.len() - 1) as u32
        });
        let events = uses.iter().filter(|s| self.pending.record(backend, s, token)).count();
        if events == 0 {
            self.unused.push(token);
            self.make_free(memory, size);
        } else {
            self.waiting[token as usize] = Some(Waiting { memory, size, events });
        }
    }
}

impl<H: HostBackend> Drop for Shared<H> {
    fn drop(&mut self) {
        self.synchronize_events();
    }
}

/// Page-locked memory from a [`HostCache`], given back on drop.
pub struct PinnedBlock<H: HostBackend> {
    shared: Arc<Shared<H>>,
    /// `None` only while it is dropped.
    memory: Option<H::HostMemory>,
    bytes: usize,
    size: usize,
    uses: Mutex<SmallVec<[H::Stream; 2]>>,
}

impl<H: HostBackend> PinnedBlock<H> {
    /// The backend's memory. It may be larger than what was asked for.
    #[must_use]
    pub fn memory(&self) -> &H::HostMemory {
        self.memory.as_ref().expect("memory is there until the drop")
    }

    /// The bytes it occupies: what was asked for, rounded up.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The bytes that were asked for.
    #[must_use]
    pub fn requested(&self) -> usize {
        self.bytes
    }

    /// Says that work on `stream` uses this memory. When it is dropped it is used again only once
    /// all work that the stream was given until then is done.
    pub fn record_use(&self, stream: &H::Stream) {
        let id = H::stream_id(stream);
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.iter().any(|used| H::stream_id(used) == id) {
            uses.push(stream.clone());
        }
    }
}

impl<H: HostBackend> Drop for PinnedBlock<H> {
    fn drop(&mut self) {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = self.memory.take() {
            self.shared.state().free(&self.shared.backend, memory, self.size, uses);
        }
    }
}

impl<H: HostBackend> Clone for HostCache<H> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<H: HostBackend> fmt::Debug for HostCache<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<H: HostBackend> fmt::Debug for PinnedBlock<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBlock")
            .field("size", &self.size)
            .field("requested", &self.bytes)
            .finish_non_exhaustive()
    }
}
