//! The default policy: requests are served by pages that are free somewhere before new ones are
//! made. `stitch.rs` has what it does with memory that lies apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use warpline_sync::atomic::Ordering;

use crate::allocator::Shared;
use crate::core::Slow;
use crate::shard::{Shard, lock};
use crate::state::{Granted, Growth, Pages, Request, State};
use crate::{AllocError, Backend, PoolKind, VirtualMemory};

/// From so many new pages on, it is asked first whether there is memory for all of them: making
/// them takes longer than that, and a request that fails leaves them to be given back.
const MANY: usize = 128;

/// Other threads may take what was gathered for a request. So often it is tried.
const ATTEMPTS: usize = 4;

/// A free page of another shard or pool, out of its books.
struct Loan {
    page: Pages,
    kind: PoolKind,
    owner: usize,
}

/// What memory is looked for.
pub(crate) struct Need<'a, B: Backend> {
    pub(crate) memory: &'a dyn VirtualMemory<B::Error>,
    /// All that have pages; the first is the one that needs them.
    shards: &'a [Arc<Shard<B>>],
    pub(crate) request: Request,
    pub(crate) page_size: usize,
    /// How many bytes may be reserved.
    limit: Option<usize>,
}

impl<B: Backend> Need<'_, B> {
    pub(crate) fn shard(&self) -> &Arc<Shard<B>> {
        &self.shards[0]
    }
}

impl<B: Backend> Shared<B> {
    /// Serves a request that nothing cached fits.
    pub(crate) fn remap(
        &self,
        slow: &mut Slow<B>,
        memory: &dyn VirtualMemory<B::Error>,
        shard: &Arc<Shard<B>>,
        request: Request,
        page_size: usize,
        limit: Option<usize>,
    ) -> Result<Option<Granted>, AllocError> {
        if !self.core.is_capturing() {
            slow.arenas.poll(&self.core.backend);
        }
        let shards = self.lenders(shard);
        let need = Need { memory, shards: &shards, request, page_size, limit };
        let served = self.serve(slow, &need);
        if matches!(served, Ok(Some(_))) {
            let pages = slow.arenas.pages;
            slow.slack.served(self.core.demand(0), pages);
        }
        lock(&self.core.global).mapping_time += std::mem::take(&mut slow.arenas.spent);
        served
    }

    /// First come windows that are there, then as many new pages as may be, then whatever is free.
    ///
    /// What is chosen is the first by address. So a program that repeats itself finds the windows
    /// that it needs from the second time on, and makes no call any more.
    fn serve(&self, slow: &mut Slow<B>, need: &Need<'_, B>) -> Result<Option<Granted>, AllocError> {
        for _ in 0..ATTEMPTS {
            if let Some(granted) = self.reuse_window(slow, need) {
                return Ok(Some(granted));
            }
            if let Some(granted) = self.grow_home(slow, need)? {
                return Ok(Some(granted));
            }
            match self.gather(slow, need)? {
                None => return Ok(None),
                Some(0) => {}
                Some(_) => {
                    // What came may lie beside what was there.
                    let mut state = need.shard().lock();
                    if let Some(granted) = state.take_fit_again(need.request) {
                        return Ok(Some(granted));
                    }
                    drop(state);
                    if let Some(granted) = self.reuse_window(slow, need) {
                        return Ok(Some(granted));
                    }
                }
            }
            if let Some(granted) = self.stitch(slow, need)? {
                return Ok(Some(granted));
            }
        }
        Ok(None)
    }

    /// So many new pages may be made although others are free.
    fn slack(&self, slow: &Slow<B>, need: &Need<'_, B>) -> usize {
        // Threads that wait in line here ask for what they wait for at the same time.
        let demand = self.core.demand(self.core.waiting.load(Ordering::Relaxed));
        slow.slack.bytes(demand, self.core.reserved()) / need.page_size
    }

    /// Maps new pages behind free memory, or where there is none, if there is slack for them.
    fn grow_home(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
    ) -> Result<Option<Granted>, AllocError> {
        let slack = self.slack(slow, need) * need.page_size;
        if slack == 0 {
            return Ok(None);
        }
        let plan = |state: &mut State<B>| state.plan_growth(need.request, need.page_size);
        let Some(growth) = self.plan(slow, need, need.request.size, plan)? else {
            return Ok(None);
        };
        let pages = growth.missing.len();
        if pages * need.page_size > slack || !self.has_room(pages, need)? {
            need.shard().lock().undo(&growth, 0);
            return Ok(None);
        }
        for (mapped, &to) in growth.missing.iter().enumerate() {
            let created = self.create(slow, need, to);
            if !matches!(created, Ok(true)) {
                need.shard().lock().undo(&growth, mapped);
                return created.map(|_| None);
            }
        }
        Ok(Some(need.shard().lock().finish(&growth, need.request)))
    }

