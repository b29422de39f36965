//! What is known of a block.

use super::NONE;
use crate::PoolKind;
use crate::free_index::Nodes;

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
    pub(super) links: [u32; 2],
    /// Events that have not come.
    pub(super) pending: u32,
    pub(super) kind: PoolKind,
    pub(super) held: Held,
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
    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

impl Nodes for Vec<Record> {
    #[inline]
    fn key(&self, block: u32) -> (usize, u64) {
        let record = &self[block as usize];
        (record.size, record.address)
    }

    #[inline]
    fn link(&mut self, block: u32, side: usize) -> &mut u32 {
        &mut self[block as usize].links[side]
    }

    #[inline]
    fn links(&self, block: u32) -> [u32; 2] {
        self[block as usize].links
    }
}
