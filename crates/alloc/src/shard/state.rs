//! The locked state of a shard: its heap, the uses by other streams, and its counters. A hit
//! and a free happen entirely here. The only backend calls from here record and query events.

use std::panic::Location;
use std::sync::Arc;

use warpline_sync::atomic::AtomicU64;

use super::stream_uses::StreamUses;
use crate::events::EventQueue;
use crate::heap::{FreeOrder, Heap, NONE, Record, ReleasedSegment, Status};
use crate::rules::{Rules, round_size};
use crate::stats::{Counters, Quantity};
use crate::trace::{TraceAction, Tracer};
use crate::{AllocError, AllocatorConfig, Backend, Policy, PoolKind};

/// A request after rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: PoolKind,
    /// Requested size in bytes.
    pub(crate) requested: usize,
    /// Size of the block, in bytes.
    pub(crate) size: usize,
    /// Location of the request in the program.
    pub(crate) site: &'static Location<'static>,
}

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatedBlock {
    pub(crate) block: u32,
    pub(crate) address: u64,
    pub(crate) size: usize,
}

impl AllocatedBlock {
    /// Result of a request of 0 bytes.
    pub(crate) const EMPTY: Self = Self { block: NONE, address: 0, size: 0 };
}

pub(crate) struct ShardState<B: Backend> {
    pub(crate) config: AllocatorConfig,
    pub(crate) rules: Rules,
    pub(crate) stream: B::Stream,
    pub(crate) heap: Heap<B::Memory>,
    pub(crate) counters: Counters,
    pub(crate) uses: StreamUses<B>,
    /// Whether blocks are never split.
    pub(crate) no_split: bool,
    /// Whether the shard serves no more requests, so that freed memory goes back to the backend.
    pub(crate) retired: bool,
    /// Number of misses in progress.
    pub(crate) misses: usize,
    /// Number of searches of large pools, a clock for the age of free blocks.
    clock: Arc<AtomicU64>,
    /// The block allocated last, if the heap has not changed since. When this block is freed, it is
    /// only parked, because a repeated request would find, split and take the same block.
    last: u32,
    /// Size of the request that `last` served, after rounding.
    last_size: usize,
    /// Whether `last` was freed. Its status stays `Allocated`.
    parked: bool,
}

impl<B: Backend> ShardState<B> {
    pub(crate) fn new(stream: B::Stream, clock: Arc<AtomicU64>, tracer: Arc<Tracer>) -> Self {
        let config = AllocatorConfig::default();
        Self {
            rules: Rules::new(&config),
            config,
            heap: Heap::new(B::stream_id(&stream), tracer),
            stream,
            counters: Counters::default(),
            uses: StreamUses::new(),
            no_split: false,
            retired: false,
            misses: 0,
            clock,
            last: NONE,
            last_size: 0,
            parked: false,
        }
    }

    pub(crate) fn set_config(&mut self, config: AllocatorConfig) {
        let collects = config.garbage_collection_threshold.is_some()
            && config.memory_fraction.is_some_and(|fraction| fraction < 1.0);
        self.heap.set_clock(collects.then(|| Arc::clone(&self.clock)));
        self.heap.set_order(match config.policy {
            Policy::Default => FreeOrder::Recent,
            Policy::Torch | Policy::CudaMallocAsync => FreeOrder::Address,
        });
        self.rules = Rules::new(&config);
        self.config = config;
    }

    /// Makes a vacant shard serve another stream.
    pub(crate) fn serve(&mut self, stream: B::Stream) {
        self.heap.stream = B::stream_id(&stream);
        self.stream = stream;
    }

    /// Returns whether the shard has no memory and no miss is in progress, so that it may serve
    /// another stream.
    pub(crate) fn is_vacant(&self) -> bool {
        self.heap.is_empty() && !self.uses.is_pending() && self.misses == 0
    }

    // ---- a request ----------------------------------------------------------------------

