//! Where an arena's next addresses are mapped, if pages that are free elsewhere can be: where it
//! takes the fewest calls.

use super::arena::Growth;
use super::{ArenaRange, Held, NONE, Pages, Record, Request, State};
use crate::Backend;
use crate::pages::{Arenas, FreePages};

/// What mapping a page at an address takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// In units of which mapping one page behind new addresses takes two, and unmapping what was
    /// there before another one.
    Calls(u32),
    /// Work may still use what is mapped there.
    Busy,
}

/// Adjacent free and unmapped records.
struct Run {
    first: u32,
    start: u64,
    end: u64,
}

/// A place for a request: the record in which it begins, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    cost: u64,
    run: u64,
    start: u64,
    block: u32,
}

impl<B: Backend> State<B> {
    /// Takes the addresses for the request that are cheapest to map. `None` if no arena has them.
    pub(crate) fn plan_cheapest(
        &mut self,
        request: &Request,
        page_size: usize,
        arenas: &Arenas<B>,
        free: &FreePages,
    ) -> Option<Growth> {
        let mut runs = self.runs(request, page_size, arenas);
        runs.sort_unstable_by_key(|run| run.end - run.start);
        let mut best: Option<Window> = None;
        for run in &runs {
            let costs = self.costs(run, page_size, arenas, free);
            let windows = self.starts(run, request.size, page_size).filter_map(|(block, start)| {
                let cost = costs.between(start, start + request.size as u64)?;
                Some(Window { cost, run: run.end - run.start, start, block })
            });
            best = best.into_iter().chain(windows).min();
            if best.is_some_and(|best| best.cost == 0) {
                break;
            }
        }
        let best = best?;
        let mut first = best.block;
        let ahead = (best.start - self.records[first as usize].address) as usize;
        if ahead > 0 {
            let record = self.records[first as usize];
            self.unlist(&record);
            let rest = self.split_off(first, ahead, record.held);
            self.list(first);
            self.list(rest);
            first = rest;
        }
        Some(self.take_run(first, request.size, page_size))
    }

    /// The runs that have room for the request, where pages have this size. An arena's endless
    /// tail counts as long as is needed of it.
    fn runs(&self, request: &Request, page_size: usize, arenas: &Arenas<B>) -> Vec<Run> {
        let kind = request.kind as usize;
        let free = self.pools[kind].iter().map(|free| free.block);
        let usable = free.chain(self.unmapped[kind].values().copied());
        let firsts = usable.filter(|&block| {
            let record = &self.records[block as usize];
            record.arena && !self.is_usable(record.prev) && self.has_pages_of(page_size, block)
        });
        let size = request.size as u64;
        firsts
            .filter_map(|first| {
                let start = self.records[first as usize].address;
                let last = self.run(first).last()?;
                let mut end = last.address + last.size as u64;
                if last.next == NONE {
                    let fresh = arenas.fresh(self.arena_of(first).number).max(start);
                    end = end.min(fresh + size.next_multiple_of(page_size as u64));
                }
                (end - start >= size).then_some(Run { first, start, end })
            })
            .collect()
    }

    /// The adjacent free and unmapped records from one on.
    fn run(&self, first: u32) -> impl Iterator<Item = &Record> {
        let record = move |block: u32| self.is_usable(block).then(|| &self.records[block as usize]);
        std::iter::successors(record(first), move |last| record(last.next))
    }

    /// What it takes to map each page of a run.
    fn costs(&self, run: &Run, page_size: usize, arenas: &Arenas<B>, free: &FreePages) -> Costs {
        let ArenaRange { number: arena, base, .. } = self.arena_of(run.first);
        let page_size = page_size as u64;
        let base = base + (run.start - base) / page_size * page_size;
        let mut costs = Costs { base, page_size, sums: vec![0] };
        let mut sum = 0;
        for record in self.run(run.first) {
            let end = (record.address + record.size as u64).min(run.end);
            if record.address >= end {
                break;
            }
            if record.held == Held::Unmapped {
                let size = (end - record.address).next_multiple_of(page_size) as usize;
                let pages = Pages { arena, start: record.address, size };
                costs.sums.extend(arenas.costs(pages, free).map(|cost| {
                    sum += match cost {
                        Cost::Calls(calls) => u64::from(calls),
                        Cost::Busy => BUSY,
                    };
                    sum
                }));
            } else {
                // Pages of which a part is free are mapped.
                costs.sums.resize(1 + ((end - base).div_ceil(page_size)) as usize, sum);
            }
        }
        costs
    }

    /// Where in a run a window may begin: at records, at pages that are not mapped, and so that
    /// it ends where the run does.
    fn starts(&self, run: &Run, size: usize, page_size: usize) -> impl Iterator<Item = (u32, u64)> {
        let last = run.end - size as u64;
        let mut block = run.first;
        let records = self
            .run(run.first)
            .map(move |record| (std::mem::replace(&mut block, record.next), record));
        let records = records.take_while(move |(_, record)| record.address <= last);
        records.flat_map(move |(block, record)| {
            let end = (record.address + record.size as u64).min(last + 1);
            let (step, at_end) = match record.held {
                Held::Unmapped => (page_size, None),
                _ => (usize::MAX, (last < end && last > record.address).then_some(last)),
            };
            let starts = (record.address..end).step_by(step).chain(at_end);
            starts.map(move |start| (block, start))
        })
    }
}

/// Counts for more than all pages there can be.
const BUSY: u64 = 1 << 40;

/// What it takes to map the pages of a run, summed up.
struct Costs {
    /// Where the first page begins.
    base: u64,
    page_size: u64,
    /// Of all pages before each, and of all.
    sums: Vec<u64>,
}

impl Costs {
    /// For the pages in which these addresses lie; `None` where they are busy.
    fn between(&self, start: u64, end: u64) -> Option<u64> {
        let before = *self.sums.get(((start - self.base) / self.page_size) as usize)?;
        let behind = *self.sums.get((end - self.base).div_ceil(self.page_size) as usize)?;
        Some(behind - before).filter(|cost| *cost < BUSY)
    }
}
