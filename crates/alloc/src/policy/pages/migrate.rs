//! Migration of free pages from other streams, and from the stream's other pool. A migrated page
//! stays mapped at its former address, so that it can return there without a driver call.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{MovablePages, PageRequest};
use crate::growth::Miss;
use crate::heap::{ArenaKind, Pages};
use crate::shard::Shard;
use crate::sync::lock;
use crate::{AllocError, Backend, PoolKind};

/// The shards that may have free pages for a request.
pub(super) struct Donors<B: Backend> {
    /// The requesting shard comes first, because pages of its other pool (small or large) are used
    /// only on the same stream and so need no wait.
    shards: Vec<Arc<Shard<B>>>,
    /// The pool of the request.
    kind: PoolKind,
    arenas: ArenaKind,
}

/// A free page that was removed from its pool and not yet added to another pool.
struct MigratingPage {
    page: Pages,
    kind: PoolKind,
    /// Index of the former shard in [`Donors`].
    donor: usize,
}

impl<B: Backend> Donors<B> {
    /// Returns the donors. During a capture, the only donor is the requesting shard: no event may
    /// be recorded on captured streams, and the allocator does not know which streams are captured.
    pub(super) fn new(need: &PageRequest<'_, B>) -> Self {
        let (shard, kind) = (need.miss.shard, need.miss.request.kind);
        let shards = if need.miss.core.is_capturing() {
            vec![Arc::clone(shard)]
        } else {
            let mut shards = need.miss.core.shared_shards();
            shards.sort_by_key(|other| !Arc::ptr_eq(other, shard));
            shards
        };
        Self { shards, kind, arenas: need.arenas }
    }

    /// Returns all pools except the requesting pool, each with the index of its donor.
    fn pools(&self) -> impl Iterator<Item = (usize, PoolKind)> {
        let donors = 0..self.shards.len();
        let pools = donors.flat_map(|donor| [PoolKind::Large, PoolKind::Small].map(|k| (donor, k)));
        let requesting = (0, self.kind);
        pools.filter(move |pool| *pool != requesting)
    }

    /// Returns the donors' whole free pages.
    fn free_pages(&self) -> Vec<Pages> {
        let list = |(donor, kind): (usize, PoolKind)| {
            self.shards[donor].lock().heap.list_free_pages(self.arenas, kind)
        };
        self.pools().flat_map(list).collect()
    }

    /// Removes up to `count` free pages from their pools.
    fn take_any(&self, need: &PageRequest<'_, B>, count: usize) -> Vec<MigratingPage> {
        let mut pages = Vec::new();
        for (donor, kind) in self.pools() {
            if pages.len() == count {
                break;
            }
            let left = count - pages.len();
            let mut state = self.shards[donor].lock();
            let moved = state.heap.migrate_any(self.arenas, kind, left);
            drop(state);
            pages.extend(self.order_after_donor(need, donor, kind, moved));
        }
        pages.reverse();
        pages
    }

    /// Removes the free pages among `wanted` from their pools. `wanted` is sorted by address.
    fn take_listed(&self, need: &PageRequest<'_, B>, wanted: &[Pages]) -> Vec<MigratingPage> {
        let take = |(donor, kind): (usize, PoolKind)| {
            let mut state = self.shards[donor].lock();
            let moved = state.heap.migrate_listed(self.arenas, kind, wanted);
            drop(state);
            self.order_after_donor(need, donor, kind, moved)
        };
        self.pools().flat_map(take).collect()
    }

    /// Makes later work of the requesting stream wait, on the device, for the donor's stream. If
    /// that fails, returns the pages to their heap.
    fn order_after_donor(
        &self,
        need: &PageRequest<'_, B>,
        donor: usize,
        kind: PoolKind,
        moved: Vec<Pages>,
    ) -> Vec<MigratingPage> {
        if donor > 0 && !moved.is_empty() {
            let backend = &need.miss.core.backend;
            let [own, other] = [0, donor].map(|at| self.shards[at].lock().stream.clone());
            let ordered = backend.record(&other).and_then(|event| backend.wait(&own, &event));
            if ordered.is_err() {
                // Without the wait, the requesting stream could use the pages before the donor's
                // stream has completed its work with them.
                let mut state = self.shards[donor].lock();
                moved.into_iter().for_each(|pages| state.heap.map(kind, pages));
                return Vec::new();
            }
        }
        let pages = moved.into_iter().flat_map(|pages| pages.split(self.arenas.page_size));
        pages.map(|page| MigratingPage { page, kind, donor }).collect()
    }

    /// Makes pages free again at their former homes.
    fn put_back(&self, pages: Vec<MigratingPage>) {
        for MigratingPage { page, kind, donor } in pages {
            self.shards[donor].lock().heap.map(kind, page);
        }
    }
}

