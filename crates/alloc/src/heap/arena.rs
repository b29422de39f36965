//! Arenas: ranges of reserved addresses, part of which has memory.

use std::panic::Location;

use super::{ArenaKind, ArenaRange, Heap, NONE, Pages, Record, Region, RegionBacking, Status};
use crate::rules::SMALL_BUFFER;
use crate::trace::TraceAction;
use crate::{Policy, PoolKind};

/// Adjacent free and unmapped addresses of an arena, which become one block after memory is mapped
/// at the gaps. Until then they are in no pool.
#[derive(Debug)]
pub(crate) struct Expansion {
    /// The record that covers the addresses.
    block: u32,
    /// Addresses and sizes of the free blocks that `block` covers, by address.
    free: Vec<(u64, usize)>,
    /// Gaps without memory, by address.
    pub(crate) missing: Vec<Pages>,
}

impl Expansion {
    /// Splits the gaps into single pages.
    pub(crate) fn split_missing(&mut self, page_size: usize) {
        let missing = std::mem::take(&mut self.missing);
        self.missing = missing.into_iter().flat_map(|pages| pages.split(page_size)).collect();
    }
}

impl<M> Heap<M> {
    /// Returns the block that PyTorch chooses with expandable segments, starting from the best fit.
    /// The *reach* of a block in an arena is its size together with the unmapped addresses behind
    /// it. The search goes through the blocks by size, as long as the next block has a shorter
    /// reach.
    pub(crate) fn shortest_reach(&self, kind: PoolKind, best_fit: u32) -> u32 {
        let reach = |block: u32| {
            let Record { size, next, .. } = self.records[block];
            let extends = self.records.is(next, Status::Unmapped);
            size + if extends { self.records[next].size } else { 0 }
        };
        let mut block = best_fit;
        while self.records[block].arena
            && let Some(next) = self.next_fit(kind, block)
            && reach(next) < reach(block)
        {
            block = next;
        }
        block
    }

    /// Adds a reserved range without mapped pages.
    pub(crate) fn add_arena(&mut self, kind: PoolKind, arena: ArenaRange) {
        let backing = RegionBacking::Arena(arena);
        let region = Region { backing, first: NONE, oversize: false, refused: false };
        let block = self.add_chain(region, kind, (arena.base, arena.bytes), Status::Unmapped);
        self.unmapped[kind as usize].insert(arena.base, block);
    }

    /// Plans an expansion to `size` bytes at the lowest address, as PyTorch does with expandable
    /// segments. `None` if no arena has room.
    pub(crate) fn plan_first_expansion(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        size: usize,
    ) -> Option<Expansion> {
        let (first, _) = self.expansions(arenas, kind, size).next()?;
        Some(self.claim_run(first, size))
    }

    /// Plans the expansion to `size` bytes that needs the least new memory.
    pub(crate) fn plan_least_expansion(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        size: usize,
    ) -> Option<Expansion> {
        let expansions = self.expansions(arenas, kind, size);
        let (first, _) = expansions.min_by_key(|(_, missing)| *missing)?;
        Some(self.claim_run(first, size))
    }

    /// Plans an expansion of `bytes` unmapped bytes, in whole pages.
    pub(crate) fn plan_pages(
        &mut self,
        arenas: ArenaKind,
        kind: PoolKind,
        bytes: usize,
    ) -> Option<Expansion> {
        let mut unmapped = self.unmapped_of(arenas, kind);
        let first = unmapped.find(|&block| self.records[block].size >= bytes)?;
        drop(unmapped);
        Some(self.claim_run(first, bytes))
    }

    /// Returns the possible expansions to `size` bytes, by address: the first record of each, and
    /// the number of bytes to map.
    fn expansions(
        &self,
        arenas: ArenaKind,
        kind: PoolKind,
        size: usize,
    ) -> impl Iterator<Item = (u32, usize)> {
        self.unmapped_of(arenas, kind).filter_map(move |unmapped| {
            let prev = self.records[unmapped].prev;
            let first = if self.is_usable(prev) { prev } else { unmapped };
            let (mut bytes, mut missing, mut block) = (0, 0, first);
            while bytes < size && self.is_usable(block) {
                let record = &self.records[block];
                if self.records.is(block, Status::Unmapped) {
                    missing += record.size.min((size - bytes).next_multiple_of(arenas.page_size));
                }
                bytes += record.size;
                block = record.next;
            }
            (bytes >= size).then_some((first, missing))
        })
    }

