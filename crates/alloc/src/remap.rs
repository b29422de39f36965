//! The default policy: pages that are free somewhere are mapped where memory is needed.

use std::sync::Arc;

use crate::allocator::Shared;
use crate::core::Slow;
use crate::shard::{Shard, lock};
use crate::state::{Granted, Growth, Pages, Request};
use crate::{AllocError, Backend, PoolKind, VirtualMemory};

/// New pages are created, rather than free ones taken from where they are, while all pages are
/// at most one part in so many more than what was asked for at the peak.
const SLACK: usize = 64;
/// And while they are at most so many bytes more: so that the streams of a small program do not
/// take one page from each other all the time.
const MIN_SLACK: usize = 8 << 20;

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
    shard: &'a Arc<Shard<B>>,
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
        slow.arenas.poll(&self.core.backend);
        let planned = shard.lock().plan_cheapest(request, page_size, &slow.arenas);
        let mut growth = match planned {
            Some(growth) => growth,
            None => {
                self.reserve(slow, memory, shard, request, page_size)?;
                let planned = shard.lock().plan_cheapest(request, page_size, &slow.arenas);
                let Some(growth) = planned else { return Ok(None) };
                growth
            }
        };
        growth.split_missing(page_size);
        let need = Need { memory, shard, request, page_size, limit };
        let filled = self.fill(slow, &need, &growth);
        lock(&self.core.global).mapping_time += std::mem::take(&mut slow.arenas.spent);
        match filled {
            Ok(()) => Ok(Some(shard.lock().finish(&growth, request))),
            Err((mapped, error)) => {
                shard.lock().undo(&growth, mapped);
                error.map_or(Ok(None), Err)
            }
        }
    }

    /// Maps a page at each missing address of a growth. An error says how many are mapped, and
    /// is `None` where there is no memory.
    fn fill(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        growth: &Growth,
    ) -> Result<(), (usize, Option<AllocError>)> {
        let missing = growth.missing.len();
        let peak = self.core.peak_requested_with(need.request.requested);
        let reserved = lock(&self.core.global).reserved_bytes.current() as usize;
        let allowed = peak + (peak / SLACK).max(MIN_SLACK);
        let room = allowed.saturating_sub(reserved) / need.page_size;
        let shards = self.lenders(need.shard);
        // What is not to be had anywhere has to be new.
        let mut loans = self.borrow(slow, &shards, missing.saturating_sub(room), need.page_size);
        for (mapped, &to) in growth.missing.iter().enumerate() {
            let failed = |error| (mapped, Some(AllocError::from_backend(need.page_size, error)));
            if loans.is_empty() {
                match self.create(slow, need, to) {
                    Ok(true) => continue,
                    Ok(false) => {
                        // Memory is short: only what is free somewhere is left.
                        let left = missing - mapped;
                        loans = self.borrow(slow, &shards, left, need.page_size);
                        if loans.len() < left {
                            self.give_back(&shards, loans);
                            return Err((mapped, None));
                        }
                    }
                    Err(error) => return Err((mapped, Some(error))),
                }
            }
            let Some(loan) = loans.pop() else { return Err((mapped, None)) };
            if let Err(error) = slow.arenas.lend(need.memory, loan.page, to, loan.lending) {
                loans.push(loan);
                self.give_back(&shards, loans);
                return Err(failed(error));
            }
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

    /// All shards, this one first: its own free pages need no wait.
    fn lenders(&self, shard: &Arc<Shard<B>>) -> Vec<Arc<Shard<B>>> {
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
            let (taken, stream) = {
                let mut state = shard.lock();
                (state.take_some_pages(count - loans.len(), page_size), state.stream.clone())
            };
            if taken.is_empty() {
                continue;
            }
            let backend = &self.core.backend;
            let event = backend.record(&stream).and_then(|event| {
                if owner > 0 {
                    let own = shards[0].lock().stream.clone();
                    backend.wait(&own, &event)?;
                }
                Ok(event)
            });
            let Ok(event) = event else {
                // Nobody knows when these are out of use.
                let mut state = shard.lock();
                taken.into_iter().for_each(|(kind, pages)| state.uncarve(kind, pages));
                continue;
            };
            let lending = slow.arenas.add_lending(event);
            let pages = taken.into_iter().flat_map(|(kind, pages)| {
                pages.each(page_size).map(move |page| Loan { page, kind, lending, owner })
            });
            loans.extend(pages);
        }
        loans.reverse();
        loans
    }

    fn give_back(&self, shards: &[Arc<Shard<B>>], loans: Vec<Loan>) {
        for loan in loans {
            shards[loan.owner].lock().uncarve(loan.kind, loan.page);
        }
    }
}
