//! Segments whose pages come and go: reserved addresses, of which a part has memory.

use std::panic::Location;

use super::{ArenaRange, Held, Holding, NONE, Record, Request, Segment, State};
use crate::free_index::{Free, Position};
use crate::rules::SMALL_BUFFER;
use crate::state::Granted;
use crate::trace::TraceAction;
use crate::{Backend, PoolKind};

/// Whole pages of an arena, by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// The arena's number.
    pub(crate) arena: u32,
    pub(crate) start: u64,
    /// In bytes.
    pub(crate) size: usize,
}

/// Addresses that were taken out of an arena's pools to be mapped where they are not.
#[derive(Debug)]
pub(crate) struct Growth {
    /// The one record that now covers them.
    block: u32,
    /// Free blocks among them, by address.
    free: Vec<(u64, usize)>,
    /// What has to be mapped, by address.
    pub(crate) missing: Vec<Pages>,
}

impl Growth {
    /// Lists what is missing page by page.
    pub(crate) fn split_missing(&mut self, page_size: usize) {
        let missing = std::mem::take(&mut self.missing);
        self.missing = missing.into_iter().flat_map(|pages| pages.each(page_size)).collect();
    }
}

impl Pages {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size as u64
    }

    /// Each page alone.
    pub(crate) fn each(self, page_size: usize) -> impl Iterator<Item = Pages> {
        let starts = (self.start..self.start + self.size as u64).step_by(page_size);
        starts.map(move |start| Pages { start, size: page_size, ..self })
    }
}

impl<B: Backend> State<B> {
    /// Adds a reserved range, with nothing mapped.
    pub(crate) fn add_arena(&mut self, kind: PoolKind, arena: ArenaRange) {
        let segment = Segment { holding: Holding::Arena(arena), first: NONE, oversize: false };
        let block = self.add_chain(segment, kind, arena.base, arena.bytes, Held::Unmapped);
        self.unmapped[kind as usize].insert(arena.base, block);
    }

    /// PyTorch's choice with expandable segments: a block counts as long as itself and the
    /// unmapped addresses behind it; from the best fit on, as long as the next is shorter.
    pub(super) fn least_expandable(
        &self,
        kind: PoolKind,
        mut position: Position,
        mut free: Free,
    ) -> (Position, Free) {
        let reach = |free: &Free| {
            let record = &self.records[free.block as usize];
            let next = self.records.get(record.next as usize);
            let tail = next.filter(|next| next.held == Held::Unmapped).map_or(0, |next| next.size);
            free.size + tail
        };
        let pool = &self.pools[kind as usize];
        while let Some((next_position, next)) = pool.after(position)
            && self.records[free.block as usize].arena
            && reach(&next) < reach(&free)
        {
            (position, free) = (next_position, next);
        }
        (position, free)
    }

    /// The first addresses that become long enough for the request by mapping pages of
    /// `page_size` bytes, as PyTorch's expandable segments choose them. `None` if no arena has
    /// them.
    pub(crate) fn plan_expansion(&mut self, request: &Request, page_size: usize) -> Option<Growth> {
        let (first, _) = self.expansions(request, page_size).next()?;
        Some(self.take_run(first, request.size, page_size))
    }

    /// The same, but for where the least is missing.
    pub(crate) fn plan_growth(&mut self, request: &Request, page_size: usize) -> Option<Growth> {
        let (first, _) = self.expansions(request, page_size).min_by_key(|(_, missing)| *missing)?;
        Some(self.take_run(first, request.size, page_size))
    }

    /// Addresses for so many pages, none of which is mapped.
    pub(crate) fn plan_pages(
        &mut self,
        kind: PoolKind,
        count: usize,
        page_size: usize,
    ) -> Option<Growth> {
        let mut unmapped = self.unmapped_of(kind, page_size);
        let bytes = count * page_size;
        let first = unmapped.find(|&block| self.records[block as usize].size >= bytes)?;
        drop(unmapped);
        Some(self.take_run(first, bytes, page_size))
    }

    /// Where a request can be served by mapping pages, by address: the first record of each place,
    /// and how many bytes have to be mapped there.
    fn expansions(
        &self,
        request: &Request,
        page_size: usize,
    ) -> impl Iterator<Item = (u32, usize)> {
        let size = request.size;
        self.unmapped_of(request.kind, page_size).filter_map(move |unmapped| {
            let prev = self.records[unmapped as usize].prev;
            let first = if self.is_usable(prev) { prev } else { unmapped };
            let (mut bytes, mut missing, mut block) = (0, 0, first);
            while bytes < size && self.is_usable(block) {
                let record = &self.records[block as usize];
                if record.held == Held::Unmapped {
                    missing += record.size.min((size - bytes).next_multiple_of(page_size));
                }
                bytes += record.size;
                block = record.next;
            }
            (bytes >= size).then_some((first, missing))
        })
    }

