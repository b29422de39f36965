//! The books of one shard: which block is where, who holds it. Everything here happens under the
//! shard's lock, and nothing here calls the backend but for events.

mod arena;
mod free;
mod lend;
mod record;
mod release;
mod report;
mod stitch;

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::atomic::{AtomicU64, Ordering};

pub(crate) use arena::{Growth, Pages};
use record::{Held, Record, Records};
pub(crate) use release::{Idle, Released};
pub(crate) use stitch::Extent;

use crate::events::PendingEvents;
use crate::free_index::{FreeIndex, Order};
use crate::rules::{may_serve, should_split};
use crate::stats::{Counters, Quantity};
use crate::trace::{Step, TraceAction, Tracer};
use crate::{AllocatorConfig, Backend, Policy, PoolKind};

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// A request after rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: PoolKind,
    /// What the caller asked for.
    pub(crate) requested: usize,
    /// The size of the block it gets.
    pub(crate) size: usize,
    /// The caller's call.
    pub(crate) site: &'static Location<'static>,
}

/// A block in a caller's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) block: u32,
    pub(crate) address: u64,
    pub(crate) size: usize,
}

impl Granted {
    /// What a request of no bytes gets.
    pub(crate) const NOTHING: Self = Self { block: NONE, address: 0, size: 0 };
}

/// Adjacent addresses, covered by a chain of records.
struct Segment<M> {
    holding: Holding<M>,
    first: u32,
    oversize: bool,
    /// Whether the backend refused to take it back, and did not since.
    refused: bool,
}

/// The streams other than its own that use a block, and once it is freed, how many events of theirs
/// have not come.
struct Uses<S> {
    streams: Vec<S>,
    pending: u32,
}

impl<S> Default for Uses<S> {
    fn default() -> Self {
        Self { streams: Vec::new(), pending: 0 }
    }
}

enum Holding<M> {
    /// One allocation of the backend.
    Whole(M),
    /// A reserved range whose pages come and go.
    Arena(ArenaRange),
}

/// An arena: its number among all, its address, its bytes, and those in each of its pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaRange {
    pub(crate) number: u32,
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) page_size: usize,
}

pub(crate) struct State<B: Backend> {
    pub(crate) config: AllocatorConfig,
    pub(crate) stream: B::Stream,
    pub(crate) stream_id: u64,
    pub(crate) counters: Counters,
    /// Whether garbage is collected, so that ages matter.
    pub(crate) collects: bool,
    pub(crate) pending: PendingEvents<B>,
    /// Whether blocks are handed out whole.
    pub(crate) no_split: bool,
    /// Whether it takes no more requests: what comes free goes back to the backend.
    pub(crate) retired: bool,
    /// Requests that nothing cached fitted and that are not answered yet.
    pub(crate) misses: usize,
    /// Blocks that were freed during a capture while other streams used them.
    deferred: Vec<u32>,
    /// Searches of large pools, the clock by which what is idle ages.
    clock: Arc<AtomicU64>,
    /// The block that was handed out last, if nothing has changed since, and for what size. Freed
    /// again it is only parked: the same request would find, split and get it once more.
    last: u32,
    last_size: usize,
    parked: bool,
    tracer: Arc<Tracer>,
    records: Records,
    /// By record, for those that ever had any.
    uses: Vec<Uses<B::Stream>>,
    segments: Vec<Option<Segment<B::Memory>>>,
    unused_segments: Vec<u32>,
    pools: [FreeIndex; 2],
    /// Records of arenas without memory of their own, by address.
    unmapped: [BTreeMap<u64, u32>; 2],
    /// The pieces of stitched blocks, in their order.
    stitched: HashMap<u32, Vec<u32>>,
    /// Arenas for windows, by number.
    pub(crate) windows: Vec<u32>,
    done: Vec<u32>,
}

