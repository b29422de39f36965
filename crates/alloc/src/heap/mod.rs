//! The blocks and gaps of one shard. A shard serves one stream, either in one private pool or
//! outside the private pools.
//!
//! A chain of records covers each *region*, a segment or an arena: one record for each block or gap
//! (`record.rs`). An index finds free records by size (`free_index/`): the smallest that fits, and
//! among equal sizes the lowest address, as in PyTorch. Under the default policy, among small
//! blocks of equal size, the block that was freed last is reused first. The status of a record is
//! stored apart from the record, because a free examines the statuses of two neighbours, and need
//! not load the records of neighbours that are not free.
//!
//! In an arena, addresses and memory are separate. A record of an arena may have no memory of its
//! own: it is *unmapped*, *claimed* (memory is being mapped there), *migrated* (the page's home is
//! elsewhere now, and the page may return) or *aliased* (its memory is in use at other addresses).
//!
//! Invariant: each byte of memory is free, or part of one block, at one address only. A page may be
//! mapped many times but has one home. Aliased memory belongs to one alias and is free nowhere. The
//! memory of a heap is used in the order of one stream.
//!
//! A heap neither updates counters nor calls the backend. Callers hold the lock of the heap's
//! shard.

mod alias;
mod arena;
mod free_index;
mod pages;
mod record;
mod report;

use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::atomic::{AtomicU64, Ordering};

pub(crate) use alias::Extent;
pub(crate) use arena::Expansion;
use free_index::FreeIndex;
pub(crate) use free_index::FreeOrder;
pub(crate) use pages::Pages;
use record::Records;
pub(crate) use record::{Record, Status};

use crate::trace::{TraceAction, TraceStep, Tracer};
use crate::{Policy, PoolKind};

/// Means that there is no record. No record has this number.
pub(crate) const NONE: u32 = u32::MAX;

/// A segment or an arena: adjacent addresses, covered by a chain of records.
struct Region<M> {
    backing: RegionBacking<M>,
    first: u32,
    oversize: bool,
    /// Whether the backend refused to take the segment back and has not taken it since.
    refused: bool,
}

enum RegionBacking<M> {
    /// One allocation of the backend.
    Whole(M),
    /// A reserved range in which pages are mapped and unmapped.
    Arena(ArenaRange),
}

/// The part of an arena's description that heaps need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaRange {
    /// Policy and page size of the arena.
    pub(crate) kind: ArenaKind,
    /// Number of the arena. Each policy numbers its own arenas.
    pub(crate) number: u32,
    pub(crate) base: u64,
    pub(crate) bytes: usize,
}

/// The arenas of one policy with one page size. After a change of the options, arenas with other
/// page sizes may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaKind {
    pub(crate) policy: Policy,
    /// Size of a page, in bytes.
    pub(crate) page_size: usize,
}

/// A segment that was removed from its heap, to be released to the backend.
pub(crate) struct ReleasedSegment<M> {
    pub(crate) kind: PoolKind,
    pub(crate) size: usize,
    pub(crate) oversize: bool,
    /// Whether the backend has refused the segment before.
    pub(crate) refused: bool,
    /// The id of the segment's stream.
    pub(crate) stream: u64,
    pub(crate) memory: M,
}

pub(crate) struct Heap<M> {
    /// The id of the heap's stream.
    pub(crate) stream: u64,
    pub(crate) records: Records,
    /// Numbers of the arenas that contain windows.
    pub(crate) window_arenas: Vec<u32>,
    regions: Vec<Option<Region<M>>>,
    unused_regions: Vec<u32>,
    /// Free blocks of each pool.
    free: [FreeIndex; 2],
    /// Unmapped and migrated records of arenas, by address.
    unmapped: [BTreeMap<u64, u32>; 2],
    /// The pieces of each alias, in order.
    pieces: HashMap<u32, Vec<u32>>,
    /// Number of searches of large pools, a clock for the age of free blocks. `None` unless garbage
    /// is collected.
    clock: Option<Arc<AtomicU64>>,
    tracer: Arc<Tracer>,
}

impl<M> Heap<M> {
    pub(crate) fn new(stream: u64, tracer: Arc<Tracer>) -> Self {
        Self {
            stream,
            records: Records::default(),
            window_arenas: Vec::new(),
            regions: Vec::new(),
            unused_regions: Vec::new(),
            free: Default::default(),
            unmapped: Default::default(),
            pieces: HashMap::new(),
            clock: None,
            tracer,
        }
    }

    /// Sets the order among free blocks of one size.
    pub(crate) fn set_order(&mut self, order: FreeOrder) {
        self.free.iter_mut().for_each(|free| free.set_order(&mut self.records, order));
    }

    /// Sets the clock for the age of free blocks. With `None`, free blocks do not age.
    pub(crate) fn set_clock(&mut self, clock: Option<Arc<AtomicU64>>) {
        self.clock = clock;
    }

    /// Returns whether free blocks age, for garbage collection.
    #[inline]
    pub(crate) fn ages(&self) -> bool {
        self.clock.is_some()
    }

