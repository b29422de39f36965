//! Blocks that come back: at once, or when the streams that use them are done.

use warpline_sync::atomic::Ordering;

use super::{Held, NONE, Record, State, Uses};
use crate::Backend;
use crate::stats::Quantity;
use crate::trace::TraceAction;

impl<B: Backend> State<B> {
    /// Adds a stream to those that must be done with the block before it is used again.
    pub(crate) fn record_stream(&mut self, block: u32, stream: &B::Stream) {
        let id = B::stream_id(stream);
        if id == self.stream_id {
            return;
        }
        if self.uses.len() <= block as usize {
            self.uses.resize_with(block as usize + 1, Uses::default);
        }
        let streams = &mut self.uses[block as usize].streams;
        if !streams.iter().any(|used| B::stream_id(used) == id) {
            streams.push(stream.clone());
            self.records[block].used = true;
        }
    }

    /// Takes a block back from its caller.
    #[inline]
    pub(crate) fn free(&mut self, backend: &B, block: u32) {
        if self.count_freed(block) {
            self.await_streams(backend, block);
        } else if block == self.last && !self.collects {
            self.parked = true;
        } else {
            self.unpark();
            self.merge(block);
        }
    }

    /// As [`State::free`], while no event may be recorded.
    pub(crate) fn free_in_capture(&mut self, block: u32) {
        if self.count_freed(block) {
            self.records.hold(block, Held::AwaitingFree);
            self.deferred.push(block);
        } else {
            self.unpark();
            self.merge(block);
        }
    }

    /// Records the events that could not be during a capture.
    pub(crate) fn await_deferred(&mut self, backend: &B) {
        for block in std::mem::take(&mut self.deferred) {
            self.await_streams(backend, block);
        }
    }

    /// Counts a block as freed; answers whether other streams still use it.
    #[inline]
    fn count_freed(&mut self, block: u32) -> bool {
        let Record { kind, address, size, requested, oversize, used, .. } = self.records[block];
        if used {
            self.counters.free_early(kind, size);
        } else {
            self.counters.free(kind, size, requested);
        }
        if oversize {
            self.counters.decrease(kind, Quantity::OversizeAllocations, 1);
        }
        self.trace(TraceAction::FreeRequested, address, requested, None);
        if !used {
            self.trace(TraceAction::FreeCompleted, address, requested, None);
        }
        used
    }

    #[cold]
    fn await_streams(&mut self, backend: &B, block: u32) {
        self.records.hold(block, Held::AwaitingFree);
        self.records[block].used = false;
        let uses = &mut self.uses[block as usize];
        // The list keeps its capacity for the next block here.
        let streams = uses.streams.drain(..);
        uses.pending = streams.filter(|s| self.pending.record(backend, s, block)).count() as u32;
        if uses.pending == 0 {
            self.make_free(block);
        }
    }

    /// Frees the blocks whose events have come.
    #[cold]
    pub(crate) fn poll_events(&mut self, backend: &B) {
        self.unpark();
        let mut done = std::mem::take(&mut self.done);
        self.pending.poll(backend, &mut done);
        self.events_came(&mut done);
        self.done = done;
    }

    /// One event per entry has come; empties `done`.
    pub(crate) fn events_came(&mut self, done: &mut Vec<u32>) {
        for block in done.drain(..) {
            let uses = &mut self.uses[block as usize];
            uses.pending -= 1;
            if uses.pending == 0 {
                self.make_free(block);
            }
        }
    }

    /// Puts a block into its pool that no stream uses any more.
    fn make_free(&mut self, block: u32) {
        self.unpark();
        let Record { kind, address, size, requested, .. } = self.records[block];
        self.counters.free_late(kind, size, requested);
        self.trace(TraceAction::FreeCompleted, address, requested, None);
        self.merge(block);
    }

    /// Puts a block into its pool, and counts what that makes of parts of segments.
    #[inline]
    pub(super) fn merge(&mut self, block: u32) {
        let Record { kind, size, arena, stitched, .. } = self.records[block];
        if stitched {
            return self.unstitch(block);
        }
        let merged = self.join_pool(block);
        // Whole free pages of an arena can always be given back.
        if !arena {
            let (blocks, bytes) = self.parts_since(block, merged, size);
            self.counters.change(kind, Quantity::InactiveSplit, blocks);
            self.counters.change(kind, Quantity::InactiveSplitBytes, bytes);
        }
    }

    /// How many more free parts of segments there are, and how many more bytes of them, since a
    /// block of `size` bytes was merged with so many others.
    pub(super) fn parts_since(&self, block: u32, merged: i64, size: usize) -> (i64, i64) {
        let record = &self.records[block];
        let part = i64::from(record.is_split());
        (part - merged, part * record.size as i64 - (record.size - size) as i64)
    }

    /// Merges a record with its free neighbours, of which it answers the number, and puts it into
    /// its pool.
    #[inline]
    pub(super) fn join_pool(&mut self, block: u32) -> i64 {
        let Record { kind, segment, prev, next, .. } = self.records[block];
        let pool = &mut self.pools[kind as usize];
        let mut merged = 0;
        if self.records.is(prev, Held::Free) {
            pool.remove(&mut self.records, prev);
            self.records.absorb_prev(block);
            merged += 1;
        }
        if self.records.is(next, Held::Free) {
            pool.remove(&mut self.records, next);
            self.records.absorb_next(block);
            merged += 1;
        }
        self.records.hold(block, Held::Free);
        let record = &mut self.records[block];
        if self.collects {
            record.idle_since = self.clock.load(Ordering::Relaxed);
        }
        if record.prev == NONE
            && let Some(segment) = &mut self.segments[segment as usize]
        {
            segment.first = block;
        }
        pool.insert(&mut self.records, block);
        merged
    }
}
