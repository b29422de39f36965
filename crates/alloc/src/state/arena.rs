//! Segments whose pages come and go: reserved addresses, of which a part has memory.

use std::panic::Location;

use super::{ArenaRange, Held, Holding, NONE, Record, Request, Segment, State};
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
        let starts = (self.start..self.end()).step_by(page_size);
        starts.map(move |start| Pages { start, size: page_size, ..self })
    }
}

impl<B: Backend> State<B> {
    /// Adds a reserved range, with nothing mapped.
    pub(crate) fn add_arena(&mut self, kind: PoolKind, arena: ArenaRange) {
        let holding = Holding::Arena(arena);
        let segment = Segment { holding, first: NONE, oversize: false, refused: false };
        let block = self.add_chain(segment, kind, arena.base, arena.bytes, Held::Unmapped);
        self.unmapped[kind as usize].insert(arena.base, block);
    }

    /// PyTorch's choice with expandable segments: a block counts as long as itself and the
    /// unmapped addresses behind it; from the best fit on, as long as the next is shorter.
    pub(super) fn least_expandable(&self, kind: PoolKind, mut block: u32) -> u32 {
        let reach = |block: u32| {
            let Record { size, next, .. } = self.records[block];
            let extends = self.records.is(next, Held::Unmapped);
            size + if extends { self.records[next].size } else { 0 }
        };
        let pool = &self.pools[kind as usize];
        while let Some(next) = pool.after(&self.records, block)
            && self.records[block].arena
            && reach(next) < reach(block)
        {
            block = next;
        }
        block
    }

    /// The first addresses that become long enough for the request by mapping pages of
    /// `page_size` bytes, as PyTorch's expandable segments choose them. `None` if no arena has
    /// them.
    pub(crate) fn plan_expansion(&mut self, request: Request, page_size: usize) -> Option<Growth> {
        let (first, _) = self.expansions(request, page_size).next()?;
        Some(self.take_run(first, request.size, page_size))
    }

    /// The same, but for where the least is missing.
    pub(crate) fn plan_growth(&mut self, request: Request, page_size: usize) -> Option<Growth> {
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
        let first = unmapped.find(|&block| self.records[block].size >= bytes)?;
        drop(unmapped);
        Some(self.take_run(first, bytes, page_size))
    }

