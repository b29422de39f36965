//! Whole free pages of arenas: their release, migration to other heaps, and return.

use super::{ArenaKind, ArenaRange, Heap, Record, Status};
use crate::trace::TraceAction;
use crate::{Policy, PoolKind};

/// Adjacent whole pages of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Number of the arena.
    pub(crate) arena: u32,
    pub(crate) start: u64,
    /// Size in bytes.
    pub(crate) size: usize,
}

impl Pages {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size as u64
    }

    /// Returns each page as a range of its own.
    pub(crate) fn split(self, page_size: usize) -> impl Iterator<Item = Pages> {
        let starts = (self.start..self.end()).step_by(page_size);
        starts.map(move |start| Pages { start, size: page_size, ..self })
    }
}

impl<M> Heap<M> {
    /// Removes all whole free pages from a policy's arenas. Their addresses stay, unmapped.
    pub(crate) fn unmap_free_pages(&mut self, policy: Policy, kind: PoolKind) -> Vec<Pages> {
        let free = self.free_pages(kind, |arena| arena.policy == policy).into_iter();
        free.map(|(block, pages)| self.unmap(block, pages, Status::Unmapped)).collect()
    }

    /// Removes up to `count` whole free pages for migration, starting at the highest addresses.
    /// Their addresses stay, as migrated.
    pub(crate) fn migrate_any(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        count: usize,
    ) -> Vec<Pages> {
        let mut migrated = Vec::new();
        let mut left = count;
        for (block, pages) in self.free_pages_by_address(arenas, kind).into_iter().rev() {
            if left == 0 {
                break;
            }
            let size = pages.size.min(left * arenas.page_size);
            let start = pages.end() - size as u64;
            migrated.push(self.unmap(block, Pages { start, size, ..pages }, Status::Migrated));
            left -= size / arenas.page_size;
        }
        migrated
    }

    /// Removes the free pages among `wanted` for migration. `wanted` is sorted by address.
    pub(crate) fn migrate_listed(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        wanted: &[Pages],
    ) -> Vec<Pages> {
        let mut migrated = Vec::new();
        for (block, free) in self.free_pages_by_address(arenas, kind) {
            let from = wanted.partition_point(|page| page.start < free.start);
            let to = wanted.partition_point(|page| page.start < free.end());
            // Go in descending order, because a split leaves the block's number with the lower part
            // of the block.
            for page in wanted[from..to].iter().rev() {
                let page = Pages { arena: free.arena, ..*page };
                migrated.push(self.unmap(block, page, Status::Migrated));
            }
        }
        migrated
    }

    /// Returns the whole free pages of these arenas, by address.
    pub(crate) fn list_free_pages(&self, arenas: ArenaKind, kind: PoolKind) -> Vec<Pages> {
        self.free_pages_by_address(arenas, kind).into_iter().map(|(_, pages)| pages).collect()
    }

    /// Returns the free blocks of these arenas that contain whole pages, with these pages, by
    /// address.
    fn free_pages_by_address(&self, arenas: ArenaKind, kind: PoolKind) -> Vec<(u32, Pages)> {
        let mut free = self.free_pages(kind, |arena| arena == arenas);
        free.sort_unstable_by_key(|(_, pages)| pages.start);
        free
    }

    fn free_pages(&self, kind: PoolKind, counts: impl Fn(ArenaKind) -> bool) -> Vec<(u32, Pages)> {
        let free = self.free_blocks(kind).filter(|(_, record)| record.arena);
        let free = free.filter(|&(block, _)| counts(self.arena_of(block).kind));
        free.filter_map(|(block, _)| Some((block, self.whole_pages(block)?))).collect()
    }

    /// Returns the whole pages inside a free block of an arena.
    fn whole_pages(&self, block: u32) -> Option<Pages> {
        let free = &self.records[block];
        let ArenaRange { number: arena, base, kind, .. } = self.arena_of(block);
        let page = kind.page_size as u64;
        let start = base + (free.address - base).next_multiple_of(page);
        let end = base + (free.address + free.size as u64 - base) / page * page;
        (start < end).then(|| Pages { arena, start, size: (end - start) as usize })
    }

    /// Removes whole pages from a free block, which must contain them. Their addresses stay, with
    /// the given status.
    fn unmap(&mut self, block: u32, pages: Pages, status: Status) -> Pages {
        let part = self.claim_part(block, pages.start, pages.size);
        self.coalesce_unmapped(part, status);
        self.trace(TraceAction::SegmentUnmap, pages.start, pages.size, None);
        pages
    }

    /// Makes unmapped or migrated pages free after they were mapped.
    pub(crate) fn map(&mut self, kind: PoolKind, pages: Pages) {
        let unmapped = self.unmapped[kind as usize].range(..=pages.start).next_back();
        let Some((&start, &block)) = unmapped else { return };
        let (record, status) = (self.records[block], self.records.status(block));
        let ahead = (pages.start - start) as usize;
        if ahead + pages.size > record.size {
            return;
        }
        self.unlist(block);
        let middle =
            if ahead == 0 { block } else { self.records.split(block, ahead, Status::Claimed) };
        if self.records[middle].size > pages.size {
            let rest = self.records.split(middle, pages.size, status);
            self.list(rest);
        }
        if ahead > 0 {
            self.list(block);
        }
        self.coalesce(middle);
        self.trace(TraceAction::SegmentMap, pages.start, pages.size, None);
    }

    /// Marks migrated pages as unmapped if they are no longer mapped here, because such pages
    /// cannot return.
    pub(crate) fn forget_migrated(&mut self, is_mapped: impl Fn(Pages) -> bool) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let listed: Vec<u32> = self.unmapped[kind as usize].values().copied().collect();
            for block in listed {
                if !self.records.is(block, Status::Migrated) {
                    continue;
                }
                let Record { address: start, size, .. } = self.records[block];
                if !is_mapped(Pages { arena: self.arena_of(block).number, start, size }) {
                    self.unlist(block);
                    self.coalesce_unmapped(block, Status::Unmapped);
                }
            }
        }
    }
}
