//! The books: which block is where, who holds it. Everything here happens under one lock.

mod release;
mod report;

use crate::events::PendingEvents;
use crate::free_index::{Free, FreeIndex};
use crate::rules::{may_serve, should_split};
use crate::snapshot::BlockState;
use crate::stats::Counters;
use crate::{AllocatorConfig, Backend, PoolKind};

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// A request after rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) stream: u64,
    pub(crate) kind: PoolKind,
    /// What the caller asked for.
    pub(crate) requested: usize,
    /// The size of the block it gets.
    pub(crate) size: usize,
}

/// A block in a caller's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) block: u32,
    pub(crate) address: u64,
    pub(crate) size: usize,
}

/// A block, in one cache line. Neighbours in the segment are linked by `prev` and `next`.
#[derive(Clone, Copy)]
struct Record {
    address: u64,
    size: usize,
    requested: usize,
    prev: u32,
    next: u32,
    segment: u32,
    /// Slot in `State::streams`.
    stream: u32,
    kind: PoolKind,
    state: BlockState,
    /// Counted as oversize.
    oversize: bool,
    /// Whether other streams use it: its entry in `State::uses` is not empty.
    used: bool,
    /// Events that have not come.
    pending: u32,
    /// `State::searches` when it was last freed.
    idle_since: u64,
}

impl Record {
    fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    fn free(&self, block: u32) -> Free {
        Free { size: self.size, address: self.address, block }
    }
}

struct Segment<M> {
    memory: M,
    first: u32,
    oversize: bool,
}

/// The free blocks of one stream.
struct StreamPools {
    id: u64,
    segments: usize,
    pools: [FreeIndex; 2],
}

pub(crate) struct State<B: Backend> {
    pub(crate) config: AllocatorConfig,
    pub(crate) counters: Counters,
    /// Bytes held of the backend or just being asked of it.
    pub(crate) reserved: usize,
    /// Whether garbage is collected, so that ages matter.
    pub(crate) collects: bool,
    pub(crate) pending: PendingEvents<B>,
    /// Searches of the large pools, the clock by which what is idle ages.
    searches: u64,
    records: Vec<Record>,
    /// For each record, the streams other than its own that use it.
    uses: Vec<Vec<B::Stream>>,
    unused: Vec<u32>,
    segments: Vec<Option<Segment<B::Memory>>>,
    unused_segments: Vec<u32>,
    streams: Vec<Option<StreamPools>>,
    last_stream: usize,
    done: Vec<u32>,
}

impl<B: Backend> State<B> {
    pub(crate) fn new(config: AllocatorConfig) -> Self {
        Self {
            config,
            counters: Counters::default(),
            reserved: 0,
            collects: false,
            pending: PendingEvents::new(),
            searches: 0,
            records: Vec::new(),
            uses: Vec::new(),
            unused: Vec::new(),
            segments: Vec::new(),
            unused_segments: Vec::new(),
            streams: Vec::new(),
            last_stream: 0,
            done: Vec::new(),
        }
    }

    // ---- allocation ---------------------------------------------------------------------

    /// The best fitting free block of the stream, taken out of its pool and handed out.
    #[inline]
    pub(crate) fn take_fit(&mut self, request: &Request) -> Option<Granted> {
        if self.collects && request.kind == PoolKind::Large {
            self.searches += 1;
        }
        self.take_fit_again(request)
    }

    /// As [`State::take_fit`], without ageing what is idle.
    #[inline]
    pub(crate) fn take_fit_again(&mut self, request: &Request) -> Option<Granted> {
        let slot = self.stream_slot(request.stream)?;
        let pool = &mut self.streams[slot].as_mut()?.pools[request.kind as usize];
        let (position, free) = pool.best_fit(request.size)?;
        if !may_serve(&self.config, request.size, free.size) {
            return None;
        }
        pool.remove_at(position);
        Some(self.hand_out(free.block, slot, request))
    }

