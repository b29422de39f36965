//! Serves a request that nothing cached fits, up to the last attempt before an out-of-memory error.
//! Misses run one at a time, and hold no shard's lock while they call the backend.

use std::sync::{Arc, Weak};

use warpline_sync::MutexGuard;

use crate::growth::{GrowthPolicies, Miss};
use crate::mem_pool::Pool;
use crate::rules::segment_size;
use crate::shard::{AllocatedBlock, Request, Shard, ShardState};
use crate::shared::Shared;
use crate::sync::lock;
use crate::trace::{TraceAction, TraceStep};
use crate::{AllocError, Backend, OutOfMemory, Policy, reclaim};

/// The shard that granted a block, and the block.
type ShardAllocation<B> = (Arc<Shard<B>>, AllocatedBlock);

impl<B: Backend> Shared<B> {
    /// Tries all ways of serving the request, in order.
    #[cold]
    pub(crate) fn miss(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
    ) -> Result<ShardAllocation<B>, AllocError> {
        let core = &*self.core;
        let in_shard = |granted| (Arc::clone(shard), granted);
        if core.hooks.run_callbacks()
            && let Some(granted) = search(shard, ShardState::take_fit, request)
        {
            return Ok(in_shard(granted));
        }
        // Dropped after the lock, because a pool's source may own values of the program.
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        let mut policies = lock(&core.policies);
        // Options may have changed since; they cannot change until the lock is released.
        let request = shard.lock().request(request.requested, request.site)?;
        // Another thread may have allocated memory while this one waited.
        if let Some(granted) = search(shard, ShardState::take_fit_again, request) {
            return Ok(in_shard(granted));
        }
        core.release_orphans();
        self.poll_events();
        policies.retry_refused(core, false);
        let limit = policies.limit(core, request.requested)?;
        let miss = Miss { core, shard, request, limit };
        reclaim::collect_garbage(core, limit);
        if let Some(granted) = policies.grow(&miss)? {
            return Ok(in_shard(granted));
        }
        if let Some(found) = take_from_pools(&pools, shard, request) {
            return Ok(found);
        }
        if core.is_capturing() {
            // During a capture nothing can be released or waited for.
            return Err(self.fail(policies, &miss));
        }
        if reclaim::release_oversize(core, shard, request)
            && let Some(granted) = policies.grow(&miss)?
        {
            return Ok(in_shard(granted));
        }
        self.synchronize_events();
        if let Some(granted) = search(shard, ShardState::take_fit_again, request) {
            return Ok(in_shard(granted));
        }
        policies.release_cached(core);
        lock(&core.global).num_alloc_retries += 1;
        if let Some(granted) = policies.grow(&miss)? {
            return Ok(in_shard(granted));
        }
        if let Some(found) = self.take_from_streams(shard, request) {
            return Ok(found);
        }
        Err(self.fail(policies, &miss))
    }

    fn fail(
        &self,
        policies: MutexGuard<'_, Box<dyn GrowthPolicies<B>>>,
        miss: &Miss<'_, B>,
    ) -> AllocError {
        let facts = self.out_of_memory(miss);
        drop(policies);
        self.core.hooks.notify_observers(&facts);
        AllocError::OutOfMemory(Box::new(facts))
    }

    /// Takes memory that is idle on another stream or in the other pool, as the last attempt. Work
    /// on the request's stream then waits, on the device, for the other stream's work so far. When
    /// the block is freed, the other stream waits in turn.
    fn take_from_streams(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
    ) -> Option<ShardAllocation<B>> {
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
                // The wait may block the host, so no lock is held.
                let ordered = Arc::ptr_eq(&owner, shard)
                    || backend.record(&other).and_then(|e| backend.wait(&stream, &e)).is_ok();
                let mut state = owner.lock();
                if !ordered {
                    state.put_back(block);
                    continue;
                }
                let granted = state.allocate_block(block, request);
                state.record_stream(block, &stream);
                drop(state);
                return Some((owner, granted));
            }
        }
        None
    }

    /// Frees memory that streams have finished using, also of streams without new requests.
    fn poll_events(&self) {
        for shard in self.core.all_shards() {
            let mut state = shard.cell.lock_parked();
            if state.uses.has_events() && !self.core.is_capturing() {
                state.poll_events(&self.core.backend);
            }
        }
    }

    /// Waits for all pending events without a lock, then frees the memory that waited for them.
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
        let step = |stream| TraceStep {
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
        // Locked after shards, so it must not be held below.
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
            // A smaller value belongs to another process with this process's id in another
            // namespace.
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

/// Searches a shard's cache with the shard's own options: a private pool has a cache, and splits
/// blocks at multiples of 512, even if the request's own stream has none.
fn search<B: Backend>(
    shard: &Shard<B>,
    how: impl Fn(&mut ShardState<B>, Request) -> Option<AllocatedBlock>,
    request: Request,
) -> Option<AllocatedBlock> {
    let mut state = shard.lock();
    let request = state.request(request.requested, request.site).ok()?;
    if state.rules.caching { how(&mut state, request) } else { None }
}

/// Takes free memory from the private pools with `use_on_oom`. A request for a private pool gets no
/// other memory, which may be of another kind.
fn take_from_pools<B: Backend>(
    pools: &[Arc<Pool<B>>],
    shard: &Arc<Shard<B>>,
    request: Request,
) -> Option<ShardAllocation<B>> {
    if shard.pool != 0 {
        return None;
    }
    let stream = shard.lock().heap.stream;
    let sharing = pools.iter().filter(|pool| pool.options.use_on_oom);
    let mut shards = sharing.filter_map(|pool| pool.known_shard(stream));
    shards.find_map(|shard| {
        let granted = search(&shard, ShardState::take_fit_again, request)?;
        Some((shard, granted))
    })
}
