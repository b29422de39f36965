//! PyTorch's expandable segments: a reserved range per stream and pool. Pages are mapped at the
//! first place in the range that fits, and free pages are released when the cache is emptied.

use std::collections::BTreeSet;

use super::arenas::{Arenas, FreePages, UnreleasedPages};
use crate::core::Core;
use crate::growth::{GrowthPolicy, Miss};
use crate::heap::ArenaKind;
use crate::rules::{LARGE_BUFFER, SMALL_BUFFER};
use crate::shard::AllocatedBlock;
use crate::{AllocError, Backend, Policy, PoolKind};

/// The policy of `policy:torch,expandable_segments:True`.
pub(super) struct ExpandableSegments {
    pub(super) arenas: Arenas,
}

impl Default for ExpandableSegments {
    fn default() -> Self {
        Self { arenas: Arenas::new(Policy::Torch) }
    }
}

/// Returns the page size of a pool's arena, in bytes.
fn page_size(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Large => LARGE_BUFFER,
        PoolKind::Small => SMALL_BUFFER,
    }
}

impl<B: Backend> GrowthPolicy<B> for ExpandableSegments {
    fn grow(&mut self, miss: &Miss<'_, B>) -> Result<Option<AllocatedBlock>, AllocError> {
        let (core, shard, request) = (miss.core, miss.shard, miss.request);
        let Some(memory) = core.backend.virtual_memory() else { return Ok(None) };
        let kind = request.kind;
        let arenas = ArenaKind { policy: Policy::Torch, page_size: page_size(kind) };
        let plan = || shard.lock().heap.plan_first_expansion(arenas, kind, request.size);
        let mut planned = plan();
        if planned.is_none()
            && let Some(arena) =
                self.arenas.reserve(miss, memory, request.size, arenas.page_size)?
        {
            shard.lock().heap.add_arena(kind, arena);
            planned = plan();
        }
        let Some(expansion) = planned else { return Ok(None) };
        for (done, &pages) in expansion.missing.iter().enumerate() {
            let mapped = match miss.may_reserve(pages.size) {
                Ok(true) => self
                    .arenas
                    .create(memory, kind, pages)
                    .map_err(|(error, kept)| (miss.out_of_memory(pages.size, error), kept)),
                Ok(false) => Err((Ok(()), UnreleasedPages::default())),
                Err(error) => Err((Err(error), UnreleasedPages::default())),
            };
            self.arenas.count_time(core);
            if let Err((reason, kept)) = mapped {
                self.arenas.count_unreleased(core, kind, &kept);
                let mut state = shard.lock();
                let heap = &mut state.heap;
                heap.return_expansion(&expansion, done);
                // Some of the new pages may be mapped although the miss failed, because the backend
                // refused to unmap them. They become free memory of the heap.
                kept.mapped.into_iter().for_each(|pages| heap.map(kind, pages));
                return reason.map(|()| None);
            }
            miss.count_created(pages.size);
        }
        let mut state = shard.lock();
        let block = state.heap.finish_expansion(&expansion, kind, request.site);
        Ok(Some(state.allocate_block(block, request)))
    }

    fn release_cached(&mut self, core: &Core<B>) {
        let Some(memory) = core.backend.virtual_memory() else { return };
        let mut free = FreePages::take(core, Policy::Torch);
        if !free.is_empty() {
            free.wait(core);
            free.release(core, &mut self.arenas, memory, &BTreeSet::new());
        }
    }

    fn retry_refused(&mut self, core: &Core<B>, all: bool) {
        self.arenas.retry_refused(core, all);
    }
}
