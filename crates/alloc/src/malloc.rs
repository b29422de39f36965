//! Serves a request from the cache (a hit), or passes the request on to `miss.rs`.
//!
//! A hit uses no policy. [`AllocatorState::hit`] serves nearly all hits and takes one shard's lock.
//! [`AllocatorState::malloc_slow`] serves the other hits: a route to a private pool exists, the
//! stream's shard is not in the table (`AllocatorState::overflow`) or was given to another stream,
//! or another thread has freed a block since the first search.

use std::panic::Location;
use std::sync::Arc;

use warpline_sync::atomic::Ordering;

use crate::rules::round_size;
use crate::shard::{AllocatedBlock, Request, Shard, ShardCell, ShardState};
use crate::shared::AllocatorState;
use crate::sync::{StaticRef, lock};
use crate::{AllocError, Backend, source};

/// Whether the cache was already searched for a request that is not a hit.
pub(crate) struct CacheSearched(pub(crate) bool);

/// The cell of an allocated block's shard, and the block.
pub(crate) type CellAllocation<B> = (StaticRef<ShardCell<B>>, AllocatedBlock);

impl<B: Backend> AllocatorState<B> {
    /// Serves a request from the stream's cache. Fails if no free block fits, or if the request
    /// needs more than a search of the cache. The steps of a hit are inlined here, because calls
    /// would take a tenth of the time of a hit. The function itself is never inlined, so that
    /// a hit takes the same time for every caller.
    #[inline(never)]
    pub(crate) fn hit(
        &self,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
    ) -> Result<CellAllocation<B>, CacheSearched> {
        if self.routes.exist() {
            return Err(CacheSearched(false));
        }
        let (cell, _) = self.table.find(stream).ok_or(CacheSearched(false))?;
        if bytes == 0 {
            return Ok((StaticRef::clone(cell), AllocatedBlock::EMPTY));
        }
        let mut locked = cell.lock_parked();
        let state = &mut *locked;
        if state.heap.stream != stream || !state.rules.caching {
            return Err(CacheSearched(false));
        }
        if state.uses.has_events() && !self.core.is_capturing() {
            state.poll_events(&self.core.backend);
        }
        let allocated = match state.take_parked(bytes, site) {
            Some(allocated) => allocated,
            None => {
                let size = match state.rules.round_plainly(bytes) {
                    Some(size) => size,
                    None => round_size(&state.config, bytes).map_err(|_| CacheSearched(false))?,
                };
                let kind = state.rules.pool(size);
                let request = Request { kind, requested: bytes, size, site };
                state.take_fit(request).ok_or(CacheSearched(true))?
            }
        };
        let over = state.counters.over;
        if state.heap.is_alias(allocated.block) && self.core.hooks.observe_moves() {
            // The block is a parked alias. When it was freed, the memory of its pieces was reported
            // as moved to the pieces' own addresses, so report that it moves back.
            let pieces = state.heap.pieces_of(allocated.block);
            drop(locked);
            pieces
                .iter()
                .for_each(|&(here, home, bytes)| self.core.hooks.notify_moved(home, here, bytes));
        } else {
            drop(locked);
        }
        if over {
            // Locks all shards (`stats/mod.rs`).
            self.core.raise_peaks();
        }
        Ok((StaticRef::clone(cell), allocated))
    }

    /// Serves a request that [`hit`](Self::hit) did not serve.
    #[cold]
    pub(crate) fn malloc_slow(
        &self,
        bytes: usize,
        stream: &B::Stream,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<CellAllocation<B>, AllocError> {
        if bytes == 0 {
            let shard = self.shard_for(stream);
            return Ok((StaticRef::clone(&shard.cell), AllocatedBlock::EMPTY));
        }
        let id = B::stream_id(stream);
        if let Some(pool) = self.routes.find(id) {
            let shard = pool.shard(&self.core, &self.config, stream);
            if let Some(found) = self.malloc_in(&shard, bytes, id, site, false)? {
                return Ok(found);
            }
        }
        loop {
            let shard = self.shard_for(stream);
            if let Some(found) = self.malloc_in(&shard, bytes, id, site, searched)? {
                return Ok(found);
            }
        }
    }

    /// Serves a request in a shard. `None` if the shard now serves another stream.
    pub(crate) fn malloc_in(
        &self,
        shard: &Arc<Shard<B>>,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<Option<CellAllocation<B>>, AllocError> {
        if source::is_inside() {
            return Err(AllocError::InsideSource { requested: bytes });
        }
        let mut state = shard.lock();
        if state.heap.stream != stream {
            return Ok(None);
        }
        let request = state.request(bytes, site)?;
        if state.uses.has_events() && !self.core.is_capturing() {
            state.poll_events(&self.core.backend);
        }
        let cached = match state.rules.caching {
            true if searched => state.take_fit_again(request),
            true => state.take_fit(request),
            false => None,
        };
        let over = state.counters.over;
        if let Some(allocated) = cached {
            drop(state);
            if over {
                self.core.raise_peaks();
            }
            return Ok(Some((StaticRef::clone(&shard.cell), allocated)));
        }
        // A shard with a miss in progress is not assigned to another stream.
        state.misses += 1;
        drop(state);
        self.core.waiting.fetch_add(bytes, Ordering::Relaxed);
        let found = self.miss(shard, request);
        self.core.waiting.fetch_sub(bytes, Ordering::Relaxed);
        shard.cell.lock_parked().misses -= 1;
        let (shard, allocated) = found?;
        self.core.raise_peaks();
        Ok(Some((StaticRef::clone(&shard.cell), allocated)))
    }

    /// Returns the shard that serves a stream. Creates it if needed.
    #[cold]
    fn shard_for(&self, stream: &B::Stream) -> Arc<Shard<B>> {
        let id = B::stream_id(stream);
        let mut overflow = lock(&self.overflow);
        let served = self.table.find(id).map(|(_, shard)| shard);
        let known = served.or_else(|| overflow.iter().find(|s| s.lock().heap.stream == id));
        if let Some(shard) = known.filter(|shard| shard.lock().heap.stream == id) {
            return Arc::clone(shard);
        }
        for shard in self.table.iter() {
            let mut state = shard.lock();
            if state.is_vacant() {
                state.serve(stream.clone());
                self.table.assign(shard, id);
                return Arc::clone(shard);
            }
        }
        let mut state = ShardState::new(
            stream.clone(),
            Arc::clone(&self.core.clock),
            Arc::clone(&self.core.tracer),
        );
        let config = lock(&self.config);
        state.set_config(self.core.in_force(&config, 0));
        let shard = self.core.register(Shard::new(&self.core, state, 0, None));
        drop(config);
        if !self.table.insert(id, &shard) {
            overflow.push(Arc::clone(&shard));
        }
        shard
    }
}
