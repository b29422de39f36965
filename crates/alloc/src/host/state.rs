//! The state behind a cache's lock: it chooses the memory of blocks and the segments to release.

use std::sync::Arc;
use std::time::Duration;

use super::pending::Pending;
use super::segments::{Kind, Leaving, Segments, Span};
use super::stats::Counters;
use crate::rules::{MAX_REQUEST, MIB};
use crate::{HostBackend, HostConfig};

/// Granularity of blocks, in bytes.
const UNIT: usize = 512;
/// Granularity of the backend's allocations, in bytes.
const PAGE: usize = 4096;
/// Largest request that shares a segment, in bytes.
const SHARED_MAX: usize = 2 * MIB;
/// Size of shared segments: minimum, maximum, and the divisor of their total size.
const SHARED_SEGMENT: (usize, usize, usize) = (2 * MIB, 8 * MIB, 16);
/// Memory that may be held beyond the peak of the memory in use: a fraction of the peak (the
/// divisor), and at least this many bytes.
const HEADROOM_SHARE: usize = 12;
const LEAST_HEADROOM: usize = 32 * MIB;

/// The memory of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) span: Span,
    /// Requested size in bytes.
    pub(super) requested: usize,
    /// Requested size, rounded up to [`UNIT`].
    pub(super) size: usize,
}

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) bytes: usize,
    pub(super) size: usize,
    kind: Kind,
}

/// A segment to allocate from the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewSegment {
    pub(super) bytes: usize,
    kind: Kind,
    kept: bool,
}

impl Request {
    /// Creates a request of less than [`MAX_REQUEST`] bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let size = bytes.max(1).next_multiple_of(UNIT);
        let kind = if size <= SHARED_MAX { Kind::Shared } else { Kind::Whole };
        Self { bytes, size, kind }
    }

    /// Returns the smallest segment that serves the request.
    pub(super) fn least(self) -> NewSegment {
        NewSegment { bytes: self.size.next_multiple_of(PAGE), kind: self.kind, kept: false }
    }
}

pub(super) struct State<H: HostBackend> {
    segments: Segments<H::HostMemory>,
    pub(super) pending: Pending<H>,
    /// Blocks that streams still use. A token is an index.
    waiting: Vec<Option<Waiting>>,
    vacant: Vec<u32>,
    pub(super) counters: Counters,
    /// Peak of the requested bytes in use.
    peak: usize,
    /// Bytes of segments, including those being allocated, without reserve segments.
    reserved: usize,
    /// Bytes of shared segments, counted like `reserved`.
    shared: usize,
    /// Bytes of whole segments beyond the blocks in them.
    unused: usize,
    has_reserve: bool,
    /// Segments on their way back to the backend, after the lock is released.
    pub(super) leaving: Vec<Leaving<Arc<H::HostMemory>>>,
}

struct Waiting {
    piece: Piece,
    events: usize,
}

impl<H: HostBackend> State<H> {
    pub(super) fn new() -> Self {
        Self {
            segments: Segments::new(),
            pending: Pending::new(),
            waiting: Vec::new(),
            vacant: Vec::new(),
            counters: Counters::default(),
            peak: 0,
            reserved: 0,
            shared: 0,
            unused: 0,
            has_reserve: false,
            leaving: Vec::new(),
        }
    }

    /// Returns the bytes that may be held, or lie unused in whole segments, beyond the memory in
    /// use.
    fn headroom(peak: usize) -> usize {
        (peak / HEADROOM_SHARE).max(LEAST_HEADROOM)
    }

    fn peak_with(&self, request: Request) -> usize {
        self.peak.max(self.counters.requested().saturating_add(request.bytes))
    }

    /// Serves a request from existing memory.
    pub(super) fn take(&mut self, request: Request) -> Option<(Piece, Arc<H::HostMemory>)> {
        // Large blocks lie in shared segments only if there is a reserve segment.
        let shared = (request.kind == Kind::Shared || self.has_reserve)
            .then(|| self.segments.take(Kind::Shared, request.size))
            .flatten();
        let (span, memory) = match shared {
            Some(found) => found,
            None => {
                if request.kind == Kind::Shared {
                    return None;
                }
                // At worst half of the segment is unused, and all unused memory together stays
                // within the headroom.
                let unused = self.segments.best_fit(Kind::Whole, request.size)? - request.size;
                let headroom = Self::headroom(self.peak_with(request));
                if unused > request.size || self.unused + unused > headroom {
                    return None;
                }
                self.segments.take(Kind::Whole, request.size)?
            }
        };
        Some((self.hand_out(request, span), memory))
    }

