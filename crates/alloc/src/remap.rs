//! The default policy: pages that are free somewhere are mapped where memory is needed.

use std::sync::Arc;

use crate::allocator::Shared;
use crate::core::Slow;
use crate::pages::FreePages;
use crate::shard::{Shard, lock};
use crate::state::{Granted, Growth, Pages, Request};
use crate::{AllocError, Backend, PoolKind, VirtualMemory};

/// New pages are created, rather than free ones taken from where they are, while all pages are
/// at most one part in so many more than what was asked for at the peak.
const SLACK: usize = 64;
/// And while they are at most so many bytes more: so that the streams of a small program do not
/// take one page from each other all the time.
const MIN_SLACK: usize = 8 << 20;

/// From so many new pages on, it is asked first whether there is memory for all of them: making
/// them takes longer than that, and a request that fails leaves them to be given back.
const MANY: usize = 128;

/// A free page that is to be mapped elsewhere.
struct Loan {
    page: Pages,
    kind: PoolKind,
    /// Number of the lending, by which its former addresses are known to be out of use.
    lending: u64,
    /// Where it is still free.
    owner: usize,
}

/// What a growth is for.
struct Need<'a, B: Backend> {
    memory: &'a dyn VirtualMemory<B::Error>,
    /// All that have pages; the first is the one that grows.
    shards: &'a [Arc<Shard<B>>],
    request: &'a Request,
    page_size: usize,
    /// How many bytes may be reserved.
    limit: Option<usize>,
}

impl<B: Backend> Shared<B> {
    /// Maps pages, free or new ones, behind the addresses where it takes the fewest calls.
    pub(crate) fn remap(
        &self,
        slow: &mut Slow<B>,
        memory: &dyn VirtualMemory<B::Error>,
        shard: &Arc<Shard<B>>,
        request: &Request,
        page_size: usize,
        limit: Option<usize>,
    ) -> Result<Option<Granted>, AllocError> {
        if !self.core.is_capturing() {
            slow.arenas.poll(&self.core.backend);
        }
        let shards = self.lenders(shard);
        let free = shards.iter().flat_map(|shard| shard.lock().list_free_pages(page_size));
        let free = slow.arenas.free_pages(&free.collect::<Vec<_>>());
        let need = Need { memory, shards: &shards, request, page_size, limit };
        let Some(mut growth) = self.plan(slow, &need, shard, &free)? else { return Ok(None) };
        let mut taken_back = self.take_back(slow, &need, &mut growth);
        if growth.missing[taken_back..].iter().any(|&pages| slow.arenas.is_busy(pages)) {
            // Not every page that was to come back did, and work may still use where it was.
            shard.lock().undo(&growth, taken_back);
            let none = FreePages::default();
            let Some(other) = self.plan(slow, &need, shard, &none)? else { return Ok(None) };
            (growth, taken_back) = (other, 0);
        }
        let left = free.count.saturating_sub(taken_back);
        let new = (growth.missing.len() - taken_back).saturating_sub(left);
        let filled = match self.has_room(new, &need) {
            Ok(true) => self.fill(slow, &need, &growth, taken_back),
            Ok(false) => Err((taken_back, None)),
            Err(error) => Err((taken_back, Some(error))),
        };
        lock(&self.core.global).mapping_time += std::mem::take(&mut slow.arenas.spent);
        match filled {
            Ok(()) => Ok(Some(shard.lock().finish(&growth, request))),
            Err((mapped, error)) => {
                shard.lock().undo(&growth, mapped);
                error.map_or(Ok(None), Err)
            }
        }
    }

    /// Whether there is memory for so many new pages, as far as it is known.
    fn has_room(&self, pages: usize, need: &Need<'_, B>) -> Result<bool, AllocError> {
        let bytes = pages.saturating_mul(need.page_size);
        let free = || self.core.backend.mem_info().map_or(usize::MAX, |(free, _)| free);
        Ok(pages < MANY || (self.may_reserve(bytes, need.limit)? && bytes <= free()))
    }

    /// Chooses addresses, new ones if need be, and lists what is missing page by page.
    fn plan(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        shard: &Arc<Shard<B>>,
        free: &FreePages,
    ) -> Result<Option<Growth>, AllocError> {
        let (request, page_size) = (need.request, need.page_size);
        let mut planned = shard.lock().plan_cheapest(request, page_size, &slow.arenas, free);
        if planned.is_none() {
            self.reserve(slow, need.memory, shard, request, page_size)?;
            planned = shard.lock().plan_cheapest(request, page_size, &slow.arenas, free);
        }
        if let Some(growth) = &mut planned {
            growth.split_missing(page_size);
        }
        Ok(planned)
    }

    /// Takes pages back that were lent from the missing addresses and are free: that takes no
    /// call. Answers how many there are; they are first among the missing from now on.
    fn take_back(&self, slow: &mut Slow<B>, need: &Need<'_, B>, growth: &mut Growth) -> usize {
        let lent = growth.missing.iter();
        let mut wanted: Vec<(Pages, Pages)> =
            lent.filter_map(|&at| Some((slow.arenas.borrower(at)?, at))).collect();
        wanted.sort_unstable_by_key(|(borrower, _)| borrower.start);
        wanted.dedup_by_key(|(borrower, _)| borrower.start);
        let borrowers: Vec<Pages> = wanted.iter().map(|&(borrower, _)| borrower).collect();
        let mut back = Vec::new();
        for owner in 0..need.shards.len() {
            if borrowers.is_empty() {
                break;
            }
            let taken = need.shards[owner].lock().take_these_pages(&borrowers, need.page_size);
            for loan in self.lend_out(slow, need.shards, owner, taken) {
                let find = wanted.binary_search_by_key(&loan.page.start, |(from, _)| from.start);
                if let Ok(found) = find {
                    let (from, to) = wanted[found];
                    slow.arenas.take_back(to, loan.lending);
                    self.hooks.moved(from.start, to.start, to.size);
                    back.push(to.start);
                    let mut global = lock(&self.core.global);
                    let (to, bytes) = (need.request.kind, need.page_size as i64);
                    global.reserved_bytes.transfer(loan.kind, to, bytes);
                }
            }
        }
        growth.missing.sort_by_key(|page| !back.contains(&page.start));
        back.len()
    }