    /// Chooses addresses, new ones if need be, and lists what is missing page by page.
    fn plan(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        bytes: usize,
        plan: impl Fn(&mut State<B>) -> Option<Growth>,
    ) -> Result<Option<Growth>, AllocError> {
        let mut planned = plan(&mut need.shard().lock());
        if planned.is_none()
            && let Some(arena) =
                self.reserve(slow, need.memory, need.request, bytes, need.page_size)?
        {
            let mut state = need.shard().lock();
            state.add_arena(need.request.kind, arena);
            planned = plan(&mut state);
        }
        if let Some(growth) = &mut planned {
            growth.split_missing(need.page_size);
        }
        Ok(planned)
    }

    /// Brings pages here, of other shards and pools or new ones, until those that are free here
    /// are enough for the request. Answers how many came; `None` if there is not enough memory.
    fn gather(&self, slow: &mut Slow<B>, need: &Need<'_, B>) -> Result<Option<usize>, AllocError> {
        let (kind, page_size) = (need.request.kind, need.page_size);
        let wanted = need.request.size.div_ceil(page_size);
        let free = need.shard().lock().list_free_pages(kind, page_size);
        let free: usize = free.iter().map(|pages| pages.size / page_size).sum();
        let missing = wanted.saturating_sub(free);
        if missing == 0 {
            return Ok(Some(0));
        }
        let elsewhere = self.free_elsewhere(need);
        let available = elsewhere.iter().map(|(_, _, pages)| pages.size / page_size).sum();
        let short = missing.saturating_sub(available);
        let mut new = self.slack(slow, need).min(missing).max(short);
        if !self.has_room(new, need)? {
            if available < missing {
                return Ok(None);
            }
            new = 0;
        }
        // Those that come from elsewhere are what is missing after that: where memory is short,
        // that may be more.
        let made = self.bring(slow, need, new, Vec::new())?;
        let taken = self.take_back(slow, need, missing - made, &elsewhere);
        // No call, but a wait between streams: about as dear as one.
        slow.slack.remapped(usize::from(taken > 0));
        let mut came = made + taken;
        let loans = self.borrow(need, missing - came);
        let rest = if made < new { loans.len() } else { missing - came };
        came += self.bring(slow, need, rest, loans)?;
        if came < missing {
            return Ok(None);
        }
        if short > 0 {
            slow.slack.force(self.core.reserved());
        }
        Ok(Some(came))
    }

    /// Maps so many pages here, at new addresses: those on loan first, then new ones. Answers how
    /// many; fewer if memory is short.
    fn bring(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        count: usize,
        mut loans: Vec<Loan>,
    ) -> Result<usize, AllocError> {
        let (kind, page_size) = (need.request.kind, need.page_size);
        if count == 0 {
            return Ok(0);
        }
        let plan = |state: &mut State<B>| state.plan_pages(kind, count, page_size);
        let growth = match self.plan(slow, need, count * page_size, plan) {
            Ok(Some(growth)) => growth,
            failed => {
                self.give_back(need, loans);
                return failed.map(|_| 0);
            }
        };
        let (mut mapped, mut result) = (0, Ok(true));
        for &to in &growth.missing {
            result = match loans.pop() {
                Some(loan) => self.map_loan(slow, need, loan, to),
                None => self.create(slow, need, to),
            };
            if !matches!(result, Ok(true)) {
                break;
            }
            mapped += 1;
        }
        self.give_back(need, loans);
        need.shard().lock().undo(&growth, mapped);
        result.map(|_| mapped)
    }

    /// Maps a page on loan; false if there is no memory for that.
    fn map_loan(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        loan: Loan,
        to: Pages,
    ) -> Result<bool, AllocError> {
        if let Err(error) = slow.arenas.lend(need.memory, loan.page, to) {
            self.give_back(need, vec![loan]);
            let none = self.core.backend.is_out_of_memory(&error);
            return if none { Ok(false) } else { Err(AllocError::from_backend(to.size, error)) };
        }
        lock(&self.core.global).num_remaps += 1;
        slow.slack.remapped(1);
        self.moved(need, &loan, to);
        Ok(true)
    }

    /// Counts a page where it is now, and tells of it.
    fn moved(&self, need: &Need<'_, B>, loan: &Loan, to: Pages) {
        let bytes = need.page_size as i64;
        lock(&self.core.global).reserved_bytes.transfer(loan.kind, need.request.kind, bytes);
        self.core.hooks.moved(loan.page.start, to.start, to.size);
    }

    /// Whether there is memory for so many new pages, as far as it is known.
    fn has_room(&self, pages: usize, need: &Need<'_, B>) -> Result<bool, AllocError> {
        let bytes = pages.saturating_mul(need.page_size);
        let free = || self.core.backend.mem_info().map_or(usize::MAX, |(free, _)| free);
        Ok(pages < MANY || (self.may_reserve(bytes, need.limit)? && bytes <= free()))
    }

    /// Creates a page and maps it; false if there is no memory for it.
    fn create(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        to: Pages,
    ) -> Result<bool, AllocError> {
        if !self.may_reserve(to.size, need.limit)? {
            return Ok(false);
        }
        match slow.arenas.create(need.memory, need.request.kind, to) {
            Ok(()) => {
                let mut global = lock(&self.core.global);
                global.reserved_bytes.increase(need.request.kind, to.size as i64);
                global.num_device_alloc += 1;
                Ok(true)
            }
            Err((error, kept)) => {
                // Of one page nothing stays mapped.
                self.count_kept(slow, need.request.kind, &kept);
                if !self.core.backend.is_out_of_memory(&error) {
                    return Err(AllocError::from_backend(to.size, error));
                }
                slow.slack.refuse(self.core.demand(0));
                Ok(false)
            }
        }
    }