    /// Takes over what the backend allocated and hands its beginning out.
    pub(crate) fn add_segment(
        &mut self,
        memory: B::Memory,
        address: u64,
        size: usize,
        request: &Request,
    ) -> Granted {
        let slot = self.stream_slot(request.stream).unwrap_or_else(|| self.add_stream(request));
        if let Some(stream) = &mut self.streams[slot] {
            stream.segments += 1;
        }
        let oversize = size >= self.config.max_split();
        let kind = request.kind;
        let segment = Segment { memory, first: NONE, oversize };
        let segment = match self.unused_segments.pop() {
            Some(at) => {
                self.segments[at as usize] = Some(segment);
                at
            }
            None => {
                self.segments.push(Some(segment));
                (self.segments.len() - 1) as u32
            }
        };
        let block = self.add_record(Record {
            address,
            size,
            requested: 0,
            prev: NONE,
            next: NONE,
            segment,
            stream: slot as u32,
            kind,
            state: BlockState::Free,
            oversize: false,
            used: false,
            pending: 0,
            idle_since: 0,
        });
        if let Some(segment) = &mut self.segments[segment as usize] {
            segment.first = block;
        }
        self.counters.segment.increase(kind, 1);
        self.counters.reserved_bytes.increase(kind, size as i64);
        self.counters.oversize_segments.increase(i64::from(oversize));
        self.counters.num_device_alloc += 1;
        self.hand_out(block, slot, request)
    }

    /// Gives a block that is in no pool to the caller, splitting off what is too much.
    #[inline]
    fn hand_out(&mut self, block: u32, slot: usize, request: &Request) -> Granted {
        let kind = request.kind;
        let oversize_from = self.config.max_split();
        let record = &self.records[block as usize];
        let (address, whole, was_split) = (record.address, record.size, record.is_split());
        let remaining = whole - request.size;
        let split =
            self.config.caching && should_split(&self.config, kind, request.size, remaining);
        let size = if split { request.size } else { whole };
        if split {
            let (next, segment, idle_since) = (record.next, record.segment, record.idle_since);
            let rest_address = address + size as u64;
            let rest = self.add_record(Record {
                address: rest_address,
                size: remaining,
                requested: 0,
                prev: block,
                next,
                segment,
                stream: slot as u32,
                kind,
                state: BlockState::Free,
                oversize: false,
                used: false,
                pending: 0,
                idle_since: if self.collects { self.searches } else { idle_since },
            });
            if next != NONE {
                self.records[next as usize].prev = rest;
            }
            self.records[block as usize].next = rest;
            if let Some(stream) = &mut self.streams[slot] {
                let free = Free { size: remaining, address: rest_address, block: rest };
                stream.pools[kind as usize].insert(free);
            }
            if was_split {
                self.counters.inactive_split_bytes.decrease(kind, size as i64);
            } else {
                self.counters.inactive_split_bytes.increase(kind, remaining as i64);
                self.counters.inactive_split.increase(kind, 1);
            }
        } else if was_split {
            self.counters.inactive_split_bytes.decrease(kind, size as i64);
            self.counters.inactive_split.decrease(kind, 1);
        }
        let record = &mut self.records[block as usize];
        record.size = size;
        record.requested = request.requested;
        record.state = BlockState::Allocated;
        record.oversize = size >= oversize_from;
        let counters = &mut self.counters;
        counters.allocation.increase(kind, 1);
        counters.allocated_bytes.increase(kind, size as i64);
        counters.active.increase(kind, 1);
        counters.active_bytes.increase(kind, size as i64);
        counters.requested_bytes.increase(kind, request.requested as i64);
        if record.oversize {
            counters.oversize_allocations.increase(1);
        }
        Granted { block, address, size }
    }

    // ---- freeing ------------------------------------------------------------------------

    /// Adds a stream to those that must be done with the block before it is used again.
    pub(crate) fn record_stream(&mut self, block: u32, owner: u64, stream: &B::Stream) {
        let id = B::stream_id(stream);
        let uses = &mut self.uses[block as usize];
        if id != owner && !uses.iter().any(|used| B::stream_id(used) == id) {
            uses.push(stream.clone());
            self.records[block as usize].used = true;
        }
    }

    /// Takes a block back from its caller.
    #[inline]
    pub(crate) fn free(&mut self, backend: &B, block: u32) {
        let record = &mut self.records[block as usize];
        let (kind, size) = (record.kind, record.size as i64);
        self.counters.allocation.decrease(kind, 1);
        self.counters.allocated_bytes.decrease(kind, size);
        if record.oversize {
            self.counters.oversize_allocations.decrease(1);
        }
        if record.used {
            self.await_streams(backend, block);
        } else {
            self.make_free(block);
        }
    }

