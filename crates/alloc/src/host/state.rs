//! The locked state of a host cache, which chooses the memory of blocks and the segments to release.

use std::sync::Arc;
use std::time::Duration;

use super::pending::PendingHostEvents;
use super::segments::{ReleasedHostSegment, SegmentKind, SegmentPart, Segments};
use super::stats::HostCounters;
use crate::rules::{MAX_REQUEST, MIB};
use crate::{HostBackend, HostConfig};

/// Granularity of blocks, in bytes.
const UNIT: usize = 512;
/// Granularity of the backend's allocations, in bytes.
const PAGE: usize = 4096;
/// Largest request that shares a segment, in bytes.
const SHARED_MAX: usize = 2 * MIB;
/// Minimum and maximum size of a new shared segment in bytes, and a divisor: between these limits,
/// the size is the total size of all shared segments divided by the third number.
const SHARED_SEGMENT: (usize, usize, usize) = (2 * MIB, 8 * MIB, 16);
/// Divisor of the headroom: segments may exceed the peak of the memory in use by the peak divided
/// by this number.
const HEADROOM_SHARE: usize = 12;
/// Minimum headroom, in bytes.
const LEAST_HEADROOM: usize = 32 * MIB;

/// The span of a block, with its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSpan {
    pub(super) span: SegmentPart,
    /// Requested size in bytes.
    pub(super) requested: usize,
    /// Requested size, rounded up to [`UNIT`].
    pub(super) size: usize,
}

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostRequest {
    pub(super) bytes: usize,
    pub(super) size: usize,
    kind: SegmentKind,
}

/// A segment to allocate from the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewSegment {
    pub(super) bytes: usize,
    kind: SegmentKind,
    kept: bool,
}

impl HostRequest {
    /// Creates a request of less than [`MAX_REQUEST`] bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let size = bytes.max(1).next_multiple_of(UNIT);
        let kind = if size <= SHARED_MAX { SegmentKind::Shared } else { SegmentKind::Whole };
        Self { bytes, size, kind }
    }

    /// Returns the smallest segment that serves the request.
    pub(super) fn least(self) -> NewSegment {
        NewSegment { bytes: self.size.next_multiple_of(PAGE), kind: self.kind, kept: false }
    }
}

pub(super) struct HostCacheState<H: HostBackend> {
    segments: Segments<H::HostMemory>,
    pub(super) pending: PendingHostEvents<H>,
    /// Freed blocks that streams still use. A token of [`PendingHostEvents`] is an index here.
    pending_blocks: Vec<Option<PendingBlock>>,
    vacant: Vec<u32>,
    pub(super) counters: HostCounters,
    /// Peak of the requested bytes in use.
    peak: usize,
    /// Bytes of segments, including those being allocated, without reserve segments.
    reserved: usize,
    /// Bytes of shared segments, without those being allocated and without reserve segments.
    shared: usize,
    /// Unused bytes behind the blocks in whole segments.
    unused: usize,
    has_reserve: bool,
    /// Segments to release to the backend after the lock is released.
    pub(super) released: Vec<ReleasedHostSegment<Arc<H::HostMemory>>>,
}

struct PendingBlock {
    block: BlockSpan,
    events: usize,
}

impl<H: HostBackend> HostCacheState<H> {
    pub(super) fn new() -> Self {
        Self {
            segments: Segments::new(),
            pending: PendingHostEvents::new(),
            pending_blocks: Vec::new(),
            vacant: Vec::new(),
            counters: HostCounters::default(),
            peak: 0,
            reserved: 0,
            shared: 0,
            unused: 0,
            has_reserve: false,
            released: Vec::new(),
        }
    }

    /// Returns the headroom in bytes. Segments may exceed the peak of the memory in use by this
    /// much. The total unused memory behind blocks in whole segments is limited to the same size.
    fn headroom(peak: usize) -> usize {
        (peak / HEADROOM_SHARE).max(LEAST_HEADROOM)
    }

    fn peak_with(&self, request: HostRequest) -> usize {
        self.peak.max(self.counters.requested().saturating_add(request.bytes))
    }

    /// Serves a request from existing memory.
    pub(super) fn take(&mut self, request: HostRequest) -> Option<(BlockSpan, Arc<H::HostMemory>)> {
        // A reserve segment is shared and serves blocks of any size that fit.
        let shared = (request.kind == SegmentKind::Shared || self.has_reserve)
            .then(|| self.segments.take(SegmentKind::Shared, request.size))
            .flatten();
        let (span, memory) = match shared {
            Some(found) => found,
            None => {
                if request.kind == SegmentKind::Shared {
                    return None;
                }
                // Accept a segment only if at most half of it stays unused, and if all unused
                // memory together stays within the headroom.
                let unused =
                    self.segments.best_fit(SegmentKind::Whole, request.size)? - request.size;
                let headroom = Self::headroom(self.peak_with(request));
                if unused > request.size || self.unused + unused > headroom {
                    return None;
                }
                self.segments.take(SegmentKind::Whole, request.size)?
            }
        };
        Some((self.allocate_block(request, span), memory))
    }