    /// Where a request can be served by mapping pages, by address: the first record of each place,
    /// and how many bytes have to be mapped there.
    fn expansions(&self, request: Request, page_size: usize) -> impl Iterator<Item = (u32, usize)> {
        let size = request.size;
        self.unmapped_of(request.kind, page_size).filter_map(move |unmapped| {
            let prev = self.records[unmapped].prev;
            let first = if self.is_usable(prev) { prev } else { unmapped };
            let (mut bytes, mut missing, mut block) = (0, 0, first);
            while bytes < size && self.is_usable(block) {
                let record = &self.records[block];
                if self.records.is(block, Held::Unmapped) {
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
            self.records.is(block, Held::Unmapped) && self.has_pages_of(page_size, block)
        })
    }

    /// Whether a record is free or unmapped.
    fn is_usable(&self, block: u32) -> bool {
        self.records.is(block, Held::Free) || self.records.is(block, Held::Unmapped)
    }

    /// Takes adjacent free and unmapped records, from `first` on, out of their pools until they
    /// are `size` bytes with what is mapped rounded up to whole pages.
    fn take_run(&mut self, first: u32, size: usize, page_size: usize) -> Growth {
        let arena = self.arena_of(first).number;
        let (mut free, mut missing) = (Vec::new(), Vec::new());
        let (mut bytes, mut block) = (0, first);
        loop {
            let record = self.records[block];
            self.unlist(block);
            if self.records.is(block, Held::Free) {
                free.push((record.address, record.size));
                bytes += record.size;
            } else {
                let wanted = (size - bytes).next_multiple_of(page_size).min(record.size);
                if wanted < record.size {
                    let rest = self.records.split(block, wanted, Held::Unmapped);
                    self.list(rest);
                }
                missing.push(Pages { arena, start: record.address, size: wanted });
                bytes += wanted;
            }
            if block != first {
                self.records.absorb_next(first);
            }
            self.records.hold(first, Held::Growing);
            block = self.records[first].next;
            if bytes >= size {
                return Growth { block: first, free, missing };
            }
        }
    }

    /// Takes a free or unmapped record out of its pool.
    pub(super) fn unlist(&mut self, block: u32) {
        let Record { kind, address, .. } = self.records[block];
        if self.records.is(block, Held::Free) {
            self.pools[kind as usize].remove(&mut self.records, block);
        } else {
            self.unmapped[kind as usize].remove(&address);
        }
    }

    /// Puts a free or unmapped record into its pool, as it is.
    pub(super) fn list(&mut self, block: u32) {
        let Record { kind, address, .. } = self.records[block];
        if self.records.is(block, Held::Free) {
            self.pools[kind as usize].insert(&mut self.records, block);
        } else {
            self.unmapped[kind as usize].insert(address, block);
        }
    }

    /// All of a growth is mapped: hands its beginning out.
    pub(crate) fn finish(&mut self, growth: &Growth, request: Request) -> Granted {
        self.trace_maps(&growth.missing, Some(request.site));
        self.join_pool(growth.block);
        self.pools[request.kind as usize].remove(&mut self.records, growth.block);
        self.hand_out(growth.block, request)
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
            let rest =
                (at + 1 < pieces.len()).then(|| self.records.split(block, size, Held::Growing));
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

    /// Takes a part out of a free block, out of its pool.
    pub(super) fn cut_out(&mut self, block: u32, start: u64, size: usize) -> u32 {
        let record = self.records[block];
        self.unlist(block);
        let before = (start - record.address) as usize;
        let after = record.size - before - size;
        let middle =
            if before == 0 { block } else { self.records.split(block, before, Held::Growing) };
        if after > 0 {
            let rest = self.records.split(middle, size, Held::Free);
            self.list(rest);
        }
        if before > 0 {
            self.list(block);
        }
        self.records.hold(middle, Held::Growing);
        middle
    }

    fn trace_maps(&self, mapped: &[Pages], site: Option<&'static Location<'static>>) {
        for adjacent in mapped.chunk_by(|a, b| a.end() == b.start) {
            let size = adjacent.iter().map(|pages| pages.size).sum();
            self.trace(TraceAction::SegmentMap, adjacent[0].start, size, site);
        }
    }

    /// Makes a record unmapped or lent, merges it with neighbours that are the same, and lists it.
    pub(super) fn join_unmapped(&mut self, mut block: u32, held: Held) {
        self.records.hold(block, held);
        let Record { kind, prev, next, .. } = self.records[block];
        let kind = kind as usize;
        if self.records.is(next, held) {
            self.unmapped[kind].remove(&self.records[next].address);
            self.records.absorb_next(block);
        }
        if self.records.is(prev, held) {
            self.records.absorb_next(prev);
            block = prev;
        }
        self.unmapped[kind].insert(self.records[block].address, block);
    }

    /// The arena in which a record lies.
    pub(super) fn arena_of(&self, block: u32) -> ArenaRange {
        let segment = self.records[block].segment as usize;
        match self.segments[segment].as_ref().map(|segment| &segment.holding) {
            Some(Holding::Arena(arena)) => *arena,
            _ => ArenaRange { number: NONE, base: 0, bytes: 0, page_size: SMALL_BUFFER },
        }
    }

    /// Whether a record lies in an arena with pages of this size.
    pub(super) fn has_pages_of(&self, page_size: usize, block: u32) -> bool {
        self.arena_of(block).page_size == page_size
    }

    /// Takes the arenas off the books in which nothing is mapped, and those of windows that are
    /// vacant; answers their numbers.
    pub(crate) fn take_empty_arenas(&mut self, vacant: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut empty: Vec<u32> =
            self.windows.extract_if(.., |&mut number| vacant(number)).collect();
        for at in 0..self.segments.len() {
            if let Some(Segment { holding: Holding::Arena(arena), first, .. }) = &self.segments[at]
                && self.records.is(*first, Held::Unmapped)
                && self.records[*first].next == NONE
            {
                empty.push(arena.number);
                let kind = self.records[*first].kind as usize;
                self.unmapped[kind].remove(&arena.base);
                self.records.vacate(*first);
                self.segments[at] = None;
                self.unused_segments.push(at as u32);
            }
        }
        empty
    }

    pub(crate) fn has_arenas(&self) -> bool {
        self.arena_numbers().next().is_some()
    }

    /// The arenas in which pages are at home here.
    pub(crate) fn arena_numbers(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().flatten().filter_map(|segment| match &segment.holding {
            Holding::Arena(arena) => Some(arena.number),
            Holding::Whole(_) => None,
        })
    }
}
