//! A shard: the part of an allocator that serves one stream, either in one private pool or outside
//! the private pools.
//!
//! A thread finds its stream's shard without a lock (`table.rs`). [`ShardState`], behind the
//! shard's lock, has a heap, the uses of blocks by other streams, and counters. A hit and a free
//! happen entirely in `ShardState`.
//!
//! # Lifetimes
//!
//! - The allocator's stream table or a private pool owns its shards (`Arc<Shard>`). Each shard owns
//!   a reference to the core (`Arc<Core>`). Except for orphans, the core has only weak references
//!   to shards.
//! - A [`ShardCell`] is never deallocated, only reused by later shards, so a block can refer to its
//!   cell without a reference count. A shard lives as long as its blocks: the table or pool retires
//!   the shard before dropping it. If blocks are left, the cell keeps the shard (`retired`) until
//!   the last block is freed. A cell is vacated only when its shard is dropped.
//! - A dropped shard with freed blocks that streams still use becomes an orphan: the core keeps the
//!   shard in `orphans` until the streams have completed their work. Because the shard owns the
//!   core, this is a reference cycle. The drop of the allocator breaks the cycle: it takes out all
//!   orphans and waits for their streams.

mod cell;
mod state;
mod stream_uses;
mod table;

use std::sync::Arc;

use warpline_sync::atomic::Ordering;

pub(crate) use cell::{LockedState, ShardCell};
pub(crate) use state::{AllocatedBlock, Request, ShardState};
pub(crate) use table::StreamTable;

use crate::core::Core;
use crate::heap::ReleasedSegment;
use crate::sync::{StaticRef, lock};
use crate::{Backend, events, release};

/// The memory of one stream, either in one private pool or outside the private pools.
pub(crate) struct Shard<B: Backend> {
    pub(crate) cell: StaticRef<ShardCell<B>>,
    /// Number of the private pool. 0: none.
    pub(crate) pool: u64,
    /// Backend that allocates the segments. `None`: the allocator's own.
    backend: Option<Arc<B>>,
    pub(crate) core: Arc<Core<B>>,
}

impl<B: Backend> Shard<B> {
    pub(crate) fn new(
        core: &Arc<Core<B>>,
        state: ShardState<B>,
        pool: u64,
        backend: Option<Arc<B>>,
    ) -> Self {
        Self { cell: ShardCell::occupy(core, state), pool, backend, core: Arc::clone(core) }
    }

    pub(crate) fn lock(&self) -> LockedState<'_, B> {
        self.cell.lock()
    }

    /// Returns the backend that allocates the segments.
    pub(crate) fn backend(&self) -> &B {
        self.backend.as_deref().unwrap_or(&self.core.backend)
    }

    /// Retires the shard. The table or pool calls this before dropping it.
    pub(crate) fn retire(self: &Arc<Self>) {
        self.cell.retire(self);
    }

    /// Releases segments that were removed from the heap. Refused segments go back to the heap, if
    /// they can still serve requests there.
    pub(crate) fn release(&self, released: Vec<ReleasedSegment<B::Memory>>) {
        release::segments_or(&self.core, released, |refused| self.lock().restore(refused));
    }

    /// Waits for all pending events without the lock, then frees their memory.
    pub(crate) fn synchronize_events(&self) {
        let mut done = Vec::new();
        let backend = &self.core.backend;
        let mut queues = self.lock().take_events(backend, &mut done);
        events::wait(backend, &mut queues, &mut done);
        self.lock().complete_events(done, queues);
    }
}

impl<B: Backend> Drop for Shard<B> {
    fn drop(&mut self) {
        let core = &self.core;
        let is_pending = self.lock().uses.is_pending();
        if is_pending {
            let mut orphans = lock(&core.orphans);
            // Check `closed` under the lock: once it is set, no shard becomes an orphan.
            if !core.closed.load(Ordering::SeqCst) {
                // All blocks are freed, but streams still use some. Do not wait for the streams
                // here.
                let (cell, core) = (StaticRef::clone(&self.cell), Arc::clone(core));
                // An orphan allocates nothing. Drop the pool's backend now: its source may own
                // values of the program, which must not be dropped under the locks that release
                // orphans.
                let orphan = Self { cell, pool: self.pool, backend: None, core };
                orphans.push(self.core.register(orphan));
                return;
            }
        }
        self.synchronize_events();
        let stream = {
            let state = self.lock();
            state.heap.has_arenas().then(|| state.stream.clone())
        };
        if let Some(stream) = stream {
            // Unmapping does not wait for work.
            core.wait_for(&stream);
        }
        let released = self.lock().heap.release_segments();
        release::segments(core, released);
        core.unregister(&self.cell);
        ShardCell::vacate(&self.cell);
    }
}