    /// The unmapped records in arenas with pages of this size, by address. Under other options
    /// there may have been pages of another size.
    fn unmapped_of(&self, kind: PoolKind, page_size: usize) -> impl Iterator<Item = u32> {
        let unmapped = self.unmapped[kind as usize].values().copied();
        unmapped.filter(move |&block| {
            let held = self.records[block as usize].held;
            held == Held::Unmapped && self.has_pages_of(page_size, block)
        })
    }

    /// Whether a record is free or unmapped.
    fn is_usable(&self, block: u32) -> bool {
        let record = self.records.get(block as usize);
        record.is_some_and(|record| matches!(record.held, Held::Free | Held::Unmapped))
    }

    /// Takes adjacent free and unmapped records, from `first` on, out of their pools until they
    /// are `size` bytes with what is mapped rounded up to whole pages.
    fn take_run(&mut self, first: u32, size: usize, page_size: usize) -> Growth {
        let arena = self.arena_of(first).number;
        let (mut free, mut missing) = (Vec::new(), Vec::new());
        let (mut bytes, mut block) = (0, first);
        loop {
            let record = self.records[block as usize];
            self.unlist(&record);
            if record.held == Held::Free {
                free.push((record.address, record.size));
                bytes += record.size;
            } else {
                let wanted = (size - bytes).next_multiple_of(page_size).min(record.size);
                if wanted < record.size {
                    let rest = self.split_off(block, wanted, Held::Unmapped);
                    self.list(rest);
                }
                missing.push(Pages { arena, start: record.address, size: wanted });
                bytes += wanted;
            }
            if block != first {
                self.absorb_next(first);
            }
            self.records[first as usize].held = Held::Growing;
            block = self.records[first as usize].next;
            if bytes >= size {
                return Growth { block: first, free, missing };
            }
        }
    }

    /// Takes a free or unmapped record out of its pool.
    fn unlist(&mut self, record: &Record) {
        if record.held == Held::Free {
            self.pools[record.kind as usize].remove(record.size, record.address);
        } else {
            self.unmapped[record.kind as usize].remove(&record.address);
        }
    }

    /// Puts a free or unmapped record into its pool, as it is.
    fn list(&mut self, block: u32) {
        let record = self.records[block as usize];
        if record.held == Held::Free {
            self.pools[record.kind as usize].insert(record.free(block));
        } else {
            self.unmapped[record.kind as usize].insert(record.address, block);
        }
    }

    /// All of a growth is mapped: hands its beginning out.
    pub(crate) fn finish(&mut self, growth: &Growth, request: &Request) -> Granted {
        self.trace_maps(&growth.missing, Some(request.site));
        self.join_pool(growth.block);
        let record = &self.records[growth.block as usize];
        self.pools[record.kind as usize].remove(record.size, record.address);
        self.hand_out(growth.block, request);
        self.granted(growth.block)
    }

    /// Of a growth's missing pages, only the first `mapped` ranges are: puts everything back.
    pub(crate) fn undo(&mut self, growth: &Growth, mapped: usize) {
        self.trace_maps(&growth.missing[..mapped], None);
        let missing = growth.missing.iter().enumerate();
        let mut pieces: Vec<(u64, usize, bool)> = missing
            .map(|(at, pages)| (pages.start, pages.size, at < mapped))
            .chain(growth.free.iter().map(|&(start, size)| (start, size, true)))
            .collect();
        pieces.sort_unstable();
        let mut block = growth.block;
        let mut blocks = Vec::with_capacity(pieces.len());
        for (at, &(_, size, mapped)) in pieces.iter().enumerate() {
            let rest = (at + 1 < pieces.len()).then(|| self.split_off(block, size, Held::Growing));
            blocks.push((block, mapped));
            block = rest.unwrap_or(NONE);
        }
        for (block, mapped) in blocks {
            if mapped {
                self.join_pool(block);
            } else {
                self.join_unmapped(block, Held::Unmapped);
            }
        }
    }

    /// Takes whole pages out of a free block, which must contain them: their addresses stay,
    /// without memory of their own. Pages that are lent may come back.
    pub(crate) fn carve(&mut self, block: u32, start: u64, size: usize, lent: bool) -> Pages {
        let arena = self.arena_of(block).number;
        let middle = self.cut_out(block, start, size);
        self.join_unmapped(middle, if lent { Held::Lent } else { Held::Unmapped });
        self.trace(TraceAction::SegmentUnmap, start, size, None);
        Pages { arena, start, size }
    }

    /// Takes a part out of a free block, out of its pool.
    pub(super) fn cut_out(&mut self, block: u32, start: u64, size: usize) -> u32 {
        let record = self.records[block as usize];
        self.unlist(&record);
        let before = (start - record.address) as usize;
        let after = record.size - before - size;
        let middle = if before == 0 { block } else { self.split_off(block, before, Held::Growing) };
        if after > 0 {
            let rest = self.split_off(middle, size, Held::Free);
            self.list(rest);
        }
        if before > 0 {
            self.list(block);
        }
        self.records[middle as usize].held = Held::Growing;
        middle
    }

    fn trace_maps(&self, mapped: &[Pages], site: Option<&'static Location<'static>>) {
        for adjacent in mapped.chunk_by(|a, b| a.start + a.size as u64 == b.start) {
            let size = adjacent.iter().map(|pages| pages.size).sum();
            self.trace(TraceAction::SegmentMap, adjacent[0].start, size, site);
        }
    }