    #[cold]
    fn await_streams(&mut self, backend: &B, block: u32) {
        let record = &mut self.records[block as usize];
        record.state = BlockState::AwaitingFree;
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
        let record = &self.records[block as usize];
        let (kind, slot) = (record.kind, record.stream as usize);
        let (original, requested) = (record.size, record.requested);
        let (prev, next) = (record.prev, record.next);
        let (mut split_blocks, mut split_bytes) = (0, 0);
        let mut address = record.address;
        let mut size = original;
        let mut prev_of_merged = prev;
        let mut next_of_merged = next;
        if prev != NONE && self.records[prev as usize].state == BlockState::Free {
            let other = &self.records[prev as usize];
            let (merged_size, merged_address) = (other.size, other.address);
            prev_of_merged = other.prev;
            self.forget_free(slot, kind, merged_size, merged_address);
            self.unused.push(prev);
            address = merged_address;
            size += merged_size;
            split_blocks -= 1;
            split_bytes -= merged_size as i64;
            if prev_of_merged != NONE {
                self.records[prev_of_merged as usize].next = block;
            }
        }
        if next != NONE && self.records[next as usize].state == BlockState::Free {
            let other = &self.records[next as usize];
            let (merged_size, merged_address) = (other.size, other.address);
            next_of_merged = other.next;
            self.forget_free(slot, kind, merged_size, merged_address);
            self.unused.push(next);
            size += merged_size;
            split_blocks -= 1;
            split_bytes -= merged_size as i64;
            if next_of_merged != NONE {
                self.records[next_of_merged as usize].prev = block;
            }
        }
        let searches = self.searches;
        let record = &mut self.records[block as usize];
        record.address = address;
        record.size = size;
        record.prev = prev_of_merged;
        record.next = next_of_merged;
        record.state = BlockState::Free;
        record.idle_since = searches;
        let (is_split, segment, free) = (record.is_split(), record.segment, record.free(block));
        if prev_of_merged == NONE
            && let Some(segment) = &mut self.segments[segment as usize]
        {
            segment.first = block;
        }
        if let Some(stream) = &mut self.streams[slot] {
            stream.pools[kind as usize].insert(free);
        }
        if is_split {
            split_blocks += 1;
            split_bytes += size as i64;
        }
        let counters = &mut self.counters;
        counters.inactive_split.change(kind, split_blocks);
        counters.inactive_split_bytes.change(kind, split_bytes);
        counters.active.decrease(kind, 1);
        counters.active_bytes.decrease(kind, original as i64);
        counters.requested_bytes.decrease(kind, requested as i64);
    }

    #[inline]
    fn forget_free(&mut self, slot: usize, kind: PoolKind, size: usize, address: u64) {
        if let Some(stream) = &mut self.streams[slot] {
            stream.pools[kind as usize].remove(size, address);
        }
    }

    // ---- looking up ---------------------------------------------------------------------

    #[inline]
    fn stream_slot(&mut self, id: u64) -> Option<usize> {
        if let Some(Some(stream)) = self.streams.get(self.last_stream)
            && stream.id == id
        {
            return Some(self.last_stream);
        }
        let slot = self.streams.iter().position(|s| s.as_ref().is_some_and(|s| s.id == id))?;
        self.last_stream = slot;
        Some(slot)
    }

    fn add_stream(&mut self, request: &Request) -> usize {
        let stream =
            Some(StreamPools { id: request.stream, segments: 0, pools: Default::default() });
        match self.streams.iter().position(Option::is_none) {
            Some(slot) => {
                self.streams[slot] = stream;
                slot
            }
            None => {
                self.streams.push(stream);
                self.streams.len() - 1
            }
        }
    }

    #[inline]
    fn add_record(&mut self, record: Record) -> u32 {
        if let Some(block) = self.unused.pop() {
            self.records[block as usize] = record;
            return block;
        }
        self.records.push(record);
        self.uses.push(Vec::new());
        (self.records.len() - 1) as u32
    }
}
