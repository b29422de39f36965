//! Aliases: blocks in a window, made of pieces of memory at other addresses. The pieces are in use
//! while the alias lives, and become free when it is freed.

use std::ops::Range;

use super::{ArenaKind, ArenaRange, Heap, NONE, Record, Status};
use crate::PoolKind;
use crate::trace::TraceAction;

/// Memory in an arena, not necessarily whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Number of the arena.
    pub(crate) arena: u32,
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) size: usize,
}

impl<M> Heap<M> {
    /// Returns the free blocks of these arenas that contain the start of a page, where a piece can
    /// start.
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

    /// Returns all free memory of these arenas that contains the start of a page, in order of
    /// address.
    pub(crate) fn free_extents(&self, arenas: ArenaKind, kind: PoolKind) -> Vec<Extent> {
        let free = self.free_page_starts(arenas, kind);
        let mut extents: Vec<Extent> = free.map(|(_, extent)| extent).collect();
        extents.sort_unstable_by_key(|extent| extent.start);
        extents
    }

    /// Plans pieces of free memory with `bytes` bytes in total. Each piece starts at a page
    /// boundary, and all pieces except the last end at one. The pieces are taken in order of
    /// address, or, with `shortest_first`, in order of size and then address. `None` if there is
    /// not enough free memory.
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

    /// Claims pieces, which must be free, from the pool. Returns their records.
    pub(crate) fn claim_pieces(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        pieces: &[Extent],
    ) -> Vec<u32> {
        let free = self.free_page_starts(arenas, kind);
        let mut free: Vec<(u64, u32)> = free.map(|(block, extent)| (extent.start, block)).collect();
        free.sort_unstable();
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        // Go in descending order, because a split leaves the number listed in `free` with the lower
        // part of the block.
        order.sort_unstable_by_key(|&at| std::cmp::Reverse(pieces[at].start));
        let mut claimed = vec![NONE; pieces.len()];
        for at in order {
            let Extent { start, size, .. } = pieces[at];
            let (_, block) = free[free.partition_point(|(address, _)| *address <= start) - 1];
            let piece = self.claim_part(block, start, size);
            self.records.set_status(piece, Status::Aliased);
            self.trace(TraceAction::SegmentUnmap, start, size, None);
            claimed[at] = piece;
        }
        claimed
    }

    /// Makes pieces free again.
    pub(crate) fn return_pieces(&mut self, pieces: &[u32]) {
        for &piece in pieces {
            let Record { address, size, .. } = self.records[piece];
            self.trace(TraceAction::SegmentMap, address, size, None);
            self.coalesce(piece);
        }
    }

    /// Adds an alias of these pieces at an address. The alias is not allocated yet.
    pub(crate) fn add_alias(
        &mut self,
        kind: PoolKind,
        (address, size): (u64, usize),
        pieces: Vec<u32>,
    ) -> u32 {
        let record = Record { address, size, kind, alias: true, ..Record::VACANT };
        let block = self.records.add(record, Status::Claimed);
        self.pieces.insert(block, pieces);
        block
    }

    /// Removes an unused alias and makes its pieces free.
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

    /// Returns the pieces of an alias: for each piece, its address in the alias, its own address,
    /// and its size in bytes.
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

    /// Returns the address ranges of all aliases.
    pub(crate) fn windows_in_use(&self) -> Vec<Range<u64>> {
        let blocks = self.aliases().map(|block| &self.records[block]);
        blocks.map(|block| block.address..block.address + block.size as u64).collect()
    }
}
