//! The cache of page-locked host memory.

mod config;
mod pending;
mod segments;
mod state;
mod stats;

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use warpline_sync::Mutex;

use crate::rules::MAX_REQUEST;
use crate::{AllocError, HostBackend};
use segments::ReleasedHostSegment;
use state::{BlockSpan, HostCacheState, HostRequest, NewSegment};

pub use config::HostConfig;
pub use stats::{DurationStat, HostMemoryStats};

/// A cache of page-locked host memory, which is expensive to allocate. Clones share the cache.
///
/// Requests up to 2 MiB are cut from shared segments; larger requests get a segment of their own,
/// of their size in whole pages. No size is rounded to a power of two. Unused segments are kept for
/// later requests as long as all segments together exceed the peak of the memory in use by at most
/// 1/12 of that peak, or 32 MiB if that is more. Beyond this limit, the segments that were idle for
/// longest are released before a new segment is allocated.
///
/// A block is reused only when all streams [recorded](PinnedBlock::record_use) as using it have
/// completed their work. A stream that never completes keeps only the blocks that it uses. The host
/// waits for streams only when the backend cannot allocate a segment, and when the cache is dropped.
pub struct HostCache<H: HostBackend> {
    shared: Arc<HostShared<H>>,
}

struct HostShared<H: HostBackend> {
    backend: H,
    config: HostConfig,
    state: Mutex<HostCacheState<H>>,
}

impl<H: HostBackend> HostCache<H> {
    /// Creates an empty cache. Does not call the backend.
    pub fn new(backend: H, config: HostConfig) -> Self {
        Self {
            shared: Arc::new(HostShared {
                backend,
                config,
                state: Mutex::new(HostCacheState::new()),
            }),
        }
    }

    /// Allocates `bytes` bytes of page-locked memory, which may hold leftover bytes of earlier
    /// users.
    ///
    /// # Errors
    /// - [`AllocError::TooLarge`] if `bytes` is 1 EB or more.
    /// - [`AllocError::Backend`] if the backend fails because the device is lost, or fails even
    ///   after the cache was emptied and the host has waited for streams that use freed blocks.
    pub fn alloc(&self, bytes: usize) -> Result<PinnedBlock<H>, AllocError> {
        if bytes >= MAX_REQUEST {
            return Err(AllocError::TooLarge { requested: bytes });
        }
        let request = HostRequest::new(bytes);
        let HostShared { backend, config, .. } = &*self.shared;
        let found = self.shared.with(|state| {
            state.poll(backend, config);
            state.take(request).ok_or_else(|| state.plan(request, config))
        });
        match found {
            Ok((block, memory)) => Ok(self.block(block, memory)),
            Err(new) => self
                .grow(request, new)
                .or_else(|error| self.alloc_under_pressure(request, error))
                .map_err(|error| AllocError::from_backend(request.size, error)),
        }
    }

    /// Releases all unused memory to the backend, except for a reserve segment
    /// (`torch._C._host_emptyCache`).
    pub fn empty_cache(&self) {
        let HostShared { backend, config, .. } = &*self.shared;
        self.shared.with(|state| {
            state.poll(backend, config);
            state.release_idle();
            state.reset_headroom_peak();
        });
        if self.shared.with(|state| state.pending.captures == 0) {
            backend.retry_refused();
        }
    }