    fn allocate_block(&mut self, request: HostRequest, span: SegmentPart) -> BlockSpan {
        let HostRequest { bytes: requested, size, .. } = request;
        self.peak = self.peak_with(request);
        self.counters.block_allocated(size, requested);
        self.unused += span.bytes - size;
        BlockSpan { span, requested, size }
    }

    /// Plans a segment for a request that no cached memory serves. Releases idle segments to keep
    /// the total size within bounds.
    pub(super) fn plan(&mut self, request: HostRequest, config: &HostConfig) -> NewSegment {
        let reserve = config.reserve_segment_size.min(MAX_REQUEST).next_multiple_of(PAGE);
        if !self.has_reserve && request.size <= reserve {
            self.has_reserve = true;
            return NewSegment { bytes: reserve, kind: SegmentKind::Shared, kept: true };
        }
        let mut new = request.least();
        if request.kind == SegmentKind::Shared {
            let (least, most, share) = SHARED_SEGMENT;
            let usual = (self.shared / share).clamp(least, most).next_multiple_of(PAGE);
            new.bytes = new.bytes.max(usual);
        }
        let peak = self.peak_with(request);
        let limit = peak.saturating_add(Self::headroom(peak));
        while self.reserved.saturating_add(new.bytes) > limit && self.release_oldest_idle() {}
        self.reserve(new);
        new
    }

    /// Counts a segment before its allocation.
    pub(super) fn reserve(&mut self, new: NewSegment) {
        if !new.kept {
            self.reserved = self.reserved.saturating_add(new.bytes);
        }
    }

    /// Reverts the count of a segment that could not be allocated.
    pub(super) fn refused(&mut self, new: NewSegment) {
        if new.kept {
            self.has_reserve = false;
        } else {
            self.reserved -= new.bytes;
        }
    }

    /// Adds a segment and serves the request from it.
    pub(super) fn add(
        &mut self,
        memory: H::HostMemory,
        new: NewSegment,
        time: Duration,
        request: HostRequest,
    ) -> (BlockSpan, Arc<H::HostMemory>) {
        self.counters.allocated(new.bytes, time);
        if new.kind == SegmentKind::Shared && !new.kept {
            self.shared += new.bytes;
        }
        let NewSegment { bytes, kind, kept } = new;
        let (span, memory) = self.segments.add(memory, bytes, kind, kept, request.size);
        (self.allocate_block(request, span), memory)
    }

    /// Removes the segment that has been idle for longest, for release. Returns `false` if no
    /// segment is idle.
    fn release_oldest_idle(&mut self) -> bool {
        let Some(released) = self.segments.take_oldest_idle() else {
            return false;
        };
        self.reserved -= released.bytes;
        if released.kind == SegmentKind::Shared {
            self.shared -= released.bytes;
        }
        self.released.push(released);
        true
    }

    /// Puts back a segment whose release was refused. The segment serves requests until its next
    /// release.
    pub(super) fn restore(&mut self, released: ReleasedHostSegment<H::HostMemory>) {
        self.counters.refused(released.bytes, released.refused);
        self.reserved += released.bytes;
        if released.kind == SegmentKind::Shared {
            self.shared += released.bytes;
        }
        self.segments.restore(released);
    }

    /// Removes all idle segments, for release.
    pub(super) fn release_idle(&mut self) {
        while self.release_oldest_idle() {}
    }

    /// Resets the peak to the current use, which lowers the headroom.
    pub(super) fn reset_headroom_peak(&mut self) {
        self.peak = self.counters.requested();
    }

    fn make_free(&mut self, block: BlockSpan, config: &HostConfig) {
        self.counters.block_freed(block.size, block.requested);
        self.unused -= block.span.bytes - block.size;
        self.segments.put(block.span);
        if let Some(most) = config.max_cached_size {
            while self.segments.idle_bytes() > most && self.release_oldest_idle() {}
        }
    }

    /// Frees the blocks whose events have completed.
    pub(super) fn poll(&mut self, backend: &H, config: &HostConfig) {
        if !self.pending.is_empty() {
            let mut done = Vec::new();
            self.pending.poll(backend, &mut done);
            self.complete_events(done, config);
        }
    }

    pub(super) fn complete_events(&mut self, done: Vec<u32>, config: &HostConfig) {
        for token in done {
            let slot = &mut self.pending_blocks[token as usize];
            if let Some(pending_blocks) = slot {
                pending_blocks.events -= 1;
                if pending_blocks.events > 0 {
                    continue;
                }
                let block = pending_blocks.block;
                *slot = None;
                self.vacant.push(token);
                self.make_free(block, config);
            }
        }
    }

    /// Frees a block. If streams use the block, records their events instead, and the block becomes
    /// free when the events have completed.
    pub(super) fn free(
        &mut self,
        backend: &H,
        config: &HostConfig,
        block: BlockSpan,
        uses: &[H::Stream],
    ) {
        if uses.is_empty() {
            return self.make_free(block, config);
        }
        let token = self.vacant.pop().unwrap_or_else(|| {
            self.pending_blocks.push(None);
            (self.pending_blocks.len() - 1) as u32
        });
        let events = uses.iter().filter(|s| self.pending.record(backend, s, token)).count();
        if events == 0 {
            self.vacant.push(token);
            self.make_free(block, config);
        } else {
            self.pending_blocks[token as usize] = Some(PendingBlock { block, events });
        }
    }
}
