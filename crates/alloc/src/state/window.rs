//! Where an arena's next addresses are mapped, if pages that are free elsewhere can be: where it
//! takes the fewest calls.

use super::arena::Growth;
use super::{Held, NONE, Pages, Request, State};
use crate::Backend;
use crate::pages::{Arenas, FreePages};

/// Stretches of free and unmapped addresses that are looked at, the shortest first.
const MAX_RUNS: usize = 16;
/// Positions in each, half of them from its beginning and half from its end.
const MAX_POSITIONS: usize = 8;

/// What mapping pages at these addresses takes.
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
    cost: u32,
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
        let mut runs = self.runs(request, page_size);
        runs.sort_unstable_by_key(|run| run.end - run.start);
        // The last one is an endless tail, which has room for certain.
        let tail = (runs.len() > MAX_RUNS).then(|| runs.len() - 1);
        let kept = runs.len().min(MAX_RUNS);
        let candidates = runs[..kept].iter().chain(tail.map(|at| &runs[at]));
        let mut best: Option<Window> = None;
        for run in candidates {
            for (block, start) in self.positions(run, request.size, page_size, arenas) {
                let limit = best.map_or(u32::MAX, |best| best.cost);
                let window = (start, start + request.size as u64);
                if let Some(cost) =
                    self.window_cost(block, window, page_size, limit, (arenas, free))
                {
                    let window = Window { cost, run: run.end - run.start, start, block };
                    best = Some(best.map_or(window, |best| best.min(window)));
                }
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

    /// The runs that have room for the request, where pages have this size.
    fn runs(&self, request: &Request, page_size: usize) -> Vec<Run> {
        let kind = request.kind as usize;
        let free = self.pools[kind].iter().map(|free| free.block);
        let usable = free.chain(self.unmapped[kind].values().copied());
        let firsts = usable.filter(|&block| {
            let record = &self.records[block as usize];
            record.arena && !self.is_usable(record.prev) && self.has_pages_of(page_size, block)
        });
        firsts
            .filter_map(|first| {
                let start = self.records[first as usize].address;
                let (mut end, mut block) = (start, first);
                while self.is_usable(block) {
                    let record = &self.records[block as usize];
                    end = record.address + record.size as u64;
                    block = record.next;
                }
                (end - start >= request.size as u64).then_some(Run { first, start, end })
            })
            .collect()
    }

    /// Where in a run a window may begin: at records, and so that it ends where the run does.
    fn positions(
        &self,
        run: &Run,
        size: usize,
        page_size: usize,
        arenas: &Arenas<B>,
    ) -> Vec<(u32, u64)> {
        let arena = self.arena_of(run.first).number;
        let last = run.end - size as u64;
        let mut positions = Vec::new();
        let mut block = run.first;
        while block != NONE {
            let record = &self.records[block as usize];
            if record.address > last {
                break;
            }
            positions.push((block, record.address));
            let end = record.address + record.size as u64;
            // Unmapped addresses are mapped by the page.
            let at = match record.held {
                Held::Unmapped => last - (last - record.address) % page_size as u64,
                _ => last,
            };
            // The endless tail ends nowhere; what was never mapped lies at its own end.
            let at = if record.next == NONE { arenas.fresh(arena).min(at) } else { at };
            if last < end && at > record.address {
                positions.push((block, at));
            }
            block = if end < run.end { record.next } else { NONE };
        }
        if positions.len() > MAX_POSITIONS {
            let half = MAX_POSITIONS / 2;
            positions.drain(half..positions.len() - half);
        }
        positions
    }

    /// What it takes to map all of a window; `None` if that cannot be, or is more than `limit`.
    fn window_cost(
        &self,
        mut block: u32,
        (start, end): (u64, u64),
        page_size: usize,
        limit: u32,
        (arenas, free): (&Arenas<B>, &FreePages),
    ) -> Option<u32> {
        let arena = self.arena_of(block).number;
        let mut sum = 0;
        while block != NONE {
            let record = &self.records[block as usize];
            if record.address >= end {
                break;
            }
            if record.held == Held::Unmapped {
                let from = record.address.max(start);
                let bytes = (end.min(record.address + record.size as u64) - from) as usize;
                let size = bytes.next_multiple_of(page_size);
                match arenas.cost(Pages { arena, start: from, size }, free) {
                    Cost::Calls(calls) => sum += calls,
                    Cost::Busy => return None,
                }
                if sum > limit {
                    return None;
                }
            }
            block = record.next;
        }
        Some(sum)
    }
}