    /// Declares that a stream is being captured, until the returned [`HostCapture`] is dropped after
    /// the capture. Until then no event is recorded or queried, and freed blocks that streams used
    /// are not reused.
    #[must_use = "the capture ends when this is dropped"]
    pub fn capture(&self) -> HostCapture<H> {
        self.shared.with(|state| state.pending.captures += 1);
        HostCapture { cache: self.clone() }
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> HostMemoryStats {
        self.shared.with(|state| state.counters.stats())
    }

    /// Resets all peaks to the current values.
    pub fn reset_peak_stats(&self) {
        self.shared.with(|state| state.counters.reset_peak());
    }

    /// Resets all sums, counts and times to 0.
    pub fn reset_accumulated_stats(&self) {
        self.shared.with(|state| state.counters.reset_accumulated());
    }

    /// Returns the backend.
    #[must_use]
    pub fn backend(&self) -> &H {
        &self.shared.backend
    }

    /// Returns the options.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// Serves a request from a new segment. The state has already counted the segment.
    fn grow(&self, request: HostRequest, new: NewSegment) -> Result<PinnedBlock<H>, H::Error> {
        let start = Instant::now();
        let memory = self.shared.backend.alloc_host(new.bytes, &self.shared.config);
        let time = start.elapsed();
        let (block, memory) = self.shared.with(|state| match memory {
            Ok(memory) => Ok(state.add(memory, new, time, request)),
            Err(error) => {
                state.refused(new);
                Err(error)
            }
        })?;
        Ok(self.block(block, memory))
    }

    /// Tries again with the smallest segment that serves the request. Releases idle segments, and
    /// waits for one stream after another, so that more segments become idle.
    fn alloc_under_pressure(
        &self,
        request: HostRequest,
        mut error: H::Error,
    ) -> Result<PinnedBlock<H>, H::Error> {
        let HostShared { backend, config, .. } = &*self.shared;
        let mut waited = Vec::new();
        while !backend.is_lost(&error) {
            let found = self.shared.with(|state| {
                state.poll(backend, config);
                let found = state.take(request);
                if found.is_none() {
                    state.release_idle();
                    state.reserve(request.least());
                }
                found
            });
            if let Some((block, memory)) = found {
                return Ok(self.block(block, memory));
            }
            match self.grow(request, request.least()) {
                Ok(block) => return Ok(block),
                Err(again) => error = again,
            }
            if !self.shared.wait_for_a_stream(&mut waited) {
                break;
            }
        }
        Err(error)
    }

    fn block(&self, block: BlockSpan, memory: Arc<H::HostMemory>) -> PinnedBlock<H> {
        let shared = Arc::clone(&self.shared);
        PinnedBlock { shared, memory: Some(memory), block, uses: Mutex::default() }
    }
}

impl<H: HostBackend> HostShared<H> {
    /// Runs `f` under the lock. Then releases, without the lock, the segments that `f` gave up.
    fn with<R>(&self, f: impl FnOnce(&mut HostCacheState<H>) -> R) -> R {
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = lock();
        let result = f(&mut state);
        let released = std::mem::take(&mut state.released);
        drop(state);
        for ReleasedHostSegment { memory, bytes, kind, refused } in released {
            let start = Instant::now();
            // All blocks of the segment have dropped their references, because the segment was
            // idle.
            let freed = Arc::into_inner(memory).map_or(Ok(()), H::free_host);
            let time = start.elapsed();
            let mut state = lock();
            match freed {
                Ok(()) => state.counters.released(bytes, refused, time),
                Err(memory) => state.restore(ReleasedHostSegment { memory, bytes, kind, refused }),
            }
        }
        result
    }

    /// Waits for the freed blocks of one stream that is not in `waited`, and adds the stream there.
    /// Returns `false` if there is no such stream.
    fn wait_for_a_stream(&self, waited: &mut Vec<u64>) -> bool {
        let Some(mut queue) = self.with(|state| state.pending.take_youngest(waited)) else {
            return false;
        };
        waited.push(queue.stream);
        let done = queue.wait(&self.backend);
        self.with(|state| {
            state.pending.put_back(queue);
            state.complete_events(done, &self.config);
        });
        true
    }
}

impl<H: HostBackend> Drop for HostShared<H> {
    fn drop(&mut self) {
        self.with(|state| state.poll(&self.backend, &self.config));
        let mut waited = Vec::new();
        while self.wait_for_a_stream(&mut waited) {}
    }
}

/// Page-locked memory from a [`HostCache`], returned to the cache on drop.
pub struct PinnedBlock<H: HostBackend> {
    shared: Arc<HostShared<H>>,
    /// `None` only during the drop.
    memory: Option<Arc<H::HostMemory>>,
    block: BlockSpan,
    uses: Mutex<SmallVec<[H::Stream; 2]>>,
}

impl<H: HostBackend> PinnedBlock<H> {
    /// Returns the backend's allocation that contains the block: [`size`](Self::size) bytes from
    /// [`offset`](Self::offset) on. The rest belongs to other blocks.
    #[must_use]
    pub fn memory(&self) -> &H::HostMemory {
        self.memory.as_ref().expect("memory is there until the drop")
    }

    /// Returns the block's offset in [`memory`](Self::memory), in bytes. A multiple of 512.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.block.span.offset
    }

    /// Returns the size of the block in bytes: the requested size, rounded up to a multiple of 512
    /// and at least 512.
    #[must_use]
    pub fn size(&self) -> usize {
        self.block.size
    }

    /// Returns the requested size in bytes.
    #[must_use]
    pub fn requested(&self) -> usize {
        self.block.requested
    }

    /// Declares that work on `stream` uses this memory. After the drop, the memory is reused only
    /// when all work enqueued on `stream` before the drop is complete.
    pub fn record_use(&self, stream: &H::Stream) {
        let id = H::stream_id(stream);
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.iter().any(|used| H::stream_id(used) == id) {
            uses.push(stream.clone());
        }
    }
}

/// Prevents a [`HostCache`] from using events, until the guard is dropped.
#[derive(Debug)]
pub struct HostCapture<H: HostBackend> {
    cache: HostCache<H>,
}

impl<H: HostBackend> Drop for HostCapture<H> {
    fn drop(&mut self) {
        self.cache.shared.with(|state| state.pending.captures -= 1);
    }
}

impl<H: HostBackend> Drop for PinnedBlock<H> {
    fn drop(&mut self) {
        // Drop the reference first, so that the thread that makes the segment idle owns the last
        // reference and can release it.
        drop(self.memory.take());
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let HostShared { backend, config, .. } = &*self.shared;
        self.shared.with(|state| state.free(backend, config, self.block, uses));
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
            .field("offset", &self.offset())
            .field("size", &self.size())
            .field("requested", &self.requested())
            .finish_non_exhaustive()
    }
}