    /// Counts a search of a large pool.
    #[inline]
    pub(crate) fn count_search(&self, kind: PoolKind) {
        if let Some(clock) = &self.clock
            && kind == PoolKind::Large
        {
            clock.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the heap has no regions.
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.len() == self.unused_regions.len()
    }

    #[inline]
    pub(crate) fn trace(
        &self,
        action: TraceAction,
        address: u64,
        size: usize,
        site: Option<&'static Location<'static>>,
    ) {
        let stream = self.stream;
        self.tracer.record(|| TraceStep { action, address, size, stream, site });
    }

    // ---- free blocks --------------------------------------------------------------------

    /// Returns the smallest free block of at least `size` bytes.
    #[inline(always)]
    pub(crate) fn best_fit(&self, kind: PoolKind, size: usize) -> Option<u32> {
        self.free[kind as usize].best_fit(&self.records, size)
    }

    /// Returns the next free block, ordered by size, then by address. Only valid if blocks of equal
    /// size are ordered by address.
    pub(crate) fn next_fit(&self, kind: PoolKind, block: u32) -> Option<u32> {
        self.free[kind as usize].after(&self.records, block)
    }

    pub(crate) fn largest(&self, kind: PoolKind) -> Option<u32> {
        self.free[kind as usize].largest(&self.records)
    }

    /// Returns all free blocks of a pool, smallest first.
    fn free_blocks(&self, kind: PoolKind) -> impl Iterator<Item = (u32, &Record)> {
        let blocks = self.free[kind as usize].iter(&self.records);
        blocks.map(|block| (block, &self.records[block]))
    }

    /// Removes a free block from its pool's index.
    #[inline(always)]
    pub(crate) fn remove_free(&mut self, kind: PoolKind, block: u32) {
        self.free[kind as usize].remove(&mut self.records, block);
    }

    /// Splits a block after `size` bytes and makes the remainder free.
    #[inline(always)]
    pub(crate) fn split_off(&mut self, kind: PoolKind, block: u32, size: usize) {
        let rest = self.records.split(block, size, Status::Free);
        if let Some(clock) = &self.clock {
            self.records[rest].idle_since = clock.load(Ordering::Relaxed);
        }
        self.free[kind as usize].insert(&mut self.records, rest);
    }

    /// Makes a record free: merges it with its free neighbours and adds it to its pool's index.
    /// Returns the number of merged neighbours.
    #[inline(always)]
    pub(crate) fn coalesce(&mut self, block: u32) -> i64 {
        let Record { kind, region, prev, next, .. } = self.records[block];
        let free = &mut self.free[kind as usize];
        let mut merged = 0;
        if self.records.is(prev, Status::Free) {
            free.remove(&mut self.records, prev);
            self.records.merge_prev(block);
            merged += 1;
        }
        if self.records.is(next, Status::Free) {
            free.remove(&mut self.records, next);
            self.records.merge_next(block);
            merged += 1;
        }
        self.records.set_status(block, Status::Free);
        let record = &mut self.records[block];
        if let Some(clock) = &self.clock {
            record.idle_since = clock.load(Ordering::Relaxed);
        }
        if record.prev == NONE
            && let Some(region) = &mut self.regions[region as usize]
        {
            region.first = block;
        }
        free.insert(&mut self.records, block);
        merged
    }

    // ---- regions ------------------------------------------------------------------------

    /// Adds an allocation of the backend as a block that has the status `Free` but is not in the
    /// free index yet. `refused`: whether the backend refused to take the allocation back.
    pub(crate) fn add_segment(
        &mut self,
        memory: M,
        kind: PoolKind,
        (address, size): (u64, usize),
        oversize: bool,
        refused: bool,
    ) -> u32 {
        let backing = RegionBacking::Whole(memory);
        let region = Region { backing, first: NONE, oversize, refused };
        self.add_chain(region, kind, (address, size), Status::Free)
    }

    /// Adds a region with one record. The record is in no pool.
    fn add_chain(
        &mut self,
        region: Region<M>,
        kind: PoolKind,
        (address, size): (u64, usize),
        status: Status,
    ) -> u32 {
        let arena = matches!(region.backing, RegionBacking::Arena(..));
        let region = match self.unused_regions.pop() {
            Some(at) => {
                self.regions[at as usize] = Some(region);
                at
            }
            None => {
                self.regions.push(Some(region));
                (self.regions.len() - 1) as u32
            }
        };
        let record = Record { address, size, region, kind, arena, ..Record::VACANT };
        let block = self.records.add(record, status);
        if let Some(region) = &mut self.regions[region as usize] {
            region.first = block;
        }
        block
    }

    /// Returns the allocations of the backend that are wholly free, smallest first.
    pub(crate) fn free_segments(&self, kind: PoolKind) -> Vec<u32> {
        let whole = self.free_blocks(kind).filter(|(_, free)| !free.is_split() && !free.arena);
        whole.map(|(block, _)| block).collect()
    }

    /// Removes an allocation of the backend that is wholly free. `None` if the block is only part
    /// of an allocation.
    pub(crate) fn release_segment(&mut self, block: u32) -> Option<ReleasedSegment<M>> {
        let record = self.records[block];
        if record.is_split() || !self.records.is(block, Status::Free) || record.arena {
            return None;
        }
        let at = record.region as usize;
        let region = self.regions.get_mut(at)?.take()?;
        let Region { backing: RegionBacking::Whole(memory), oversize, refused, .. } = region else {
            return None;
        };
        self.unused_regions.push(at as u32);
        self.remove_free(record.kind, block);
        self.records.vacate(block);
        self.trace(TraceAction::SegmentFree, record.address, record.size, None);
        let (kind, size, stream) = (record.kind, record.size, self.stream);
        Some(ReleasedSegment { kind, size, oversize, refused, stream, memory })
    }

    /// Removes all allocations of the backend that are wholly free.
    pub(crate) fn release_segments(&mut self) -> Vec<ReleasedSegment<M>> {
        let mut whole = self.free_segments(PoolKind::Large);
        whole.append(&mut self.free_segments(PoolKind::Small));
        whole.into_iter().filter_map(|block| self.release_segment(block)).collect()
    }
}