    fn hand_out(&mut self, request: Request, span: Span) -> Piece {
        let Request { bytes: requested, size, .. } = request;
        self.peak = self.peak_with(request);
        self.counters.handed_out(size, requested);
        self.unused += span.bytes - size;
        Piece { span, requested, size }
    }

    /// Plans a segment for a request that nothing cached serves. Gives up idle segments to keep the
    /// total size within bounds.
    pub(super) fn plan(&mut self, request: Request, config: &HostConfig) -> NewSegment {
        let reserve = config.reserve_segment_size.min(MAX_REQUEST).next_multiple_of(PAGE);
        if !self.has_reserve && request.size <= reserve {
            self.has_reserve = true;
            return NewSegment { bytes: reserve, kind: Kind::Shared, kept: true };
        }
        let mut new = request.least();
        if request.kind == Kind::Shared {
            let (least, most, share) = SHARED_SEGMENT;
            let usual = (self.shared / share).clamp(least, most).next_multiple_of(PAGE);
            new.bytes = new.bytes.max(usual);
        }
        let peak = self.peak_with(request);
        let limit = peak.saturating_add(Self::headroom(peak));
        while self.reserved.saturating_add(new.bytes) > limit && self.let_go() {}
        self.reserve(new);
        new
    }

    /// Counts a segment that is about to be allocated.
    pub(super) fn reserve(&mut self, new: NewSegment) {
        if !new.kept {
            self.reserved = self.reserved.saturating_add(new.bytes);
        }
    }

    /// Reverts the count of a segment that the backend could not allocate.
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
        request: Request,
    ) -> (Piece, Arc<H::HostMemory>) {
        self.counters.allocated(new.bytes, time);
        if new.kind == Kind::Shared && !new.kept {
            self.shared += new.bytes;
        }
        let NewSegment { bytes, kind, kept } = new;
        let (span, memory) = self.segments.add(memory, bytes, kind, kept, request.size);
        (self.hand_out(request, span), memory)
    }

    /// Gives up the segment that has been idle for longest. Returns `false` if there is none.
    fn let_go(&mut self) -> bool {
        let Some(leaving) = self.segments.take_oldest_idle() else {
            return false;
        };
        self.reserved -= leaving.bytes;
        if leaving.kind == Kind::Shared {
            self.shared -= leaving.bytes;
        }
        self.leaving.push(leaving);
        true
    }

    /// Adds a segment again that the backend refused to take. It serves requests until the next
    /// try.
    pub(super) fn restore(&mut self, leaving: Leaving<H::HostMemory>) {
        self.counters.refused(leaving.bytes, leaving.refused);
        self.reserved += leaving.bytes;
        if leaving.kind == Kind::Shared {
            self.shared += leaving.bytes;
        }
        self.segments.restore(leaving);
    }

    /// Gives up all idle segments.
    pub(super) fn let_all_go(&mut self) {
        while self.let_go() {}
    }

    /// Resets the peak, so that less is kept from now on.
    pub(super) fn forget_peak(&mut self) {
        self.peak = self.counters.requested();
    }

    fn make_free(&mut self, piece: Piece, config: &HostConfig) {
        self.counters.came_back(piece.size, piece.requested);
        self.unused -= piece.span.bytes - piece.size;
        self.segments.put(piece.span);
        if let Some(most) = config.max_cached_size {
            while self.segments.idle_bytes() > most && self.let_go() {}
        }
    }

    /// Makes the blocks free whose events have completed.
    pub(super) fn poll(&mut self, backend: &H, config: &HostConfig) {
        if !self.pending.is_empty() {
            let mut done = Vec::new();
            self.pending.poll(backend, &mut done);
            self.events_came(done, config);
        }
    }

    pub(super) fn events_came(&mut self, done: Vec<u32>, config: &HostConfig) {
        for token in done {
            let slot = &mut self.waiting[token as usize];
            if let Some(waiting) = slot {
                waiting.events -= 1;
                if waiting.events > 0 {
                    continue;
                }
                let piece = waiting.piece;
                *slot = None;
                self.vacant.push(token);
                self.make_free(piece, config);
            }
        }
    }

    /// Takes back a freed block.
    pub(super) fn free(
        &mut self,
        backend: &H,
        config: &HostConfig,
        piece: Piece,
        uses: &[H::Stream],
    ) {
        if uses.is_empty() {
            return self.make_free(piece, config);
        }
        let token = self.vacant.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            (self.waiting.len() - 1) as u32
        });
        let events = uses.iter().filter(|s| self.pending.record(backend, s, token)).count();
        if events == 0 {
            self.vacant.push(token);
            self.make_free(piece, config);
        } else {
            self.waiting[token as usize] = Some(Waiting { piece, events });
        }
    }
}
