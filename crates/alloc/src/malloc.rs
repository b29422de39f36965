//! Serves a request, from a cache hit to the last attempt before an out-of-memory error.
//!
//! A hit happens under one shard's lock. Misses run one at a time, under the lock of the policies,
//! and hold no shard's lock while they call the backend.

use std::panic::Location;
use std::sync::{Arc, Weak};

use warpline_sync::MutexGuard;
use warpline_sync::atomic::Ordering;

use crate::allocator::Shared;
use crate::mem_pool::Pool;
use crate::policy::{Miss, Policies};
use crate::rules::{round_size, segment_size};
use crate::shard::{Granted, Request, Shard, ShardCell, State, lock};
use crate::sync::Lasting;
use crate::trace::{Step, TraceAction};
use crate::{AllocError, Backend, Block, CachingAllocator, OutOfMemory, Policy, source};

/// Whether the cache was searched for a request that is no hit.
struct Searched(bool);

/// What a block is made of: whose it is, and where.
pub(crate) type Found<B> = (Lasting<ShardCell<B>>, Granted);

/// The same with its shard.
type Served<B> = (Arc<Shard<B>>, Granted);

impl<B: Backend> CachingAllocator<B> {
    /// Memory of at least `bytes` bytes for work on `stream`. A request of 0 bytes gets an empty
    /// block at address 0.
    ///
    /// # Errors
    /// [`AllocError`]. Whatever it is, blocks that live and later requests are not affected.
    #[inline]
    #[track_caller]
    pub fn malloc(&self, bytes: usize, stream: &B::Stream) -> Result<Block<B>, AllocError> {
        let shared = self.shared();
        let (id, site) = (B::stream_id(stream), Location::caller());
        let (cell, granted) = match shared.hit(bytes, id, site) {
            Ok(found) => found,
            Err(Searched(searched)) => shared.malloc(bytes, stream, site, searched)?,
        };
        Ok(Block::new(cell, granted, bytes, id))
    }
}

impl<B: Backend> Shared<B> {
    /// What a request gets that the stream's cache serves; an error if it does not, or something
    /// else stands against it. All that a hit does is inlined here, by force, and this nowhere: so
    /// it takes as long whoever calls. Calls within it would be a tenth of that.
    #[inline(never)]
    fn hit(
        &self,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
    ) -> Result<Found<B>, Searched> {
        if self.routes.exist() {
            return Err(Searched(false));
        }
        let (cell, _) = self.table.find(stream).ok_or(Searched(false))?;
        if bytes == 0 {
            return Ok((Lasting::clone(cell), Granted::NOTHING));
        }
        let mut locked = cell.lock_parked();
        let state = &mut *locked;
        if state.heap.stream != stream || !state.rules.caching {
            return Err(Searched(false));
        }
        if state.uses.has_events() && !self.core.is_capturing() {
            state.poll_events(&self.core.backend);
        }
        let granted = match state.take_parked(bytes, site) {
            Some(granted) => granted,
            None => {
                let size = match state.rules.round_plainly(bytes) {
                    Some(size) => size,
                    None => round_size(&state.config, bytes).map_err(|_| Searched(false))?,
                };
                let kind = state.rules.pool(size);
                let request = Request { kind, requested: bytes, size, site };
                state.take_fit(request).ok_or(Searched(true))?
            }
        };
        let over = state.counters.over;
        if state.heap.is_alias(granted.block) && self.core.hooks.observe_moves() {
            // It was parked, and what is known of its memory had gone to its pieces.
            let pieces = state.heap.pieces_of(granted.block);
            drop(locked);
            pieces.iter().for_each(|&(here, home, bytes)| self.core.hooks.moved(home, here, bytes));
        } else {
            drop(locked);
        }
        if over {
            self.core.raise_peaks();
        }
        Ok((Lasting::clone(cell), granted))
    }

