//! Pages that migrate. Little memory is reserved beyond the allocated memory, because free pages of
//! any stream serve a request before new pages are created. `docs/default-policy.md` explains the
//! policy, with a traced run.
//!
//! Each stream and pool has its own arenas, where pages lie side by side. The best fitting free
//! block is found as under any other policy. If a request fits into no free block,
//! [`serve`](MovablePages::serve) tries these ways, in this order:
//!
//! 1. Reuse a *window* ([`windows`]) if enough memory at its start is free. A window is a range of
//!    addresses at which pages are mapped a second time.
//! 2. Map new pages, next to free memory if possible, while there is *headroom* ([`headroom`]).
//! 3. *Migrate* free pages of other streams, and of the stream's other pool, to this pool
//!    ([`migrate`]), and create pages, until enough memory is free here. New pages come first: as
//!    many as the headroom still allows, or more if there are too few free pages. Then come pages
//!    with a former home here, because they are still mapped there, and then other pages. Before it
//!    uses pages of another stream, the request's stream waits, on the device, for that stream.
//! 4. Make the block an *alias* ([`alias`]): map pieces of free memory a second time, next to each
//!    other, in a new window.
//!
//! The oldest window that fits is taken, and a new window gets the first unused addresses. A
//! repeating program therefore makes the same choices again and finds its windows: from its second
//! or third round on, it makes no mapping call.
//!
//! The time of a mapping does not depend on the page's size, and setting the access of many pages
//! in one call saves no time. `page_size_mb` sets the page size of the large pool. Pages of the
//! small pool have the same size, but at most 4 MiB.

mod alias;
mod headroom;
mod migrate;
mod windows;

use warpline_sync::atomic::Ordering;

use self::headroom::{Demand, Headroom};
use self::migrate::Donors;
use self::windows::Windows;
use super::arenas::{Arenas, FreePages};
use crate::core::Core;
use crate::growth::{GrowthPolicy, Miss};
use crate::heap::{ArenaKind, Expansion, Heap, Pages};
use crate::rules::PAGE;
use crate::shard::AllocatedBlock;
use crate::sync::lock;
use crate::{AllocError, Backend, Policy, PoolKind, VirtualMemory};

/// Number of new pages from which the device's available memory is queried before they are created.
/// Creating that many pages takes longer than the query, and after a failure they would have to be
/// released again.
const QUERY_FROM_PAGES: usize = 128;

/// Maximum number of attempts for a request. Other threads may take the memory that was made free
/// for it.
const ATTEMPTS: usize = 4;

/// A miss, with the memory management, the arenas and the headroom option that serve it.
struct PageRequest<'a, B: Backend> {
    miss: &'a Miss<'a, B>,
    memory: &'a dyn VirtualMemory<B::Error>,
    /// The arenas in which the request is served.
    arenas: ArenaKind,
    /// Memory that may be reserved beyond the peak of the requested bytes, in percent. `None`: the
    /// policy's own rule.
    headroom_percent: Option<f64>,
}

impl<'a, B: Backend> PageRequest<'a, B> {
    fn new(miss: &'a Miss<'a, B>, memory: &'a dyn VirtualMemory<B::Error>) -> Self {
        let config = miss.shard.lock().config.clone();
        let page_size = match miss.request.kind {
            PoolKind::Large => config.page_size(),
            PoolKind::Small => PAGE.min(config.page_size()),
        };
        let arenas = ArenaKind { policy: Policy::Default, page_size };
        Self { miss, memory, arenas, headroom_percent: config.headroom_percent }
    }

    fn page_size(&self) -> usize {
        self.arenas.page_size
    }
}

/// The policy of `policy:default`.
pub(super) struct MovablePages<B: Backend> {
    pub(super) arenas: Arenas,
    windows: Windows<B>,
    headroom: Headroom,
}

impl<B: Backend> Default for MovablePages<B> {
    fn default() -> Self {
        let arenas = Arenas::new(Policy::Default);
        Self { arenas, windows: Windows::default(), headroom: Headroom::default() }
    }
}

impl<B: Backend> GrowthPolicy<B> for MovablePages<B> {
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let core = miss.core;
        let Some(memory) = core.backend.virtual_memory() else { return Ok(None) };
        if !core.is_capturing() {
            self.windows.poll(&core.backend);
        }
        let served = self.serve(&PageRequest::new(miss, memory));
        if matches!(served, Ok(Some(_))) {
            self.headroom.record_served(Demand::of(core, 0), self.arenas.pages);
        }
        self.arenas.count_time(core);
        served
    }

    fn release_cached(&mut self, core: &Core<B>) {
        // Reset the headroom, so that it adapts to the demand anew.
        self.headroom = Headroom::default();
        let Some(memory) = core.backend.virtual_memory() else { return };
        let mut free = FreePages::take(core, Policy::Default);
        if free.is_empty() {
            return;
        }
        if free.wait(core) {
            self.windows.record_device_wait();
        }
        let in_use: Vec<_> = free.shards.iter().flat_map(|it| it.in_use.iter().cloned()).collect();
        let idle = free.shards.iter().filter(|it| it.idle);
        let homes = idle.flat_map(|it| it.arenas.iter().copied()).collect();
        let elsewhere = self.windows.unmap_aliases(&mut self.arenas, memory, &in_use, &homes);
        let shards: Vec<_> = free.shards.iter().map(|it| it.shard.clone()).collect();
        for shard in &shards {
            shard.lock().heap.forget_migrated(|pages| self.arenas.has_aliases(pages));
        }
        free.release(core, &mut self.arenas, memory, &elsewhere);
        for shard in &shards {
            let is_vacant = |arena: &mut u32| self.arenas.is_vacant(*arena);
            let vacant: Vec<u32> =
                shard.lock().heap.window_arenas.extract_if(.., is_vacant).collect();
            vacant.into_iter().for_each(|arena| self.arenas.remove(memory, arena));
        }
        self.arenas.count_refused(core);
    }

    fn retry_refused(&mut self, core: &Core<B>, all: bool) {
        self.arenas.retry_refused(core, all);
    }
}