    /// Makes pages free that were unmapped or lent, and are mapped now.
    pub(crate) fn uncarve(&mut self, kind: PoolKind, pages: Pages) {
        let unmapped = self.unmapped[kind as usize].range(..=pages.start).next_back();
        let Some((&start, &block)) = unmapped else { return };
        let record = self.records[block as usize];
        let ahead = (pages.start - start) as usize;
        if ahead + pages.size > record.size {
            return;
        }
        self.unlist(&record);
        let middle = if ahead == 0 { block } else { self.split_off(block, ahead, Held::Growing) };
        if self.records[middle as usize].size > pages.size {
            let rest = self.split_off(middle, pages.size, record.held);
            self.list(rest);
        }
        if ahead > 0 {
            self.list(block);
        }
        self.join_pool(middle);
        self.trace(TraceAction::SegmentMap, pages.start, pages.size, None);
    }

    /// Makes a record unmapped or lent, merges it with neighbours that are the same, and lists it.
    fn join_unmapped(&mut self, mut block: u32, held: Held) {
        self.records[block as usize].held = held;
        let kind = self.records[block as usize].kind as usize;
        let is_same = |records: &[Record], at: u32| {
            records.get(at as usize).is_some_and(|record| record.held == held)
        };
        let next = self.records[block as usize].next;
        if is_same(&self.records, next) {
            self.unmapped[kind].remove(&self.records[next as usize].address);
            self.absorb_next(block);
        }
        let prev = self.records[block as usize].prev;
        if is_same(&self.records, prev) {
            self.absorb_next(prev);
            block = prev;
        }
        self.unmapped[kind].insert(self.records[block as usize].address, block);
    }

    /// Nothing that was lent comes back any more.
    pub(crate) fn forget_lent(&mut self) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            let lent: Vec<u32> = self.unmapped[kind as usize].values().copied().collect();
            for block in lent {
                // Those that were merged into another meanwhile are not lent any more.
                let record = self.records[block as usize];
                if record.held == Held::Lent {
                    self.unlist(&record);
                    self.join_unmapped(block, Held::Unmapped);
                }
            }
        }
    }

    /// The whole pages inside a free block of an arena.
    fn whole_pages(&self, free: &Free) -> Option<Pages> {
        let ArenaRange { number: arena, base, page_size, .. } = self.arena_of(free.block);
        let page = page_size as u64;
        let start = base + (free.address - base).next_multiple_of(page);
        let end = base + (free.address + free.size as u64 - base) / page * page;
        (start < end).then(|| Pages { arena, start, size: (end - start) as usize })
    }

    /// The arena in which a record lies.
    pub(super) fn arena_of(&self, block: u32) -> ArenaRange {
        let segment = self.records[block as usize].segment as usize;
        match self.segments[segment].as_ref().map(|segment| &segment.holding) {
            Some(Holding::Arena(arena)) => *arena,
            _ => ArenaRange { number: NONE, base: 0, bytes: 0, page_size: SMALL_BUFFER },
        }
    }

    /// Whether a record lies in an arena with pages of this size.
    fn has_pages_of(&self, page_size: usize, block: u32) -> bool {
        self.arena_of(block).page_size == page_size
    }

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
            let end = free.start + free.size as u64;
            let from = wanted.partition_point(|page| page.start < free.start);
            let to = wanted.partition_point(|page| page.start < end);
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
        let free = self.pools[kind as usize].iter();
        let free = free.filter(|free| self.records[free.block as usize].arena);
        free.filter_map(|free| Some((free.block, self.whole_pages(free)?))).collect()
    }

    /// The same where pages have this size, by address.
    fn free_pages_of(&self, kind: PoolKind, page_size: usize) -> Vec<(u32, Pages)> {
        let mut free = self.free_pages(kind);
        free.retain(|&(block, _)| self.has_pages_of(page_size, block));
        free.sort_unstable_by_key(|(_, pages)| pages.start);
        free
    }

    /// Takes the arenas off the books in which nothing is mapped; answers their numbers.
    pub(crate) fn take_empty_arenas(&mut self) -> Vec<u32> {
        let idle = self.stitched.is_empty();
        let mut empty = if idle { std::mem::take(&mut self.windows) } else { Vec::new() };
        for at in 0..self.segments.len() {
            if let Some(Segment { holding: Holding::Arena(arena), first, .. }) = &self.segments[at]
                && self.records[*first as usize].held == Held::Unmapped
                && self.records[*first as usize].next == NONE
            {
                empty.push(arena.number);
                let kind = self.records[*first as usize].kind as usize;
                self.unmapped[kind].remove(&arena.base);
                self.unused.push(*first);
                self.segments[at] = None;
                self.unused_segments.push(at as u32);
            }
        }
        empty
    }

    pub(crate) fn has_arenas(&self) -> bool {
        let mut segments = self.segments.iter().flatten();
        segments.any(|segment| matches!(segment.holding, Holding::Arena(..)))
    }
}