    /// Maps a page at each missing address of a growth but the first ones. An error says how many are mapped, and
    /// is `None` where there is no memory.
    fn fill(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        growth: &Growth,
        mapped: usize,
    ) -> Result<(), (usize, Option<AllocError>)> {
        let missing = growth.missing.len();
        if mapped == missing {
            return Ok(());
        }
        let peak = self.core.peak_requested_with(need.request.requested);
        let reserved = lock(&self.core.global).reserved_bytes.current() as usize;
        let allowed = peak + (peak / SLACK).max(MIN_SLACK);
        let room = allowed.saturating_sub(reserved) / need.page_size;
        let shards = need.shards;
        // What is not to be had anywhere has to be new.
        let mut loans =
            self.borrow(slow, shards, (missing - mapped).saturating_sub(room), need.page_size);
        for (mapped, &to) in growth.missing.iter().enumerate().skip(mapped) {
            if loans.is_empty() {
                match self.create(slow, need, to) {
                    Ok(true) => continue,
                    Ok(false) => {
                        // Memory is short: only what is free somewhere is left.
                        let left = missing - mapped;
                        loans = self.borrow(slow, shards, left, need.page_size);
                        if loans.len() < left {
                            self.give_back(shards, loans);
                            return Err((mapped, None));
                        }
                    }
                    Err(error) => return Err((mapped, Some(error))),
                }
            }
            let Some(loan) = loans.pop() else { return Err((mapped, None)) };
            if let Err(error) = slow.arenas.lend(need.memory, loan.page, to, loan.lending) {
                loans.push(loan);
                self.give_back(shards, loans);
                let none = self.core.backend.is_out_of_memory(&error);
                let failed = || AllocError::from_backend(need.page_size, error);
                return Err((mapped, (!none).then(failed)));
            }
            self.hooks.moved(loan.page.start, to.start, to.size);
            let mut global = lock(&self.core.global);
            global.reserved_bytes.transfer(loan.kind, need.request.kind, need.page_size as i64);
            global.num_remaps += 1;
        }
        Ok(())
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
        match slow.arenas.create(need.memory, to) {
            Ok(()) => {
                let mut global = lock(&self.core.global);
                global.reserved_bytes.increase(need.request.kind, to.size as i64);
                global.num_device_alloc += 1;
                Ok(true)
            }
            Err(error) if self.core.backend.is_out_of_memory(&error) => Ok(false),
            Err(error) => Err(AllocError::from_backend(to.size, error)),
        }
    }

    /// All shards, this one first: its own free pages need no wait. During a capture it is alone,
    /// since the others' streams may be the ones that are captured.
    fn lenders(&self, shard: &Arc<Shard<B>>) -> Vec<Arc<Shard<B>>> {
        if self.core.is_capturing() {
            return vec![Arc::clone(shard)];
        }
        let mut shards = self.core.shared_shards();
        shards.sort_by_key(|other| !Arc::ptr_eq(other, shard));
        shards
    }

    /// Takes up to `count` free pages from where they are. Later work of the first shard's stream
    /// waits, on the device, for what the others' streams still do with theirs.
    fn borrow(
        &self,
        slow: &mut Slow<B>,
        shards: &[Arc<Shard<B>>],
        count: usize,
        page_size: usize,
    ) -> Vec<Loan> {
        let mut loans = Vec::new();
        for (owner, shard) in shards.iter().enumerate() {
            if loans.len() == count {
                break;
            }
            let taken = shard.lock().take_some_pages(count - loans.len(), page_size);
            loans.extend(self.lend_out(slow, shards, owner, taken));
        }
        loans.reverse();
        loans
    }

    /// Makes loans of free pages that were taken out of a shard.
    fn lend_out(
        &self,
        slow: &mut Slow<B>,
        shards: &[Arc<Shard<B>>],
        owner: usize,
        taken: Vec<(PoolKind, Pages)>,
    ) -> Vec<Loan> {
        if taken.is_empty() {
            return Vec::new();
        }
        let backend = &self.core.backend;
        let stream = shards[owner].lock().stream.clone();
        let event = backend.record(&stream).and_then(|event| {
            if owner > 0 {
                let own = shards[0].lock().stream.clone();
                backend.wait(&own, &event)?;
            }
            Ok(event)
        });
        let Ok(event) = event else {
            // Nobody knows when these are out of use.
            let mut state = shards[owner].lock();
            taken.into_iter().for_each(|(kind, pages)| state.uncarve(kind, pages));
            return Vec::new();
        };
        let lending = slow.arenas.add_lending(event);
        let page_size = |pages: Pages| slow.arenas.page_size(pages.arena);
        let loans = taken.into_iter().flat_map(|(kind, pages)| {
            pages.each(page_size(pages)).map(move |page| Loan { page, kind, lending, owner })
        });
        loans.collect()
    }

    fn give_back(&self, shards: &[Arc<Shard<B>>], loans: Vec<Loan>) {
        for loan in loans {
            shards[loan.owner].lock().uncarve(loan.kind, loan.page);
        }
    }
}