    /// All shards, this one first. During a capture it is alone, since the others' streams may be
    /// the ones that are captured.
    fn lenders(&self, shard: &Arc<Shard<B>>) -> Vec<Arc<Shard<B>>> {
        if self.core.is_capturing() {
            return vec![Arc::clone(shard)];
        }
        let mut shards = self.core.shared_shards();
        shards.sort_by_key(|other| !Arc::ptr_eq(other, shard));
        shards
    }

    /// Pools other than the one that needs pages, by shard: this one's other pool needs no wait.
    fn others(need: &Need<'_, B>) -> impl Iterator<Item = (usize, PoolKind)> {
        let kind = need.request.kind;
        let shards = 0..need.shards.len();
        let pools = shards.flat_map(|owner| [PoolKind::Large, PoolKind::Small].map(|k| (owner, k)));
        pools.filter(move |other| *other != (0, kind))
    }

    /// Whole free pages that are at home elsewhere.
    fn free_elsewhere(&self, need: &Need<'_, B>) -> Vec<(usize, PoolKind, Pages)> {
        let list = |(owner, kind): (usize, PoolKind)| {
            let pages = need.shards[owner].lock().list_free_pages(kind, need.page_size);
            pages.into_iter().map(move |pages| (owner, kind, pages))
        };
        Self::others(need).flat_map(list).collect()
    }

    /// Takes up to `count` of these pages that were at home here before: that takes no call.
    /// Answers how many came.
    fn take_back(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        count: usize,
        elsewhere: &[(usize, PoolKind, Pages)],
    ) -> usize {
        if count == 0 || elsewhere.is_empty() {
            return 0;
        }
        let kind = need.request.kind;
        let arenas = need.shard().lock().arenas(kind, need.page_size);
        let away = arenas.iter().flat_map(|arena| slow.arenas.away(arena.number));
        let is_free = |(_, there): &(Pages, Pages)| {
            let mut free = elsewhere.iter().map(|(_, _, pages)| pages.start..pages.end());
            free.any(|free| free.contains(&there.start))
        };
        // A page may have been at home here at more than one address.
        let mut seen = BTreeSet::new();
        let wanted = away.filter(|it| is_free(it) && seen.insert(it.1.start));
        let mut wanted: Vec<_> = wanted.take(count).collect();
        wanted.sort_unstable_by_key(|(_, there)| there.start);
        let there: Vec<Pages> = wanted.iter().map(|&(_, there)| there).collect();
        let mut came = 0;
        for (owner, from) in Self::others(need) {
            let taken = need.shards[owner].lock().lend_these_pages(from, &there, need.page_size);
            for loan in self.lend_out(need, owner, from, taken) {
                let find = there.binary_search_by_key(&loan.page.start, |page| page.start);
                let Ok(found) = find else { continue };
                let to = wanted[found].0;
                slow.arenas.take_back(loan.page, to);
                self.moved(need, &loan, to);
                need.shard().lock().uncarve(kind, to);
                came += 1;
            }
        }
        came
    }

    /// Takes up to `count` free pages from where they are at home.
    fn borrow(&self, need: &Need<'_, B>, count: usize) -> Vec<Loan> {
        let mut loans = Vec::new();
        for (owner, kind) in Self::others(need) {
            if loans.len() == count {
                break;
            }
            let left = count - loans.len();
            let taken = need.shards[owner].lock().lend_some_pages(kind, left, need.page_size);
            loans.extend(self.lend_out(need, owner, kind, taken));
        }
        loans.reverse();
        loans
    }

    /// Makes loans of free pages that were taken out of a shard. Later work of the first shard's
    /// stream waits, on the device, for what another's still does with them.
    fn lend_out(
        &self,
        need: &Need<'_, B>,
        owner: usize,
        kind: PoolKind,
        taken: Vec<Pages>,
    ) -> Vec<Loan> {
        if owner > 0 && !taken.is_empty() {
            let backend = &self.core.backend;
            let [own, other] = [0, owner].map(|at| need.shards[at].lock().stream.clone());
            let ordered = backend.record(&other).and_then(|event| backend.wait(&own, &event));
            if ordered.is_err() {
                // Nobody knows when these are out of use.
                let mut state = need.shards[owner].lock();
                taken.into_iter().for_each(|pages| state.uncarve(kind, pages));
                return Vec::new();
            }
        }
        let pages = taken.into_iter().flat_map(|pages| pages.each(need.page_size));
        pages.map(|page| Loan { page, kind, owner }).collect()
    }

    fn give_back(&self, need: &Need<'_, B>, loans: Vec<Loan>) {
        for loan in loans {
            need.shards[loan.owner].lock().uncarve(loan.kind, loan.page);
        }
    }
}
