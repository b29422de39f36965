//! Records of blocks, and of addresses without memory.

use std::ops::{Index, IndexMut};

use super::NONE;
use super::free_index::{Links, Nodes};
use crate::PoolKind;

/// Status of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// An allocated block, or a freed block that is parked (`ShardState::parked`).
    Allocated,
    /// A freed block that other streams still use.
    PendingFree,
    /// A free block in the free index. A new segment's block has this status before it is in the
    /// index.
    Free,
    /// Addresses of an arena at which no memory is mapped.
    Unmapped,
    /// A block that was taken out of its pool, while memory is mapped there or a wait is enqueued.
    Claimed,
    /// Addresses of an arena whose page has migrated to another arena. The page is still mapped
    /// here and may return.
    Migrated,
    /// Memory of an arena that is in use at other addresses, as a piece of an alias.
    Aliased,
}

/// A record, in one cache line. `prev` and `next` link the neighbours in the region.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Record {
    pub(crate) address: u64,
    pub(crate) size: usize,
    pub(crate) requested: usize,
    /// Value of the search clock when the block was last freed, while garbage is collected.
    pub(crate) idle_since: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) region: u32,
    /// Links of the free index, while the block is free.
    pub(crate) links: Links,
    pub(crate) kind: PoolKind,
    /// Whether the block counts as oversize.
    pub(crate) oversize: bool,
    /// Whether other streams use the block. `StreamUses` has the list.
    pub(crate) used: bool,
    /// Whether the block lies in an arena.
    pub(crate) arena: bool,
    /// Whether the block is an alias: a block in a window, made of the memory of its pieces. An
    /// alias lies in no region.
    pub(crate) alias: bool,
}

impl Record {
    /// An unused record.
    pub(crate) const VACANT: Self = Self {
        address: 0,
        size: 0,
        requested: 0,
        idle_since: 0,
        prev: NONE,
        next: NONE,
        region: NONE,
        links: Links::NONE,
        kind: PoolKind::Small,
        oversize: false,
        used: false,
        arena: false,
        alias: false,
    };

    pub(crate) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

/// All records, by number.
#[derive(Debug)]
pub(crate) struct Records {
    all: Vec<Record>,
    /// Status of each record, by number. The statuses have an array of their own, with a byte per
    /// record, because most neighbours of a freed block are examined only for their status, and a
    /// record takes a whole cache line.
    status: Vec<Status>,
    /// The first unused record. Unused records are linked by `next`.
    vacant: u32,
}

impl Default for Records {
    fn default() -> Self {
        Self { all: Vec::new(), status: Vec::new(), vacant: NONE }
    }
}

impl Records {
    /// Returns a record, or `None` if there is no such record.
    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<&Record> {
        self.all.get(block as usize)
    }

    /// Returns whether the record exists and has this status.
    #[inline]
    pub(crate) fn is(&self, block: u32, status: Status) -> bool {
        self.status.get(block as usize) == Some(&status)
    }

    #[inline]
    pub(crate) fn status(&self, block: u32) -> Status {
        self.status[block as usize]
    }

    #[inline]
    pub(crate) fn set_status(&mut self, block: u32, status: Status) {
        self.status[block as usize] = status;
    }

    #[inline]
    fn get_mut(&mut self, block: u32) -> Option<&mut Record> {
        self.all.get_mut(block as usize)
    }

    #[inline]
    pub(crate) fn add(&mut self, record: Record, status: Status) -> u32 {
        let block = self.vacant;
        let Some(vacant) = self.all.get_mut(block as usize) else {
            self.all.push(record);
            self.status.push(status);
            return (self.all.len() - 1) as u32;
        };
        self.vacant = vacant.next;
        *vacant = record;
        self.set_status(block, status);
        block
    }

    /// Marks a record, which must be in no pool, as unused.
    #[inline]
    pub(crate) fn vacate(&mut self, block: u32) {
        self[block].next = std::mem::replace(&mut self.vacant, block);
    }

    /// Splits a record after `size` bytes. Returns the new record behind it, which is in no pool.
    #[inline]
    pub(crate) fn split(&mut self, block: u32, size: usize, status: Status) -> u32 {
        let Record { address, size: whole, next, region, kind, arena, idle_since, .. } =
            self[block];
        let rest = Record {
            address: address + size as u64,
            size: whole - size,
            prev: block,
            next,
            region,
            kind,
            arena,
            idle_since,
            ..Record::VACANT
        };
        let rest = self.add(rest, status);
        if let Some(next) = self.get_mut(next) {
            next.prev = rest;
        }
        let record = &mut self[block];
        record.next = rest;
        record.size = size;
        rest
    }

    /// Merges a record with its successor, which must not be in a pool.
    #[inline]
    pub(crate) fn merge_next(&mut self, block: u32) {
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

    /// Merges a record with its predecessor, which must not be in a pool.
    #[inline]
    pub(crate) fn merge_prev(&mut self, block: u32) {
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