impl<B: Backend> State<B> {
    pub(crate) fn new(stream: B::Stream, clock: Arc<AtomicU64>, tracer: Arc<Tracer>) -> Self {
        Self {
            config: AllocatorConfig::default(),
            stream_id: B::stream_id(&stream),
            stream,
            counters: Counters::default(),
            collects: false,
            pending: PendingEvents::new(),
            no_split: false,
            retired: false,
            misses: 0,
            deferred: Vec::new(),
            clock,
            last: NONE,
            last_size: 0,
            parked: false,
            tracer,
            records: Records::default(),
            uses: Vec::new(),
            segments: Vec::new(),
            unused_segments: Vec::new(),
            pools: Default::default(),
            unmapped: Default::default(),
            stitched: HashMap::new(),
            windows: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(crate) fn set_config(&mut self, config: AllocatorConfig) {
        self.collects = config.garbage_collection_threshold.is_some()
            && config.memory_fraction.is_some_and(|fraction| fraction < 1.0);
        let order = match config.policy {
            Policy::Default => Order::Recent,
            Policy::Torch => Order::Address,
        };
        self.pools.iter_mut().for_each(|pool| pool.set_order(&mut self.records, order));
        self.config = config;
    }

    /// Serves another stream from now on. It must be vacant.
    pub(crate) fn serve(&mut self, stream: B::Stream) {
        self.stream_id = B::stream_id(&stream);
        self.stream = stream;
    }

    /// Whether it holds nothing and nothing is under way, so that it may serve another stream.
    pub(crate) fn is_vacant(&self) -> bool {
        self.segments.len() == self.unused_segments.len()
            && !self.awaits_streams()
            && self.misses == 0
    }

    /// Whether freed blocks wait for streams.
    pub(crate) fn awaits_streams(&self) -> bool {
        !self.pending.is_empty() || !self.deferred.is_empty()
    }

    /// All free blocks of a pool, smallest first.
    fn free_blocks(&self, kind: PoolKind) -> impl Iterator<Item = (u32, &Record)> {
        let blocks = self.pools[kind as usize].iter(&self.records);
        blocks.map(|block| (block, &self.records[block]))
    }

    /// Those that lie in arenas.
    fn free_in_arenas(&self, kind: PoolKind) -> impl Iterator<Item = (u32, &Record)> {
        self.free_blocks(kind).filter(|(_, record)| record.arena)
    }

    /// The parked block, if it was freed by who had asked for as many bytes.
    #[inline]
    pub(crate) fn take_parked(
        &mut self,
        bytes: usize,
        site: &'static Location<'static>,
    ) -> Option<Granted> {
        let record = self.records.get(self.last).filter(|_| self.parked)?;
        if record.requested != bytes {
            return None;
        }
        let request = Request { kind: record.kind, requested: bytes, size: self.last_size, site };
        Some(self.hand_out_parked(request))
    }

    /// Hands the parked block out again, for a request that it is right for.
    #[inline(always)]
    fn hand_out_parked(&mut self, request: Request) -> Granted {
        self.parked = false;
        let Record { address, size, .. } = self.records[self.last];
        self.grant(self.last, address, size, request)
    }

    /// The best fitting free block, taken out of its pool and handed out.
    #[inline(always)]
    pub(crate) fn take_fit(&mut self, request: Request) -> Option<Granted> {
        if self.parked {
            let record = &self.records[self.last];
            if self.last_size == request.size && record.kind == request.kind {
                return Some(self.hand_out_parked(request));
            }
            self.unpark();
        }
        if self.collects && request.kind == PoolKind::Large {
            self.clock.fetch_add(1, Ordering::Relaxed);
        }
        self.take_fit_again(request)
    }

    /// As [`State::take_fit`], without ageing what is idle.
    #[inline(always)]
    pub(crate) fn take_fit_again(&mut self, request: Request) -> Option<Granted> {
        let block = self.take_out(request)?;
        Some(self.hand_out(block, request))
    }

    /// The best fitting free block, taken out of its pool.
    #[inline(always)]
    fn take_out(&mut self, request: Request) -> Option<u32> {
        let mut block = self.pools[request.kind as usize].best_fit(&self.records, request.size)?;
        if self.config.expandable() && self.records[block].arena {
            block = self.least_expandable(request.kind, block);
        }
        if !may_serve(&self.config, request.size, self.records[block].size) {
            return None;
        }
        self.pools[request.kind as usize].remove(&mut self.records, block);
        Some(block)
    }

    /// The best fitting free block, out of everybody's reach until it is handed out or put back.
    pub(crate) fn set_aside(&mut self, request: Request) -> Option<u32> {
        let block = self.take_out(request)?;
        self.records.hold(block, Held::Growing);
        Some(block)
    }

    /// Makes a block free again that was set aside.
    pub(crate) fn put_back(&mut self, block: u32) {
        let record = &self.records[block];
        let (kind, size, arena) = (record.kind, record.size, record.arena);
        // It is still counted as a free part of its segment, if it is one.
        let part = i64::from(record.is_split());
        let merged = self.join_pool(block);
        if !arena {
            let (blocks, bytes) = self.parts_since(block, merged, size);
            self.counters.change(kind, Quantity::InactiveSplit, blocks - part);
            self.counters.change(kind, Quantity::InactiveSplitBytes, bytes - part * size as i64);
        }
    }

    /// Takes over what the backend allocated and hands its beginning out.
    pub(crate) fn add_segment(
        &mut self,
        memory: B::Memory,
        address: u64,
        size: usize,
        request: Request,
    ) -> Granted {
        let oversize = size >= self.config.max_split();
        let holding = Holding::Whole(memory);
        let segment = Segment { holding, first: NONE, oversize, refused: false };
        let block = self.add_chain(segment, request.kind, address, size, Held::Free);
        self.trace(TraceAction::SegmentAlloc, address, size, Some(request.site));
        self.hand_out(block, request)
    }

    /// A segment of one record, which is in no pool.
    fn add_chain(
        &mut self,
        segment: Segment<B::Memory>,
        kind: PoolKind,
        address: u64,
        size: usize,
        held: Held,
    ) -> u32 {
        let arena = matches!(segment.holding, Holding::Arena(..));
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
        let block = self
            .records
            .add(Record { address, size, segment, kind, arena, ..Record::VACANT }, held);
        if let Some(segment) = &mut self.segments[segment as usize] {
            segment.first = block;
        }
        block
    }

    /// Gives a block that is in no pool to the caller, splitting off what is too much.
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, block: u32, request: Request) -> Granted {
        let kind = request.kind;
        let record = &self.records[block];
        let (address, whole, arena) = (record.address, record.size, record.arena);
        let was_split = record.is_split();
        let remaining = whole - request.size;
        let split = self.config.caching
            && !self.no_split
            && should_split(&self.config, kind, arena, request.size, remaining);
        let size = if split { request.size } else { whole };
        if split {
            let rest = self.records.split(block, size, Held::Free);
            if self.collects {
                self.records[rest].idle_since = self.clock.load(Ordering::Relaxed);
            }
            self.pools[kind as usize].insert(&mut self.records, rest);
        }
        // Whole free pages of an arena can always be given back.
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
        self.grant(block, address, size, request)
    }

    /// Enters a block as the caller's. Answers what the caller is told of it.
    #[inline(always)]
    fn grant(&mut self, block: u32, address: u64, size: usize, request: Request) -> Granted {
        let Request { kind, requested, site, .. } = request;
        let oversize = size >= self.config.max_split();
        let record = &mut self.records[block];
        record.requested = requested;
        record.oversize = oversize;
        self.records.hold(block, Held::Allocated);
        self.counters.allocate(kind, size, requested);
        if oversize {
            self.counters.increase(kind, Quantity::OversizeAllocations, 1);
        }
        self.trace(TraceAction::Alloc, address, requested, Some(site));
        Granted { block, address, size }
    }

    /// Puts the parked block into its pool after all. Whatever looks at the books or changes them
    /// does this first.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        let block = std::mem::replace(&mut self.last, NONE);
        if std::mem::replace(&mut self.parked, false) {
            self.merge(block);
        }
    }

    #[inline]
    fn trace(
        &self,
        action: TraceAction,
        address: u64,
        size: usize,
        site: Option<&'static Location<'static>>,
    ) {
        let stream = self.stream_id;
        self.tracer.record(|| Step { action, address, size, stream, site });
    }
}