    /// Returns the unmapped records of these arenas, by address.
    fn unmapped_of(&self, arenas: ArenaKind, kind: PoolKind) -> impl Iterator<Item = u32> {
        let unmapped = self.unmapped[kind as usize].values().copied();
        unmapped.filter(move |&block| {
            self.records.is(block, Status::Unmapped) && self.arena_of(block).kind == arenas
        })
    }

    /// Returns whether a record is free or unmapped.
    fn is_usable(&self, block: u32) -> bool {
        self.records.is(block, Status::Free) || self.records.is(block, Status::Unmapped)
    }

    /// Claims adjacent free and unmapped records, starting at `first`, until they have `size`
    /// bytes. Rounds the memory to map up to whole pages.
    fn claim_run(&mut self, first: u32, size: usize) -> Expansion {
        let ArenaRange { number: arena, kind: ArenaKind { page_size, .. }, .. } =
            self.arena_of(first);
        let (mut free, mut missing) = (Vec::new(), Vec::new());
        let (mut bytes, mut block) = (0, first);
        loop {
            let record = self.records[block];
            self.unlist(block);
            if self.records.is(block, Status::Free) {
                free.push((record.address, record.size));
                bytes += record.size;
            } else {
                let wanted = (size - bytes).next_multiple_of(page_size).min(record.size);
                if wanted < record.size {
                    let rest = self.records.split(block, wanted, Status::Unmapped);
                    self.list(rest);
                }
                missing.push(Pages { arena, start: record.address, size: wanted });
                bytes += wanted;
            }
            if block != first {
                self.records.merge_next(first);
            }
            self.records.set_status(first, Status::Claimed);
            block = self.records[first].next;
            if bytes >= size {
                return Expansion { block: first, free, missing };
            }
        }
    }

    /// Finishes an expansion after all its pages were mapped. Returns its block, which is in no
    /// pool.
    pub(crate) fn finish_expansion(
        &mut self,
        expansion: &Expansion,
        kind: PoolKind,
        site: &'static Location<'static>,
    ) -> u32 {
        self.trace_maps(&expansion.missing, Some(site));
        self.coalesce(expansion.block);
        self.remove_free(kind, expansion.block);
        expansion.block
    }

    /// Reverts an expansion. The first `mapped` gaps become free memory, and the other gaps become
    /// unmapped again.
    pub(crate) fn return_expansion(&mut self, expansion: &Expansion, mapped: usize) {
        self.trace_maps(&expansion.missing[..mapped], None);
        let missing = expansion.missing.iter().enumerate();
        let mut pieces: Vec<(u64, usize, bool)> = missing
            .map(|(at, pages)| (pages.start, pages.size, at < mapped))
            .chain(expansion.free.iter().map(|&(start, size)| (start, size, true)))
            .collect();
        pieces.sort_unstable();
        let mut block = expansion.block;
        let mut blocks = Vec::with_capacity(pieces.len());
        for (at, &(_, size, mapped)) in pieces.iter().enumerate() {
            let rest =
                (at + 1 < pieces.len()).then(|| self.records.split(block, size, Status::Claimed));
            blocks.push((block, mapped));
            block = rest.unwrap_or(NONE);
        }
        for (block, mapped) in blocks {
            if mapped {
                self.coalesce(block);
            } else {
                self.coalesce_unmapped(block, Status::Unmapped);
            }
        }
    }

    /// Claims part of a free block. The memory before and after the part stays free.
    pub(super) fn claim_part(&mut self, block: u32, start: u64, size: usize) -> u32 {
        let record = self.records[block];
        self.unlist(block);
        let before = (start - record.address) as usize;
        let after = record.size - before - size;
        let middle =
            if before == 0 { block } else { self.records.split(block, before, Status::Claimed) };
        if after > 0 {
            let rest = self.records.split(middle, size, Status::Free);
            self.list(rest);
        }
        if before > 0 {
            self.list(block);
        }
        self.records.set_status(middle, Status::Claimed);
        middle
    }