impl<B: Backend> MovablePages<B> {
    /// Adds pages to this pool, new or from other pools, until its free pages suffice for the
    /// request. Returns the number of added pages. `None` if there is not enough memory.
    pub(super) fn supply_pages(
        &mut self,
        need: &PageRequest<'_, B>,
        donors: &Donors<B>,
    ) -> Result<Option<usize>, AllocError> {
        let (miss, page_size) = (need.miss, need.page_size());
        let count = |pages: &[Pages]| pages.iter().map(|it| it.size / page_size).sum::<usize>();
        let wanted = miss.request.size.div_ceil(page_size);
        let free = miss.shard.lock().heap.list_free_pages(need.arenas, miss.request.kind);
        let missing = wanted.saturating_sub(count(&free));
        if missing == 0 {
            return Ok(Some(0));
        }
        let elsewhere = donors.free_pages();
        let available = count(&elsewhere);
        let short = missing.saturating_sub(available);
        let mut new = self.headroom(need).min(missing).max(short);
        if !self.has_room(need, new)? {
            if available < missing {
                return Ok(None);
            }
            new = 0;
        }
        // Pages of other pools cover the remainder, which is larger if new pages could not be
        // created.
        let made = self.map_here(need, donors, new, Vec::new())?;
        let returned = self.migrate_back(need, donors, missing - made, &elsewhere);
        // The pages return without a mapping call, but with a wait between streams, which takes
        // about as long. Count one remapping.
        self.headroom.record_remaps(usize::from(returned > 0));
        let mut added = made + returned;
        let migrating = donors.take_any(need, missing - added);
        let rest = if made < new { migrating.len() } else { missing - added };
        added += self.map_here(need, donors, rest, migrating)?;
        if added < missing {
            return Ok(None);
        }
        if short > 0 {
            self.headroom.record_forced(miss.core.reserved());
        }
        Ok(Some(added))
    }

    /// Maps `count` pages at new addresses of this pool: first migrating pages, then new pages.
    /// Returns the number of mapped pages. It is smaller than `count` if memory is exhausted.
    fn map_here(
        &mut self,
        need: &PageRequest<'_, B>,
        donors: &Donors<B>,
        count: usize,
        mut migrating: Vec<MigratingPage>,
    ) -> Result<usize, AllocError> {
        if count == 0 {
            return Ok(0);
        }
        let (kind, bytes) = (need.miss.request.kind, count * need.page_size());
        let planned = self.plan(need, bytes, |heap| heap.plan_pages(need.arenas, kind, bytes));
        let expansion = match planned {
            Ok(Some(expansion)) => expansion,
            failed => {
                donors.put_back(migrating);
                return failed.map(|_| 0);
            }
        };
        let (mut mapped, mut result) = (0, Ok(true));
        for &to in &expansion.missing {
            result = match migrating.pop() {
                Some(page) => self.migrate(need, donors, page, to),
                None => self.create(need, to),
            };
            if !matches!(result, Ok(true)) {
                break;
            }
            mapped += 1;
        }
        donors.put_back(migrating);
        // The mapped pages become free memory. The caller serves the request from this memory.
        need.miss.shard.lock().heap.return_expansion(&expansion, mapped);
        result.map(|_| mapped)
    }

    /// Maps a page at its new home. Returns `false` if memory is exhausted.
    fn migrate(
        &mut self,
        need: &PageRequest<'_, B>,
        donors: &Donors<B>,
        from: MigratingPage,
        to: Pages,
    ) -> Result<bool, AllocError> {
        if let Err(error) = self.arenas.migrate(need.memory, from.page, to) {
            donors.put_back(vec![from]);
            return need.miss.out_of_memory(to.size, error).map(|()| false);
        }
        self.count_remaps(need.miss, 1);
        count_moved(need.miss, &from, to);
        Ok(true)
    }

    /// Moves up to `count` of the pages in `elsewhere` back to former homes in this pool. These
    /// moves need no mapping call. Returns the number of moved pages.
    fn migrate_back(
        &mut self,
        need: &PageRequest<'_, B>,
        donors: &Donors<B>,
        count: usize,
        elsewhere: &[Pages],
    ) -> usize {
        if count == 0 || elsewhere.is_empty() {
            return 0;
        }
        let miss = need.miss;
        let kind = miss.request.kind;
        let arenas = miss.shard.lock().heap.arena_numbers_of(need.arenas, kind);
        let migrated = arenas.iter().flat_map(|&arena| self.arenas.aliases_in(arena));
        let is_free = |(_, home): &(Pages, Pages)| {
            let mut free = elsewhere.iter().map(|pages| pages.start..pages.end());
            free.any(|free| free.contains(&home.start))
        };
        // A page may have several former homes here.
        let mut seen = BTreeSet::new();
        let wanted = migrated.filter(|it| is_free(it) && seen.insert(it.1.start));
        let mut wanted: Vec<_> = wanted.take(count).collect();
        wanted.sort_unstable_by_key(|(_, home)| home.start);
        let homes: Vec<Pages> = wanted.iter().map(|&(_, home)| home).collect();
        let mut added = 0;
        for from in donors.take_listed(need, &homes) {
            let find = homes.binary_search_by_key(&from.page.start, |page| page.start);
            let Ok(found) = find else { continue };
            let to = wanted[found].0;
            self.arenas.migrate_back(from.page, to);
            count_moved(miss, &from, to);
            miss.shard.lock().heap.map(kind, to);
            added += 1;
        }
        added
    }
}

/// Counts a migrated page in its new pool, and notifies the observers.
fn count_moved<B: Backend>(miss: &Miss<'_, B>, from: &MigratingPage, to: Pages) {
    let bytes = to.size as i64;
    lock(&miss.core.global).reserved_bytes.transfer(from.kind, miss.request.kind, bytes);
    miss.core.hooks.notify_moved(from.page.start, to.start, to.size);
}
