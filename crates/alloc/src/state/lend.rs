//! Whole free pages of the arenas, which leave for other shards and pools or for good, and come back.

use super::{ArenaRange, Held, Pages, Record, State};
use crate::trace::TraceAction;
use crate::{Backend, PoolKind};

impl<B: Backend> State<B> {
    /// Takes all whole free pages out of the arenas.
    pub(crate) fn take_free_pages(&mut self, kind: PoolKind) -> Vec<Pages> {
        let free = self.free_pages(kind).into_iter();
        free.map(|(block, pages)| self.carve(block, pages.start, pages.size, false)).collect()
    }

    /// Lends up to `count` whole free pages, those at the highest addresses first.
    pub(crate) fn lend_some_pages(
        &mut self,
        kind: PoolKind,
        count: usize,
        page_size: usize,
    ) -> Vec<Pages> {
        let mut lent = Vec::new();
        let mut left = count * page_size;
        for (block, pages) in self.free_pages_of(kind, page_size).into_iter().rev() {
            if left == 0 {
                break;
            }
            let size = pages.size.min(left);
            let start = pages.start + (pages.size - size) as u64;
            lent.push(self.carve(block, start, size, true));
            left -= size;
        }
        lent
    }

    /// Lends those of the wanted pages, which are sorted by address, that are free.
    pub(crate) fn lend_these_pages(
        &mut self,
        kind: PoolKind,
        wanted: &[Pages],
        page_size: usize,
    ) -> Vec<Pages> {
        let mut lent = Vec::new();
        for (block, free) in self.free_pages_of(kind, page_size) {
            let from = wanted.partition_point(|page| page.start < free.start);
            let to = wanted.partition_point(|page| page.start < free.end());
            // From behind, so that the block keeps its number.
            for page in wanted[from..to].iter().rev() {
                lent.push(self.carve(block, page.start, page_size, true));
            }
        }
        lent
    }

    /// The whole free pages of the arenas with pages of this size, by address.
    pub(crate) fn list_free_pages(&self, kind: PoolKind, page_size: usize) -> Vec<Pages> {
        self.free_pages_of(kind, page_size).into_iter().map(|(_, pages)| pages).collect()
    }

    /// The free blocks of the arenas that contain whole pages, and those.
    fn free_pages(&self, kind: PoolKind) -> Vec<(u32, Pages)> {
        let free = self.free_in_arenas(kind);
        free.filter_map(|(block, _)| Some((block, self.whole_pages(block)?))).collect()
    }

    /// The same where pages have this size, by address.
    fn free_pages_of(&self, kind: PoolKind, page_size: usize) -> Vec<(u32, Pages)> {
        let mut free = self.free_pages(kind);
        free.retain(|&(block, _)| self.has_pages_of(page_size, block));
        free.sort_unstable_by_key(|(_, pages)| pages.start);
        free
    }

    /// The whole pages inside a free block of an arena.
    fn whole_pages(&self, block: u32) -> Option<Pages> {
        let free = &self.records[block];
        let ArenaRange { number: arena, base, page_size, .. } = self.arena_of(block);
        let page = page_size as u64;
        let start = base + (free.address - base).next_multiple_of(page);
        let end = base + (free.address + free.size as u64 - base) / page * page;
        (start < end).then(|| Pages { arena, start, size: (end - start) as usize })
    }

    /// Takes whole pages out of a free block, which must contain them: their addresses stay,
    /// without memory of their own. Pages that are lent may come back.
    fn carve(&mut self, block: u32, start: u64, size: usize, lent: bool) -> Pages {
        let arena = self.arena_of(block).number;
        let middle = self.cut_out(block, start, size);
        self.join_unmapped(middle, if lent { Held::Lent } else { Held::Unmapped });
        self.trace(TraceAction::SegmentUnmap, start, size, None);
        Pages { arena, start, size }
    }

    /// Makes pages free that were unmapped or lent, and are mapped now.
    pub(crate) fn uncarve(&mut self, kind: PoolKind, pages: Pages) {
        let unmapped = self.unmapped[kind as usize].range(..=pages.start).next_back();
        let Some((&start, &block)) = unmapped else { return };
        let (record, held) = (self.records[block], self.records.held(block));
        let ahead = (pages.start - start) as usize;
        if ahead + pages.size > record.size {
            return;
        }
        self.unlist(block);
        let middle =
            if ahead == 0 { block } else { self.records.split(block, ahead, Held::Growing) };
        if self.records[middle].size > pages.size {
            let rest = self.records.split(middle, pages.size, held);
            self.list(rest);
        }
        if ahead > 0 {
            self.list(block);
        }
        self.join_pool(middle);
        self.trace(TraceAction::SegmentMap, pages.start, pages.size, None);
    }

    /// What was lent comes back no more where nothing is mapped any more.
    pub(crate) fn forget_lent(&mut self, is_mapped: impl Fn(Pages) -> bool) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let lent: Vec<u32> = self.unmapped[kind as usize].values().copied().collect();
            for block in lent {
                // Those that were merged into another meanwhile are not lent any more.
                let Record { address: start, size, .. } = self.records[block];
                let lent = self.records.is(block, Held::Lent);
                if lent && !is_mapped(Pages { arena: self.arena_of(block).number, start, size }) {
                    self.unlist(block);
                    self.join_unmapped(block, Held::Unmapped);
                }
            }
        }
    }
}