    /// What a request does that is no hit.
    #[cold]
    fn malloc(
        &self,
        bytes: usize,
        stream: &B::Stream,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<Found<B>, AllocError> {
        if bytes == 0 {
            let shard = self.shard_for(stream);
            return Ok((Lasting::clone(&shard.cell), Granted::NOTHING));
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

    /// `None` if the shard serves another stream by now.
    pub(crate) fn malloc_in(
        &self,
        shard: &Arc<Shard<B>>,
        bytes: usize,
        stream: u64,
        site: &'static Location<'static>,
        searched: bool,
    ) -> Result<Option<Found<B>>, AllocError> {
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
        let hit = match state.rules.caching {
            true if searched => state.take_fit_again(request),
            true => state.take_fit(request),
            false => None,
        };
        let over = state.counters.over;
        if let Some(granted) = hit {
            drop(state);
            if over {
                self.core.raise_peaks();
            }
            return Ok(Some((Lasting::clone(&shard.cell), granted)));
        }
        // Meanwhile the shard must not serve another stream.
        state.misses += 1;
        drop(state);
        self.core.waiting.fetch_add(bytes, Ordering::Relaxed);
        let found = self.miss(shard, request);
        self.core.waiting.fetch_sub(bytes, Ordering::Relaxed);
        shard.cell.lock_parked().misses -= 1;
        let (shard, granted) = found?;
        self.core.raise_peaks();
        Ok(Some((Lasting::clone(&shard.cell), granted)))
    }

    /// The shard that serves a stream, a new one if need be.
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
                self.table.rename(shard, id);
                return Arc::clone(shard);
            }
        }
        let mut state =
            State::new(stream.clone(), Arc::clone(&self.core.clock), Arc::clone(&self.core.tracer));
        let config = lock(&self.config);
        state.set_config(self.core.in_force(&config, 0));
        let shard = self.core.register(Shard::new(&self.core, state, 0, None));
        drop(config);
        if !self.table.insert(id, &shard) {
            overflow.push(Arc::clone(&shard));
        }
        shard
    }

    // ---- a miss -------------------------------------------------------------------------

    /// What is tried, in its order, for a request that nothing cached fits.
    #[cold]
    fn miss(&self, shard: &Arc<Shard<B>>, request: Request) -> Result<Served<B>, AllocError> {
        let core = &*self.core;
        let served = |granted| (Arc::clone(shard), granted);
        if core.hooks.run_callbacks()
            && let Some(granted) = search(shard, State::take_fit, request)
        {
            return Ok(served(granted));
        }
        // Declared before the lock and so dropped after it: a pool's source may own values of the program.
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        let mut policies = lock(&core.policies);
        // Until the lock is released no option changes, but some may have by now.
        let request = shard.lock().request(request.requested, request.site)?;
        // Another thread may have brought memory while this one waited.
        if let Some(granted) = search(shard, State::take_fit_again, request) {
            return Ok(served(granted));
        }
        core.release_orphans();
        self.poll_events();
        policies.retry_refused(core, false);
        let limit = policies.limit(core, request.requested)?;
        let miss = Miss { core, shard, request, limit };
        policies.segments.collect_garbage(core, limit);
        if let Some(granted) = policies.grow(&miss)? {
            return Ok(served(granted));
        }
        if let Some(found) = take_from_pools(&pools, shard, request) {
            return Ok(found);
        }
        if core.is_capturing() {
            // Nothing can be given back, or waited for.
            return Err(self.fail(policies, &miss));
        }
        if policies.segments.release_oversize(core, shard, request)
            && let Some(granted) = policies.grow(&miss)?
        {
            return Ok(served(granted));
        }
        self.synchronize_events();
        if let Some(granted) = search(shard, State::take_fit_again, request) {
            return Ok(served(granted));
        }
        policies.release_cached(core);
        lock(&core.global).num_alloc_retries += 1;
        if let Some(granted) = policies.grow(&miss)? {
            return Ok(served(granted));
        }
        if let Some(found) = self.take_from_streams(shard, request) {
            return Ok(found);
        }
        Err(self.fail(policies, &miss))
    }

    fn fail(&self, policies: MutexGuard<'_, Policies<B>>, miss: &Miss<'_, B>) -> AllocError {
        let facts = self.out_of_memory(miss);
        drop(policies);
        self.core.hooks.notify_observers(&facts);
        AllocError::OutOfMemory(Box::new(facts))
    }