    /// Marks a record as unmapped or migrated, merges it with neighbours of the same status, and
    /// lists it.
    pub(super) fn coalesce_unmapped(&mut self, mut block: u32, status: Status) {
        self.records.set_status(block, status);
        let Record { kind, prev, next, .. } = self.records[block];
        let kind = kind as usize;
        if self.records.is(next, status) {
            self.unmapped[kind].remove(&self.records[next].address);
            self.records.merge_next(block);
        }
        if self.records.is(prev, status) {
            self.records.merge_next(prev);
            block = prev;
        }
        self.unmapped[kind].insert(self.records[block].address, block);
    }

    /// Removes a free, unmapped or migrated record from its list.
    pub(super) fn unlist(&mut self, block: u32) {
        let Record { kind, address, .. } = self.records[block];
        if self.records.is(block, Status::Free) {
            self.free[kind as usize].remove(&mut self.records, block);
        } else {
            self.unmapped[kind as usize].remove(&address);
        }
    }

    /// Adds a free, unmapped or migrated record to its list, without merging.
    pub(super) fn list(&mut self, block: u32) {
        let Record { kind, address, .. } = self.records[block];
        if self.records.is(block, Status::Free) {
            self.free[kind as usize].insert(&mut self.records, block);
        } else {
            self.unmapped[kind as usize].insert(address, block);
        }
    }

    fn trace_maps(&self, mapped: &[Pages], site: Option<&'static Location<'static>>) {
        for adjacent in mapped.chunk_by(|a, b| a.end() == b.start) {
            let size = adjacent.iter().map(|pages| pages.size).sum();
            self.trace(TraceAction::SegmentMap, adjacent[0].start, size, site);
        }
    }

    // ---- arenas -------------------------------------------------------------------------

    /// Returns the arena of a record.
    pub(super) fn arena_of(&self, block: u32) -> ArenaRange {
        let region = self.records[block].region as usize;
        match self.regions[region].as_ref().map(|region| &region.backing) {
            Some(RegionBacking::Arena(arena)) => *arena,
            _ => {
                let kind = ArenaKind { policy: Policy::Torch, page_size: SMALL_BUFFER };
                ArenaRange { kind, number: NONE, base: 0, bytes: 0 }
            }
        }
    }

    /// Returns a policy's arenas, each with its first record.
    fn arenas_of(&self, policy: Policy) -> impl Iterator<Item = (ArenaRange, u32)> {
        self.regions.iter().flatten().filter_map(move |region| match &region.backing {
            RegionBacking::Arena(arena) if arena.kind.policy == policy => {
                Some((*arena, region.first))
            }
            _ => None,
        })
    }

    /// Returns the numbers of a policy's arenas.
    pub(crate) fn arena_numbers(&self, policy: Policy) -> impl Iterator<Item = u32> {
        self.arenas_of(policy).map(|(arena, _)| arena.number)
    }

    /// Returns the numbers of the arenas of this kind in one pool.
    pub(crate) fn arena_numbers_of(&self, arenas: ArenaKind, kind: PoolKind) -> Vec<u32> {
        let all = self.arenas_of(arenas.policy).filter(|(arena, _)| arena.kind == arenas);
        let of_pool = all.filter(|&(_, first)| self.records[first].kind == kind);
        of_pool.map(|(arena, _)| arena.number).collect()
    }

    pub(crate) fn has_arenas(&self) -> bool {
        self.regions.iter().flatten().any(|it| matches!(it.backing, RegionBacking::Arena(..)))
    }

    /// Removes a policy's arenas without mapped pages. Returns their numbers.
    pub(crate) fn remove_empty_arenas(&mut self, policy: Policy) -> Vec<u32> {
        let mut empty = Vec::new();
        for at in 0..self.regions.len() {
            if let Some(Region { backing: RegionBacking::Arena(arena), first, .. }) =
                &self.regions[at]
                && arena.kind.policy == policy
                && self.records.is(*first, Status::Unmapped)
                && self.records[*first].next == NONE
            {
                empty.push(arena.number);
                let kind = self.records[*first].kind as usize;
                self.unmapped[kind].remove(&arena.base);
                self.records.vacate(*first);
                self.regions[at] = None;
                self.unused_regions.push(at as u32);
            }
        }
        empty
    }
}