impl<B: Backend> MovablePages<B> {
    /// Serves a request in one of the four ways of the [module](self).
    ///
    /// All choices are deterministic (lowest address, oldest window, shortest pieces), so that a
    /// repeating program finds its windows again.
    fn serve(&mut self, need: &PageRequest<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let miss = need.miss;
        let donors = Donors::new(need);
        for _ in 0..ATTEMPTS {
            if let Some(allocated) = self.reuse_window(need) {
                return Ok(Some(allocated));
            }
            if let Some(allocated) = self.expand(need)? {
                return Ok(Some(allocated));
            }
            match self.supply_pages(need, &donors)? {
                None => return Ok(None),
                Some(0) => {}
                Some(_) => {
                    // The added pages may be adjacent to free memory.
                    if let Some(allocated) = miss.shard.lock().take_fit_again(miss.request) {
                        return Ok(Some(allocated));
                    }
                    if let Some(allocated) = self.reuse_window(need) {
                        return Ok(Some(allocated));
                    }
                }
            }
            if let Some(allocated) = self.alias(need)? {
                return Ok(Some(allocated));
            }
        }
        Ok(None)
    }

    /// Maps new pages, next to free memory if possible, as far as the headroom allows.
    fn expand(&mut self, need: &PageRequest<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let (shard, request) = (need.miss.shard, need.miss.request);
        let headroom = self.headroom(need);
        if headroom == 0 {
            return Ok(None);
        }
        let (kind, size) = (request.kind, request.size);
        let plan = |heap: &mut Heap<_>| heap.plan_least_expansion(need.arenas, kind, size);
        let expansion = self.plan(need, size, plan)?;
        let Some(expansion) = expansion else { return Ok(None) };
        let pages = expansion.missing.len();
        if pages > headroom || !self.has_room(need, pages)? {
            shard.lock().heap.return_expansion(&expansion, 0);
            return Ok(None);
        }
        for (mapped, &to) in expansion.missing.iter().enumerate() {
            let created = self.create(need, to);
            if !matches!(created, Ok(true)) {
                shard.lock().heap.return_expansion(&expansion, mapped);
                return created.map(|_| None);
            }
        }
        let mut state = shard.lock();
        let block = state.heap.finish_expansion(&expansion, kind, request.site);
        Ok(Some(state.allocate_block(block, request)))
    }

    /// Returns the number of new pages that may be created although other pages are free.
    fn headroom(&self, need: &PageRequest<'_, B>) -> usize {
        let core = need.miss.core;
        // `waiting` has the bytes of this request and of requests whose threads wait for the
        // policies' lock.
        let demand = Demand::of(core, core.waiting.load(Ordering::Relaxed));
        self.headroom.bytes(demand, core.reserved(), need.headroom_percent) / need.page_size()
    }

    /// Plans an expansion of at least `bytes` bytes with `plan`. Reserves a new arena if needed.
    /// Lists the missing memory page by page.
    fn plan(
        &mut self,
        need: &PageRequest<'_, B>,
        bytes: usize,
        plan: impl Fn(&mut Heap<B::Memory>) -> Option<Expansion>,
    ) -> Result<Option<Expansion>, AllocError> {
        let PageRequest { miss, memory, arenas: ArenaKind { page_size, .. }, .. } = *need;
        let mut planned = plan(&mut miss.shard.lock().heap);
        if planned.is_none()
            && let Some(arena) = self.arenas.reserve(miss, memory, bytes, page_size)?
        {
            let mut state = miss.shard.lock();
            state.heap.add_arena(miss.request.kind, arena);
            planned = plan(&mut state.heap);
        }
        if let Some(expansion) = &mut planned {
            expansion.split_missing(page_size);
        }
        Ok(planned)
    }

    /// Returns whether memory for `pages` new pages is available, as far as known.
    fn has_room(&self, need: &PageRequest<'_, B>, pages: usize) -> Result<bool, AllocError> {
        let miss = need.miss;
        let bytes = pages.saturating_mul(need.page_size());
        let free = || miss.core.backend.mem_info().map_or(usize::MAX, |(free, _)| free);
        Ok(pages < QUERY_FROM_PAGES || (miss.may_reserve(bytes)? && bytes <= free()))
    }

    /// Creates and maps a page. Returns `false` if memory is exhausted.
    fn create(&mut self, need: &PageRequest<'_, B>, to: Pages) -> Result<bool, AllocError> {
        let miss = need.miss;
        if !miss.may_reserve(to.size)? {
            return Ok(false);
        }
        match self.arenas.create(need.memory, miss.request.kind, to) {
            Ok(()) => {
                miss.count_created(to.size);
                Ok(true)
            }
            Err((error, kept)) => {
                // `kept` has no mapped pages to return to the heap, because the only page could not
                // be mapped.
                self.arenas.count_unreleased(miss.core, miss.request.kind, &kept);
                miss.out_of_memory(to.size, error)?;
                self.headroom.record_refusal(Demand::of(miss.core, 0));
                Ok(false)
            }
        }
    }

    /// Counts pages mapped at additional addresses, for aliases or as new homes.
    fn count_remaps(&mut self, miss: &Miss<'_, B>, pages: usize) {
        lock(&miss.core.global).num_remaps += pages as i64;
        self.headroom.record_remaps(pages);
    }
}
