//! Release of all pages that are wholly free.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::{Arenas, UnreleasedPages};
use crate::core::{Core, DeviceWait};
use crate::heap::Pages;
use crate::shard::Shard;
use crate::sync::lock;
use crate::{Backend, Policy, PoolKind, VirtualMemory};

/// The free pages of all shards in a policy's arenas, removed from their heaps.
pub(in crate::policy) struct FreePages<B: Backend> {
    policy: Policy,
    pub(in crate::policy) shards: Vec<ShardPages<B>>,
}

/// The free pages of one shard.
pub(in crate::policy) struct ShardPages<B: Backend> {
    pub(in crate::policy) shard: Arc<Shard<B>>,
    stream: B::Stream,
    pages: [(PoolKind, Vec<Pages>); 2],
    /// Addresses of the shard's aliases.
    pub(in crate::policy) in_use: Vec<Range<u64>>,
    /// Arenas that contain homes of the shard's pages.
    pub(in crate::policy) arenas: Vec<u32>,
    /// Whether all work that may use the pages is complete.
    pub(in crate::policy) idle: bool,
}

impl<B: Backend> FreePages<B> {
    /// Removes the free pages from their heaps.
    pub(in crate::policy) fn take(core: &Core<B>, policy: Policy) -> Self {
        let shard_pages = |shard: Arc<Shard<B>>| {
            let mut state = shard.lock();
            let arenas: Vec<u32> = state.heap.arena_numbers(policy).collect();
            let shard_pages = (!arenas.is_empty()).then(|| ShardPages {
                shard: Arc::clone(&shard),
                stream: state.stream.clone(),
                pages: [PoolKind::Large, PoolKind::Small]
                    .map(|kind| (kind, state.heap.unmap_free_pages(policy, kind))),
                in_use: state.heap.windows_in_use(),
                arenas,
                idle: false,
            });
            drop(state);
            shard_pages
        };
        Self { policy, shards: core.all_shards().into_iter().filter_map(shard_pages).collect() }
    }

    pub(in crate::policy) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Waits for work that may use these pages, because unmapping does not wait. All of this work
    /// was enqueued before the pages were removed from their heaps. Returns whether the wait
    /// covered the whole device.
    pub(in crate::policy) fn wait(&mut self, core: &Core<B>) -> bool {
        let waited = core.wait_for_device();
        for it in &mut self.shards {
            it.idle = match waited {
                DeviceWait::Done => true,
                // If the wait for a stream fails, only the pages of that stream are kept. Waiting
                // for a stream also covers other streams that used its pages before, because the
                // stream itself waited for them.
                DeviceWait::Unsupported => core.wait_for(&it.stream),
                DeviceWait::Failed => false,
            };
        }
        waited == DeviceWait::Done
    }

    /// Releases the idle pages, except pages that are also mapped elsewhere, and then the arenas
    /// without mapped pages. The remaining pages become free again.
    pub(in crate::policy) fn release(
        self,
        core: &Core<B>,
        arenas: &mut Arenas,
        memory: &dyn VirtualMemory<B::Error>,
        elsewhere: &BTreeSet<u32>,
    ) {
        for ShardPages { shard, pages, idle, .. } in self.shards {
            for (kind, pages) in pages {
                let kept = match idle {
                    true => release_pages(core, arenas, memory, kind, &pages, elsewhere),
                    false => pages,
                };
                let mut state = shard.lock();
                kept.into_iter().for_each(|pages| state.heap.map(kind, pages));
            }
            let empty = shard.lock().heap.remove_empty_arenas(self.policy);
            empty.into_iter().for_each(|arena| arenas.remove(memory, arena));
        }
        arenas.count_refused(core);
    }
}

/// Releases these pages. Returns the pages that stay mapped.
fn release_pages<B: Backend>(
    core: &Core<B>,
    arenas: &mut Arenas,
    memory: &dyn VirtualMemory<B::Error>,
    kind: PoolKind,
    pages: &[Pages],
    elsewhere: &BTreeSet<u32>,
) -> Vec<Pages> {
    let mut still_mapped = Vec::new();
    for &pages in pages {
        let kept: UnreleasedPages = arenas.release(memory, kind, pages, elsewhere);
        arenas.count_time(core);
        let gone = pages.size - kept.bytes();
        let mut global = lock(&core.global);
        global.reserved_bytes.decrease(kind, gone as i64);
        global.num_device_free += i64::from(gone > 0);
        global.num_refused += i64::from(gone < pages.size);
        still_mapped.extend(kept.mapped);
    }
    still_mapped
}
