//! Blocks that come back: at once, or when the streams that use them are done.

use super::{Held, NONE, State};
use crate::Backend;
use crate::stats::Quantity;
use crate::sync::atomic::Ordering;
use crate::trace::TraceAction;

impl<B: Backend> State<B> {
    /// Adds a stream to those that must be done with the block before it is used again.
    pub(crate) fn record_stream(&mut self, block: u32, stream: &B::Stream) {
        let id = B::stream_id(stream);
        let uses = &mut self.uses[block as usize];
        if id != self.stream_id && !uses.iter().any(|used| B::stream_id(used) == id) {
            uses.push(stream.clone());
            self.records[block as usize].used = true;
        }
    }

    /// Takes a block back from its caller.
    #[inline]
    pub(crate) fn free(&mut self, backend: &B, block: u32) {
        if self.count_freed(block) {
            self.await_streams(backend, block);
        } else if block == self.last && !self.collects {
            self.parked = true;
            self.count_free(block);
        } else {
            self.make_free(block);
        }
    }

    /// As [`State::free`], while no event may be recorded.
    pub(crate) fn free_in_capture(&mut self, block: u32) {
        if self.count_freed(block) {
            self.records[block as usize].held = Held::AwaitingFree;
            self.deferred.push(block);
        } else {
            self.make_free(block);
        }
    }

    /// Records the events that could not be during a capture.
    pub(crate) fn await_deferred(&mut self, backend: &B) {
        for block in std::mem::take(&mut self.deferred) {
            self.await_streams(backend, block);
        }
    }

    /// Counts a block as freed; answers whether other streams use it.
    #[inline]
    fn count_freed(&mut self, block: u32) -> bool {
        let record = &mut self.records[block as usize];
        let (kind, size, used) = (record.kind, record.size as i64, record.used);
        let (address, requested) = (record.address, record.requested);
        self.counters.decrease(kind, Quantity::Allocation, 1);
        self.counters.decrease(kind, Quantity::AllocatedBytes, size);
        if record.oversize {
            self.counters.decrease(kind, Quantity::OversizeAllocations, 1);
        }
        self.trace(TraceAction::FreeRequested, address, requested, None);
        used
    }

    #[cold]
    fn await_streams(&mut self, backend: &B, block: u32) {
        let record = &mut self.records[block as usize];
        record.held = Held::AwaitingFree;
        record.used = false;
        // The list keeps its capacity for the next block here.
        let uses = self.uses[block as usize].drain(..);
        record.pending = uses.filter(|s| self.pending.record(backend, s, block)).count() as u32;
        if record.pending == 0 {
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
            let record = &mut self.records[block as usize];
            record.pending -= 1;
            if record.pending == 0 {
                self.make_free(block);
            }
        }
    }

    /// Puts a block into its pool, merged with its free neighbours.
    #[inline]
    fn make_free(&mut self, block: u32) {
        self.unpark();
        self.count_free(block);
        self.merge(block);
    }

    /// Puts a block into its pool and counts what that makes of parts of segments.
    pub(super) fn merge(&mut self, block: u32) {
        let record = &self.records[block as usize];
        let (kind, arena) = (record.kind, record.arena);
        if record.stitched {
            return self.unstitch(block);
        }
        let (blocks, bytes) = self.join_pool(block);
        if !arena {
            self.counters.change(kind, Quantity::InactiveSplit, blocks);
            self.counters.change(kind, Quantity::InactiveSplitBytes, bytes);
        }
    }

    /// Counts a block as used by nobody any more.
    #[inline]
    fn count_free(&mut self, block: u32) {
        let record = &self.records[block as usize];
        let kind = record.kind;
        let (size, requested) = (record.size as i64, record.requested as i64);
        self.trace(TraceAction::FreeCompleted, record.address, record.requested, None);
        let counters = &mut self.counters;
        counters.decrease(kind, Quantity::Active, 1);
        counters.decrease(kind, Quantity::ActiveBytes, size);
        counters.decrease(kind, Quantity::RequestedBytes, requested);
    }

    /// Merges a record with its free neighbours and puts it into its pool. Answers the change in
    /// free blocks that are parts of a segment, and in their bytes.
    #[inline]
    pub(super) fn join_pool(&mut self, block: u32) -> (i64, i64) {
        let record = &self.records[block as usize];
        let (kind, segment) = (record.kind as usize, record.segment);
        let (prev, next) = (record.prev, record.next);
        let (mut blocks, mut bytes) = (0, 0);
        let (mut address, mut size) = (record.address, record.size);
        let (mut prev_of_merged, mut next_of_merged) = (prev, next);
        if prev != NONE && self.records[prev as usize].held == Held::Free {
            let other = &self.records[prev as usize];
            let (merged_size, merged_address) = (other.size, other.address);
            prev_of_merged = other.prev;
            self.pools[kind].remove(&mut self.records, prev);
            self.unused.push(prev);
            address = merged_address;
            size += merged_size;
            blocks -= 1;
            bytes -= merged_size as i64;
            if prev_of_merged != NONE {
                self.records[prev_of_merged as usize].next = block;
            }
        }
        if next != NONE && self.records[next as usize].held == Held::Free {
            let other = &self.records[next as usize];
            let merged_size = other.size;
            next_of_merged = other.next;
            self.pools[kind].remove(&mut self.records, next);
            self.unused.push(next);
            size += merged_size;
            blocks -= 1;
            bytes -= merged_size as i64;
            if next_of_merged != NONE {
                self.records[next_of_merged as usize].prev = block;
            }
        }
        let idle_since = if self.collects { self.clock.load(Ordering::Relaxed) } else { 0 };
        let record = &mut self.records[block as usize];
        record.address = address;
        record.size = size;
        record.prev = prev_of_merged;
        record.next = next_of_merged;
        record.held = Held::Free;
        record.idle_since = idle_since;
        let is_split = record.is_split();
        if prev_of_merged == NONE
            && let Some(segment) = &mut self.segments[segment as usize]
        {
            segment.first = block;
        }
        self.pools[kind].insert(&mut self.records, block);
        if is_split {
            blocks += 1;
            bytes += size as i64;
        }
        (blocks, bytes)
    }
}