    /// The last resort: memory that is idle on another stream, or in the other pool. Work on the
    /// request's stream waits, on the device, for what the other stream was given until now; and
    /// when the block is freed, the other one waits in turn.
    fn take_from_streams(&self, shard: &Arc<Shard<B>>, request: Request) -> Option<Served<B>> {
        if shard.pool != 0 {
            return None;
        }
        let backend = &self.core.backend;
        let stream = shard.lock().stream.clone();
        for owner in self.core.shared_shards() {
            for kind in [request.kind, request.kind.other()] {
                let request = Request { kind, ..request };
                let (block, other) = {
                    let mut state = owner.lock();
                    let block = state.rules.caching.then(|| state.detach_fit(request)).flatten();
                    let Some(block) = block else { continue };
                    (block, state.stream.clone())
                };
                // A wait may block the host, so no lock is held.
                let ordered = Arc::ptr_eq(&owner, shard)
                    || backend.record(&other).and_then(|e| backend.wait(&stream, &e)).is_ok();
                let mut state = owner.lock();
                if !ordered {
                    state.put_back(block);
                    continue;
                }
                let granted = state.hand_out(block, request);
                state.record_stream(block, &stream);
                drop(state);
                return Some((owner, granted));
            }
        }
        None
    }

    /// Frees what streams are done with by now, of those too that ask for nothing any more.
    fn poll_events(&self) {
        for shard in self.core.all_shards() {
            let mut state = shard.cell.lock_parked();
            if state.uses.has_events() && !self.core.is_capturing() {
                state.poll_events(&self.core.backend);
            }
        }
    }

    /// Waits for all pending events without a lock, then frees what waited for them.
    pub(crate) fn synchronize_events(&self) {
        if self.core.is_capturing() {
            return;
        }
        lock(&self.core.global).num_sync_all_streams += 1;
        self.core.all_shards().iter().for_each(|shard| shard.synchronize_events());
        self.core.release_orphans();
    }

    fn out_of_memory(&self, miss: &Miss<'_, B>) -> OutOfMemory {
        let Miss { shard, request, limit, .. } = *miss;
        let backend = &self.core.backend;
        let memory = backend.mem_info().ok();
        let config = shard.lock().config.clone();
        lock(&self.core.global).num_ooms += 1;
        let step = |stream| Step {
            action: TraceAction::Oom,
            address: memory.map_or(0, |(free, _)| free as u64),
            size: request.size,
            stream,
            site: Some(request.site),
        };
        let stream = shard.lock().heap.stream;
        self.core.tracer.record(|| step(stream));
        let shards = self.core.all_shards();
        let private = shards.iter().filter(|shard| shard.pool > 0);
        // Its lock is taken after those of shards, so it must not be held below.
        let reserved = self.core.reserved();
        OutOfMemory {
            device: backend.device(),
            requested: request.requested,
            segment: if config.caching {
                segment_size(&config, request.size)
            } else {
                request.size
            },
            free: memory.map(|(free, _)| free),
            total: memory.map(|(_, total)| total),
            // Less is another process's, of our number in its own namespace.
            process: backend.process_memory().filter(|&bytes| bytes >= reserved),
            limit,
            allocated: self.allocated(),
            reserved,
            private_pools: private.map(|shard| shard.lock().heap.reserved()).sum(),
            largest_free: shards.iter().map(|shard| shard.lock().heap.largest_free()).max(),
            remaps: config.policy == Policy::Default || config.expandable(),
        }
    }
}

/// Searches a shard's cache, by the shard's own options: a private pool has a cache, and splits
/// blocks at multiples of 512, even where the request's own stream has none.
fn search<B: Backend>(
    shard: &Shard<B>,
    how: impl Fn(&mut State<B>, Request) -> Option<Granted>,
    request: Request,
) -> Option<Granted> {
    let mut state = shard.lock();
    let request = state.request(request.requested, request.site).ok()?;
    if state.rules.caching { how(&mut state, request) } else { None }
}

/// Free memory of the private pools with `use_on_oom`. Who asks for a private pool gets no other memory, which may be of
/// another kind.
fn take_from_pools<B: Backend>(
    pools: &[Arc<Pool<B>>],
    shard: &Arc<Shard<B>>,
    request: Request,
) -> Option<Served<B>> {
    if shard.pool != 0 {
        return None;
    }
    let stream = shard.lock().heap.stream;
    let sharing = pools.iter().filter(|pool| pool.options.use_on_oom);
    let mut shards = sharing.filter_map(|pool| pool.known_shard(stream));
    shards.find_map(|shard| {
        let granted = search(&shard, State::take_fit_again, request)?;
        Some((shard, granted))
    })
}