    /// Creates a request for `bytes` bytes by the shard's options.
    pub(crate) fn request(
        &self,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Result<Request, AllocError> {
        let rounded = round_size(&self.config, bytes)?;
        let size = if self.rules.caching { rounded } else { bytes };
        Ok(Request { kind: self.rules.pool(size), requested: bytes, size, site })
    }

    /// Allocates the parked block, if it served a request for the same number of bytes.
    #[inline]
    pub(crate) fn take_parked(
        &mut self,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Option<AllocatedBlock> {
        let record = self.heap.records.get(self.last).filter(|_| self.parked)?;
        if record.requested != bytes {
            return None;
        }
        let request = Request { kind: record.kind, requested: bytes, size: self.last_size, site };
        Some(self.allocate_parked(request))
    }

    /// Allocates the parked block again.
    #[inline(always)]
    fn allocate_parked(&mut self, request: Request) -> AllocatedBlock {
        self.parked = false;
        let Record { address, size, .. } = self.heap.records[self.last];
        self.mark_allocated(self.last, address, size, request)
    }

    /// Allocates the best fitting free block of the request's pool.
    #[inline(always)]
    pub(crate) fn take_fit(&mut self, request: Request) -> Option<AllocatedBlock> {
        if self.parked {
            let record = &self.heap.records[self.last];
            if self.last_size == request.size && record.kind == request.kind {
                return Some(self.allocate_parked(request));
            }
            self.unpark();
        }
        self.heap.count_search(request.kind);
        self.take_fit_again(request)
    }

    /// Repeats a search. The same as [`take_fit`](Self::take_fit), except that the search does not
    /// age free blocks.
    #[inline(always)]
    pub(crate) fn take_fit_again(&mut self, request: Request) -> Option<AllocatedBlock> {
        let block = self.remove_best_fit(request)?;
        Some(self.allocate_block(block, request))
    }

    /// Removes the best fitting free block from its pool.
    #[inline(always)]
    fn remove_best_fit(&mut self, request: Request) -> Option<u32> {
        let mut block = self.heap.best_fit(request.kind, request.size)?;
        if self.rules.expandable {
            block = self.heap.shortest_reach(request.kind, block);
        }
        if !self.rules.may_serve(request.size, self.heap.records[block].size) {
            return None;
        }
        self.heap.remove_free(request.kind, block);
        Some(block)
    }

    /// Claims the best fitting free block, so that no other thread can use it until it is
    /// allocated or put back.
    pub(crate) fn claim_fit(&mut self, request: Request) -> Option<u32> {
        let block = self.remove_best_fit(request)?;
        self.heap.records.set_status(block, Status::Claimed);
        Some(block)
    }

    /// Makes a claimed block free again.
    pub(crate) fn put_back(&mut self, block: u32) {
        let record = &self.heap.records[block];
        let (kind, size, arena) = (record.kind, record.size, record.arena);
        // If the block is part of a segment, it is still counted as a free part.
        let part = i64::from(record.is_split());
        let merged = self.heap.coalesce(block);
        if !arena {
            let (blocks, bytes) = self.parts_since(block, merged, size);
            self.counters.change(kind, Quantity::InactiveSplit, blocks - part);
            self.counters.change(kind, Quantity::InactiveSplitBytes, bytes - part * size as i64);
        }
    }

    /// Adds a segment and allocates a block at its start.
    pub(crate) fn add_segment(
        &mut self,
        memory: B::Memory,
        size: usize,
        request: Request,
    ) -> AllocatedBlock {
        let address = B::address(&memory);
        let oversize = self.rules.is_oversize(size);
        let block = self.heap.add_segment(memory, request.kind, (address, size), oversize, false);
        self.heap.trace(TraceAction::SegmentAlloc, address, size, Some(request.site));
        self.allocate_block(block, request)
    }

    /// Allocates an alias of these pieces at an address.
    pub(crate) fn allocate_alias(
        &mut self,
        address: u64,
        pieces: Vec<u32>,
        request: Request,
    ) -> AllocatedBlock {
        let Request { kind, size, site, .. } = request;
        self.heap.trace(TraceAction::SegmentMap, address, size, Some(site));
        let block = self.heap.add_alias(kind, (address, size), pieces);
        self.last = block;
        self.last_size = size;
        self.mark_allocated(block, address, size, request)
    }

    /// Allocates a block that is in no pool, after splitting off the excess.
    #[inline(always)]
    pub(crate) fn allocate_block(&mut self, block: u32, request: Request) -> AllocatedBlock {
        let kind = request.kind;
        let record = &self.heap.records[block];
        let (address, whole, arena) = (record.address, record.size, record.arena);
        let was_split = record.is_split();
        let remaining = whole - request.size;
        let split = self.rules.caching
            && !self.no_split
            && self.rules.should_split(kind, arena, request.size, remaining);
        let size = if split { request.size } else { whole };
        if split {
            self.heap.split_off(kind, block, size);
        }
        // Free parts of arenas are not counted, because whole free pages can always be released.
        if !arena {
            let counters = &mut self.counters;
            if split && !was_split {
                counters.increase(kind, Quantity::InactiveSplitBytes, remaining as i64);
                counters.increase(kind, Quantity::InactiveSplit, 1);
            } else if was_split {
                counters.decrease(kind, Quantity::InactiveSplitBytes, size as i64);
                counters.decrease(kind, Quantity::InactiveSplit, i64::from(!split));
            }
        }
        self.last = block;
        self.last_size = request.size;
        self.mark_allocated(block, address, size, request)
    }

    /// Marks a block as allocated and counts it.
    #[inline(always)]
    fn mark_allocated(
        &mut self,
        block: u32,
        address: u64,
        size: usize,
        request: Request,
    ) -> AllocatedBlock {
        let Request { kind, requested, site, .. } = request;
        let oversize = self.rules.is_oversize(size);
        let record = &mut self.heap.records[block];
        record.requested = requested;
        record.oversize = oversize;
        self.heap.records.set_status(block, Status::Allocated);
        self.counters.allocate(kind, size, requested);
        if oversize {
            self.counters.increase(kind, Quantity::OversizeAllocations, 1);
        }
        self.heap.trace(TraceAction::Alloc, address, requested, Some(site));
        AllocatedBlock { block, address, size }
    }

    // ---- a free -------------------------------------------------------------------------

    /// Records that a stream uses a block. The block is reused only after the stream's work.
    pub(crate) fn record_stream(&mut self, block: u32, stream: &B::Stream) {
        if B::stream_id(stream) != self.heap.stream {
            self.uses.add(block, stream);
            self.heap.records[block].used = true;
        }
    }

    /// Frees a block.
    #[inline]
    pub(crate) fn free(&mut self, backend: &B, block: u32) {
        if self.count_freed(block) {
            self.record_events(backend, block);
        } else if block == self.last && !self.heap.ages() {
            self.parked = true;
        } else {
            self.unpark();
            self.make_free(block);
        }
    }

    /// Frees a block during a capture, when no event may be recorded.
    pub(crate) fn free_in_capture(&mut self, block: u32) {
        if self.count_freed(block) {
            self.heap.records.set_status(block, Status::PendingFree);
            self.uses.defer(block);
        } else {
            self.unpark();
            self.make_free(block);
        }
    }

    /// Counts a block as freed. Returns whether other streams still use it.
    #[inline(always)]
    fn count_freed(&mut self, block: u32) -> bool {
        let Record { kind, address, size, requested, oversize, used, .. } =
            self.heap.records[block];
        if used {
            self.counters.free_early(kind, size);
        } else {
            self.counters.free(kind, size, requested);
        }
        if oversize {
            self.counters.decrease(kind, Quantity::OversizeAllocations, 1);
        }
        self.heap.trace(TraceAction::FreeRequested, address, requested, None);
        if !used {
            self.heap.trace(TraceAction::FreeCompleted, address, requested, None);
        }
        used
    }

    /// Puts the parked block into its pool. Called before anything else searches or changes the free
    /// blocks.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        let block = std::mem::replace(&mut self.last, NONE);
        if std::mem::replace(&mut self.parked, false) {
            self.make_free(block);
        }
    }

    /// Returns whether a block other than an alias is parked. Only such a block affects the
    /// counters.
    pub(crate) fn is_part_parked(&self) -> bool {
        self.parked && !self.heap.is_alias(self.last)
    }

    /// Puts a block into its pool and updates the counters of free parts of segments.
    #[inline]
    fn make_free(&mut self, block: u32) {
        let Record { kind, size, arena, alias, .. } = self.heap.records[block];
        if alias {
            return self.heap.remove_alias(block);
        }
        let merged = self.heap.coalesce(block);
        // Free parts of arenas are not counted, because whole free pages can always be released.
        if !arena {
            let (blocks, bytes) = self.parts_since(block, merged, size);
            self.counters.change(kind, Quantity::InactiveSplit, blocks);
            self.counters.change(kind, Quantity::InactiveSplitBytes, bytes);
        }
    }

    /// Returns the changes in the number and bytes of free parts of segments, after a block of
    /// `size` bytes merged with `merged` neighbours.
    fn parts_since(&self, block: u32, merged: i64, size: usize) -> (i64, i64) {
        let record = &self.heap.records[block];
        let part = i64::from(record.is_split());
        (part - merged, part * record.size as i64 - (record.size - size) as i64)
    }

    // ---- uses by other streams ----------------------------------------------------------

    #[cold]
    fn record_events(&mut self, backend: &B, block: u32) {
        self.heap.records.set_status(block, Status::PendingFree);
        self.heap.records[block].used = false;
        if self.uses.record(backend, block) {
            self.complete_free(block);
        }
    }

    /// Records the events that were deferred during a capture.
    pub(crate) fn record_deferred(&mut self, backend: &B) {
        for block in self.uses.take_deferred() {
            self.record_events(backend, block);
        }
    }

    /// Frees the blocks whose events have completed. While events are pending, each request polls
    /// first, and polling unparks the parked block.
    #[cold]
    pub(crate) fn poll_events(&mut self, backend: &B) {
        self.unpark();
        let done = self.uses.poll(backend);
        done.iter().for_each(|&block| self.complete_event(block));
        self.uses.recycle(done);
    }

    /// Takes out all events, to wait for them without the lock. Adds blocks to `done` whose use
    /// needs no wait, because the device is lost.
    pub(crate) fn take_events(&mut self, backend: &B, done: &mut Vec<u32>) -> Vec<EventQueue<B>> {
        self.record_deferred(backend);
        self.uses.take_events(backend, done)
    }

    /// Counts one event of a block as completed for each entry of `done`, and frees the blocks
    /// without pending events. Puts the other events back.
    pub(crate) fn complete_events(&mut self, done: Vec<u32>, others: Vec<EventQueue<B>>) {
        done.into_iter().for_each(|block| self.complete_event(block));
        self.uses.put_back(others);
    }

    fn complete_event(&mut self, block: u32) {
        if self.uses.complete_event(block) {
            self.complete_free(block);
        }
    }

    /// Makes a block free after all its uses have completed.
    fn complete_free(&mut self, block: u32) {
        self.unpark();
        let Record { kind, address, size, requested, .. } = self.heap.records[block];
        self.counters.free_late(kind, size, requested);
        self.heap.trace(TraceAction::FreeCompleted, address, requested, None);
        self.make_free(block);
    }

    // ---- refused releases ---------------------------------------------------------------

    /// Puts a segment whose release was refused back into the heap.
    ///
    /// # Errors
    /// Returns the segment if it cannot serve requests in this heap any more.
    pub(crate) fn restore(
        &mut self,
        released: ReleasedSegment<B::Memory>,
    ) -> Result<(), ReleasedSegment<B::Memory>> {
        // A shard that had no memory may have been assigned to another stream since.
        if released.stream != self.heap.stream || self.retired || !self.rules.caching {
            return Err(released);
        }
        let ReleasedSegment { kind, size, oversize, memory, .. } = released;
        let address = B::address(&memory);
        let block = self.heap.add_segment(memory, kind, (address, size), oversize, true);
        self.heap.coalesce(block);
        self.heap.trace(TraceAction::SegmentAlloc, address, size, None);
        Ok(())
    }
}
