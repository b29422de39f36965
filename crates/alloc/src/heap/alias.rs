//! Aliases: blocks in a window, whose memory is free memory at other addresses. While an alias
//! lives its pieces are free no longer, and when it is freed they are again.

use std::ops::Range;

use super::{ArenaKind, ArenaRange, Heap, NONE, Record, Status};
use crate::PoolKind;
use crate::trace::TraceAction;

/// Memory in an arena. It need not be whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The arena's number.
    pub(crate) arena: u32,
    pub(crate) start: u64,
    /// In bytes.
    pub(crate) size: usize,
}

impl<M> Heap<M> {
    /// The free blocks of these arenas in which a page begins, as a piece does.
    fn free_page_starts(
        &self,
        arenas: ArenaKind,
        kind: PoolKind,
    ) -> impl Iterator<Item = (u32, Extent)> {
        let free = self.free_blocks(kind).filter(|(_, record)| record.arena);
        free.filter_map(move |(block, record)| {
            let ArenaRange { kind, number: arena, base, .. } = self.arena_of(block);
            let ahead = (record.address - base) as usize;
            let begins = ahead.next_multiple_of(kind.page_size) < ahead + record.size;
            let extent = Extent { arena, start: record.address, size: record.size };
            (kind == arenas && begins).then_some((block, extent))
        })
    }

    /// All free memory in these arenas in which a page begins, by address.
    pub(crate) fn free_extents(&self, arenas: ArenaKind, kind: PoolKind) -> Vec<Extent> {
        let free = self.free_page_starts(arenas, kind);
        let mut extents: Vec<Extent> = free.map(|(_, extent)| extent).collect();
        extents.sort_unstable_by_key(|extent| extent.start);
        extents
    }

    /// Pieces of free memory that are `bytes` bytes together, each from the beginning of a page on
    /// and all but the last to the end of one: the first by address, or the shortest, and of equals
    /// the first. `None` if there is not as much.
    pub(crate) fn plan_pieces(
        &self,
        arenas: ArenaKind,
        kind: PoolKind,
        bytes: usize,
        shortest_first: bool,
    ) -> Option<Vec<Extent>> {
        let mut left = bytes;
        let mut pieces = Vec::new();
        let mut free = self.list_free_pages(arenas, kind);
        if shortest_first {
            free.sort_by_key(|pages| pages.size);
        }
        for pages in free {
            let size = pages.size.min(left);
            pieces.push(Extent { arena: pages.arena, start: pages.start, size });
            left -= size;
            if left == 0 {
                return Some(pieces);
            }
        }
        None
    }

    /// Takes pieces out of the pool, in which they must be free. Returns their records.
    pub(crate) fn detach_pieces(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        pieces: &[Extent],
    ) -> Vec<u32> {
        let free = self.free_page_starts(arenas, kind);
        let mut free: Vec<(u64, u32)> = free.map(|(block, extent)| (extent.start, block)).collect();
        free.sort_unstable();
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        // From behind, so that what is left of a block keeps its number.
        order.sort_unstable_by_key(|&at| std::cmp::Reverse(pieces[at].start));
        let mut detached = vec![NONE; pieces.len()];
        for at in order {
            let Extent { start, size, .. } = pieces[at];
            let (_, block) = free[free.partition_point(|(address, _)| *address <= start) - 1];
            let piece = self.detach_part(block, start, size);
            self.records.set_status(piece, Status::Aliased);
            self.trace(TraceAction::SegmentUnmap, start, size, None);
            detached[at] = piece;
        }
        detached
    }

    /// Makes pieces free again.
    pub(crate) fn return_pieces(&mut self, pieces: &[u32]) {
        for &piece in pieces {
            let Record { address, size, .. } = self.records[piece];
            self.trace(TraceAction::SegmentMap, address, size, None);
            self.coalesce(piece);
        }
    }

    /// Adds an alias of these pieces at an address. It is in nobody's hands yet.
    pub(crate) fn add_alias(
        &mut self,
        kind: PoolKind,
        (address, size): (u64, usize),
        pieces: Vec<u32>,
    ) -> u32 {
        let record = Record { address, size, kind, alias: true, ..Record::VACANT };
        let block = self.records.add(record, Status::Detached);
        self.pieces.insert(block, pieces);
        block
    }

    /// Makes the pieces of an alias free that nobody uses any more.
    #[cold]
    pub(crate) fn remove_alias(&mut self, block: u32) {
        let Record { address, size, .. } = self.records[block];
        self.trace(TraceAction::SegmentUnmap, address, size, None);
        self.records.vacate(block);
        if let Some(pieces) = self.pieces.remove(&block) {
            self.return_pieces(&pieces);
        }
    }

    #[inline]
    pub(crate) fn is_alias(&self, block: u32) -> bool {
        self.records[block].alias
    }

    /// The pieces of an alias: for each its address in the alias, the one at which it is free
    /// otherwise, and its bytes.
    pub(crate) fn pieces_of(&self, block: u32) -> Vec<(u64, u64, usize)> {
        let mut address = self.records[block].address;
        let piece = |&piece: &u32| {
            let Record { address: home, size, .. } = self.records[piece];
            let here = address;
            address += size as u64;
            (here, home, size)
        };
        self.pieces.get(&block).into_iter().flatten().map(piece).collect()
    }

    pub(super) fn aliases(&self) -> impl Iterator<Item = u32> {
        self.pieces.keys().copied()
    }

    /// The addresses of all aliases.
    pub(crate) fn windows_in_use(&self) -> Vec<Range<u64>> {
        let blocks = self.aliases().map(|block| &self.records[block]);
        blocks.map(|block| block.address..block.address + block.size as u64).collect()
    }
}
