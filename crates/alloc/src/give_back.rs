//! Giving memory back to the backend: all that is wholly free, and what the backend refused.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::allocator::Shared;
use crate::core::Slow;
use crate::pages::Kept;
use crate::rules::PAGE;
use crate::shard::{Shard, lock};
use crate::slack::Slack;
use crate::state::Pages;
use crate::stats::RefusedReleases;
use crate::{Backend, PoolKind, VirtualMemory};

/// The free pages of a shard, off its books.
struct Emptied<B: Backend> {
    shard: Arc<Shard<B>>,
    stream: B::Stream,
    pages: [(PoolKind, Vec<Pages>); 2],
    /// The addresses of its stitched blocks.
    in_use: Vec<Range<u64>>,
    /// The arenas in which its pages are at home.
    arenas: Vec<u32>,
    /// Whether all work that may use its pages is done.
    idle: bool,
}

impl<B: Backend> Shared<B> {
    /// Gives everything back that is wholly free. What the backend refuses stays free here.
    pub(crate) fn release_cached(&self, slow: &mut Slow<B>) {
        if self.core.is_capturing() {
            return;
        }
        // What is needed is learned anew.
        slow.slack = Slack::default();
        self.retry_refused(slow, true);
        let mut emptied = Vec::new();
        for shard in self.core.all_shards() {
            let mut state = shard.lock();
            // A private pool keeps its memory as long as it is in use.
            let keeps = shard.pool > 0 && !state.retired;
            let released = if keeps { Vec::new() } else { state.take_cached() };
            let with_arenas = state.has_arenas().then(|| Emptied {
                shard: Arc::clone(&shard),
                stream: state.stream.clone(),
                pages: [PoolKind::Large, PoolKind::Small]
                    .map(|kind| (kind, state.take_free_pages(kind))),
                in_use: state.windows_in_use(PAGE),
                arenas: state.arena_numbers().collect(),
                idle: false,
            });
            drop(state);
            self.core.give_back(&shard, released);
            emptied.extend(with_arenas);
        }
        if !emptied.is_empty() {
            self.release_arenas(slow, emptied);
        }
    }

    /// Gives these pages back, wherever they are mapped, and addresses behind which nothing is.
    fn release_arenas(&self, slow: &mut Slow<B>, mut emptied: Vec<Emptied<B>>) {
        // Unmapping does not wait for the work that uses the pages. All of it was given before they
        // were taken off the books, and the windows not in use.
        let memory = self.core.backend.virtual_memory();
        match self.core.wait_for_device().filter(|_| memory.is_some()) {
            Some(true) => {
                slow.arenas.waited();
                emptied.iter_mut().for_each(|it| it.idle = true);
            }
            // One stream that cannot be waited for keeps its pages, and not those of others: what
            // came from it to them, they wait for.
            Some(false) => {
                emptied.iter_mut().for_each(|it| it.idle = self.core.wait_for(&it.stream));
            }
            None => {}
        }
        if let Some(memory) = memory {
            let in_use: Vec<_> = emptied.iter().flat_map(|it| it.in_use.iter().cloned()).collect();
            let idle = emptied.iter().filter(|it| it.idle);
            let homes = idle.flat_map(|it| it.arenas.iter().copied()).collect();
            let elsewhere = slow.arenas.forget_aliases(memory, &in_use, &homes);
            for it in &mut emptied {
                it.shard.lock().forget_lent(|pages| slow.arenas.has_aliases(pages));
                for (kind, pages) in it.pages.iter_mut().filter(|_| it.idle) {
                    // What is refused is left in the list.
                    *pages = self.release_pages(slow, memory, *kind, pages, &elsewhere);
                }
            }
        }
        for Emptied { shard, pages, .. } in emptied {
            let mut state = shard.lock();
            for (kind, pages) in pages {
                pages.into_iter().for_each(|pages| state.uncarve(kind, pages));
            }
            let empty = state.take_empty_arenas(|arena| slow.arenas.is_vacant(arena));
            drop(state);
            if let Some(memory) = memory {
                empty.into_iter().for_each(|arena| slow.arenas.remove(memory, arena));
            }
        }
        self.count_refused(slow);
    }

    /// Answers the pages that are still mapped.
    fn release_pages(
        &self,
        slow: &mut Slow<B>,
        memory: &dyn VirtualMemory<B::Error>,
        kind: PoolKind,
        pages: &[Pages],
        elsewhere: &BTreeSet<u32>,
    ) -> Vec<Pages> {
        let mut mapped = Vec::new();
        for &pages in pages {
            let kept = slow.arenas.release(memory, kind, pages, elsewhere);
            let gone = pages.size - kept.bytes();
            let mut global = lock(&self.core.global);
            global.mapping_time += std::mem::take(&mut slow.arenas.spent);
            global.reserved_bytes.decrease(kind, gone as i64);
            global.num_device_free += i64::from(gone > 0);
            global.num_refused += i64::from(gone < pages.size);
            mapped.extend(kept.mapped);
        }
        mapped
    }

    /// Tries again to give back what the backend refused and what serves no requests, until it
    /// refuses again, or all of it.
    pub(crate) fn retry_refused(&self, slow: &mut Slow<B>, all: bool) {
        if self.core.is_capturing() {
            return;
        }
        self.core.retry_refused(all);
        if let Some(memory) = self.core.backend.virtual_memory().filter(|_| slow.arenas.has_loose())
        {
            let gone = slow.arenas.retry_loose(memory, all);
            let mut global = lock(&self.core.global);
            for (kind, bytes) in gone {
                global.reserved_bytes.decrease(kind, bytes as i64);
                global.num_device_free += i64::from(bytes > 0);
            }
            drop(global);
            self.count_refused(slow);
        }
    }

    /// Counts pages that were made in vain and that the backend refused to take back.
    pub(crate) fn count_kept(&self, slow: &Slow<B>, kind: PoolKind, kept: &Kept) {
        if kept.bytes() == 0 {
            return;
        }
        let mut global = lock(&self.core.global);
        global.reserved_bytes.increase(kind, kept.bytes() as i64);
        global.num_device_alloc += 1;
        global.num_refused += 1;
        drop(global);
        self.count_refused(slow);
    }

    /// Counts what the backend refused of pages and addresses by now.
    pub(crate) fn count_refused(&self, slow: &Slow<B>) {
        let (count, bytes) = slow.arenas.refused();
        lock(&self.core.global).refused_pages = RefusedReleases { count, bytes };
    }
}
