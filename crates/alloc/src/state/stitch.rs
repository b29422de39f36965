//! Blocks that are stitched together of free memory at other addresses: pieces of it, by which they
//! are free no longer and to which they go back.

use std::ops::Range;

use super::{ArenaRange, Granted, Held, NONE, Record, Request, State};
use crate::trace::TraceAction;
use crate::{Backend, PoolKind};

/// Memory in an arena. It need not be whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The arena's number.
    pub(crate) arena: u32,
    pub(crate) start: u64,
    /// In bytes.
    pub(crate) size: usize,
}

impl<B: Backend> State<B> {
    /// All free memory in arenas with pages of this size, by address.
    pub(crate) fn free_extents(&self, kind: PoolKind, page_size: usize) -> Vec<Extent> {
        let of_size = |(block, record): (u32, &Record)| {
            let ArenaRange { number: arena, page_size: size, .. } = self.arena_of(block);
            let extent = Extent { arena, start: record.address, size: record.size };
            (size == page_size).then_some(extent)
        };
        let mut extents: Vec<Extent> = self.free_in_arenas(kind).filter_map(of_size).collect();
        extents.sort_unstable_by_key(|extent| extent.start);
        extents
    }

    /// Pieces of free memory that are `bytes` bytes together, each from the beginning of a page on
    /// and all but the last to the end of one. `None` if there is not as much.
    pub(crate) fn plan_pieces(
        &self,
        kind: PoolKind,
        bytes: usize,
        page_size: usize,
    ) -> Option<Vec<Extent>> {
        let mut left = bytes;
        let mut pieces = Vec::new();
        for pages in self.list_free_pages(kind, page_size) {
            let size = pages.size.min(left);
            pieces.push(Extent { arena: pages.arena, start: pages.start, size });
            left -= size;
            if left == 0 {
                return Some(pieces);
            }
        }
        None
    }

    /// Takes pieces out of the pool, in which they must be free. Answers their records.
    pub(crate) fn take_pieces(&mut self, kind: PoolKind, pieces: &[Extent]) -> Vec<u32> {
        let free = self.free_in_arenas(kind);
        let mut free: Vec<(u64, u32)> = free.map(|(block, free)| (free.address, block)).collect();
        free.sort_unstable();
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        // From behind, so that what is left of a block keeps its number.
        order.sort_unstable_by_key(|&at| std::cmp::Reverse(pieces[at].start));
        let mut taken = vec![NONE; pieces.len()];
        for at in order {
            let Extent { start, size, .. } = pieces[at];
            let (_, block) = free[free.partition_point(|(address, _)| *address <= start) - 1];
            let piece = self.cut_out(block, start, size);
            self.records.hold(piece, Held::Away);
            self.trace(TraceAction::SegmentUnmap, start, size, None);
            taken[at] = piece;
        }
        taken
    }

    /// Makes pieces free again.
    pub(crate) fn return_pieces(&mut self, pieces: &[u32]) {
        for &piece in pieces {
            let Record { address, size, .. } = self.records[piece];
            self.trace(TraceAction::SegmentMap, address, size, None);
            self.join_pool(piece);
        }
    }

    /// Hands out a block at this address that is made of these pieces.
    pub(crate) fn hand_out_stitched(
        &mut self,
        address: u64,
        pieces: Vec<u32>,
        request: Request,
    ) -> Granted {
        self.trace(TraceAction::SegmentMap, address, request.size, Some(request.site));
        let Request { kind, size, .. } = request;
        let record = Record { address, size, kind, stitched: true, ..Record::VACANT };
        let block = self.records.add(record, Held::Growing);
        self.stitched.insert(block, pieces);
        self.last = block;
        self.last_size = request.size;
        self.grant(block, address, request.size, request)
    }

    /// Whether a block is parked that is a part of a segment.
    pub(crate) fn is_part_parked(&self) -> bool {
        self.parked && !self.records[self.last].stitched
    }

    /// Lets the pieces of a block that nobody uses any more go where they came from.
    #[cold]
    pub(super) fn unstitch(&mut self, block: u32) {
        let Record { address, size, .. } = self.records[block];
        self.trace(TraceAction::SegmentUnmap, address, size, None);
        self.records.vacate(block);
        if let Some(pieces) = self.stitched.remove(&block) {
            self.return_pieces(&pieces);
        }
    }

    #[inline]
    pub(crate) fn is_stitched(&self, block: u32) -> bool {
        self.records[block].stitched
    }

    /// Where the memory of a stitched block is at home: its address in the block, there, and how
    /// many bytes.
    pub(crate) fn homes_of(&self, block: u32) -> Vec<(u64, u64, usize)> {
        let mut address = self.records[block].address;
        let home = |&piece: &u32| {
            let Record { address: home, size, .. } = self.records[piece];
            let from = address;
            address += size as u64;
            (from, home, size)
        };
        self.stitched.get(&block).into_iter().flatten().map(home).collect()
    }

    /// The addresses of all stitched blocks, in whole pages.
    pub(crate) fn windows_in_use(&self, page_size: usize) -> Vec<Range<u64>> {
        let blocks = self.stitched.keys().map(|&block| &self.records[block]);
        blocks.map(|b| b.address..b.address + b.size.next_multiple_of(page_size) as u64).collect()
    }

    /// The arenas with pages of this size that have this kind of memory.
    pub(crate) fn arenas(&self, kind: PoolKind, page_size: usize) -> Vec<ArenaRange> {
        let chains = self.segments.iter().flatten();
        let of_kind = chains.filter(|it| self.records[it.first].kind == kind);
        let arenas = of_kind.map(|segment| self.arena_of(segment.first));
        arenas.filter(|arena| arena.page_size == page_size && arena.number != NONE).collect()
    }
}
