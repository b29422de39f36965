//! What is known of a block.

use std::ops::{Index, IndexMut};

use super::NONE;
use crate::PoolKind;
use crate::free_index::{Links, Nodes};

/// What a record stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A block in a caller's hands.
    Allocated,
    /// A block that other streams still use.
    AwaitingFree,
    /// A block that nobody uses; it is in its pool.
    Free,
    /// Addresses of an arena without memory of their own.
    Unmapped,
    /// Addresses of an arena that are being mapped.
    Growing,
    /// Addresses of an arena whose page is at home elsewhere by now, and may come back.
    Lent,
    /// Memory of an arena that is a piece of a stitched block.
    Away,
}

/// A block, in one cache line. Neighbours in the segment are linked by `prev` and `next`.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Record {
    pub(super) address: u64,
    pub(super) size: usize,
    pub(super) requested: usize,
    /// The clock of searches when it was last freed.
    pub(super) idle_since: u64,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) segment: u32,
    /// The index's, while it is free.
    pub(super) links: Links,
    pub(super) kind: PoolKind,
    /// Counted as oversize.
    pub(super) oversize: bool,
    /// Whether other streams use it: its entry in `State::uses` is not empty.
    pub(super) used: bool,
    /// Whether it lies in an arena.
    pub(super) arena: bool,
    /// Whether it is a stitched block, which lies in no segment.
    pub(super) stitched: bool,
}

impl Record {
    /// What is where there is no block.
    pub(super) const VACANT: Self = Self {
        address: 0,
        size: 0,
        requested: 0,
        idle_since: 0,
        prev: NONE,
        next: NONE,
        segment: NONE,
        links: Links::NONE,
        kind: PoolKind::Small,
        oversize: false,
        used: false,
        arena: false,
        stitched: false,
    };

    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

/// All records, by number.
#[derive(Debug)]
pub(super) struct Records {
    all: Vec<Record>,
    /// What each stands for. Here it takes a byte, and not the line of its record: most neighbours
    /// of a freed block are looked at for nothing else.
    held: Vec<Held>,
    /// The first of those that stand for nothing, which are linked by `next`.
    vacant: u32,
}

impl Default for Records {
    fn default() -> Self {
        Self { all: Vec::new(), held: Vec::new(), vacant: NONE }
    }
}

impl Records {
    /// `None` if there is no such block.
    #[inline]
    pub(super) fn get(&self, block: u32) -> Option<&Record> {
        self.all.get(block as usize)
    }

    /// Whether there is such a block, and it stands for this.
    #[inline]
    pub(super) fn is(&self, block: u32, held: Held) -> bool {
        self.held.get(block as usize) == Some(&held)
    }

    #[inline]
    pub(super) fn held(&self, block: u32) -> Held {
        self.held[block as usize]
    }

    #[inline]
    pub(super) fn hold(&mut self, block: u32, held: Held) {
        self.held[block as usize] = held;
    }

    #[inline]
    fn get_mut(&mut self, block: u32) -> Option<&mut Record> {
        self.all.get_mut(block as usize)
    }

    #[inline]
    pub(super) fn add(&mut self, record: Record, held: Held) -> u32 {
        let block = self.vacant;
        let Some(vacant) = self.all.get_mut(block as usize) else {
            self.all.push(record);
            self.held.push(held);
            return (self.all.len() - 1) as u32;
        };
        self.vacant = vacant.next;
        *vacant = record;
        self.hold(block, held);
        block
    }

    /// Lets a record, which is in no pool, stand for nothing.
    #[inline]
    pub(super) fn vacate(&mut self, block: u32) {
        self[block].next = std::mem::replace(&mut self.vacant, block);
    }

    /// Cuts a record after `size` bytes; answers the new one behind it, which is in no pool.
    #[inline]
    pub(super) fn split(&mut self, block: u32, size: usize, held: Held) -> u32 {
        let Record { address, size: whole, next, segment, kind, arena, idle_since, .. } =
            self[block];
        let rest = Record {
            address: address + size as u64,
            size: whole - size,
            prev: block,
            next,
            segment,
            kind,
            arena,
            idle_since,
            ..Record::VACANT
        };
        let rest = self.add(rest, held);
        if let Some(next) = self.get_mut(next) {
            next.prev = rest;
        }
        let record = &mut self[block];
        record.next = rest;
        record.size = size;
        rest
    }

    /// Joins a record with the one behind it, which is in no pool.
    #[inline]
    pub(super) fn absorb_next(&mut self, block: u32) {
        let gone = self[block].next;
        let Record { size, next, .. } = self[gone];
        self.vacate(gone);
        let record = &mut self[block];
        record.size += size;
        record.next = next;
        if let Some(next) = self.get_mut(next) {
            next.prev = block;
        }
    }

    /// Joins a record with the one before it, which is in no pool.
    #[inline]
    pub(super) fn absorb_prev(&mut self, block: u32) {
        let gone = self[block].prev;
        let Record { address, size, prev, .. } = self[gone];
        self.vacate(gone);
        let record = &mut self[block];
        record.address = address;
        record.size += size;
        record.prev = prev;
        if let Some(prev) = self.get_mut(prev) {
            prev.next = block;
        }
    }
}

impl Index<u32> for Records {
    type Output = Record;

    #[inline]
    fn index(&self, block: u32) -> &Record {
        &self.all[block as usize]
    }
}

impl IndexMut<u32> for Records {
    #[inline]
    fn index_mut(&mut self, block: u32) -> &mut Record {
        &mut self.all[block as usize]
    }
}

impl Nodes for Records {
    #[inline]
    fn key(&self, block: u32) -> (usize, u64) {
        let record = &self[block];
        (record.size, record.address)
    }

    #[inline]
    fn links(&self, block: u32) -> &Links {
        &self[block].links
    }

    #[inline]
    fn links_mut(&mut self, block: u32) -> &mut Links {
        &mut self[block].links
    }
}
