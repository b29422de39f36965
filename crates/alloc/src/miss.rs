//! Serves misses: requests that the stream's shard cannot serve. Returns the out-of-memory error if the last attempt
//! fails.
//!
//! The problem: calls of the backend are slow, and waits for streams are slower, so a miss must try
//! the cheap sources of memory first. The approach is a fixed order of attempts. Each attempt starts
//! only if the attempts before it have failed:
//!
//! 1. The program's cache-miss callbacks, which may drop blocks, and another search of the shard.
//! 2. Another search under the lock of the policies. Then new memory from the backend, by the
//!    policy, after refused releases are retried and, with a garbage-collection threshold, old idle
//!    segments are released.
//! 3. Free memory of private pools with `use_on_oom`. A miss during a capture ends here, because a
//!    capture forbids releases and waits.
//! 4. Release of oversize segments, and new memory.
//! 5. A wait for the streams that still use freed blocks, and another search of the shard.
//! 6. Release of all cached memory, and new memory.
//! 7. Free memory of another stream, with a wait on the device, or of the other pool kind. A miss of a private pool
//!    skips this attempt.
//!
//! Limits: from the second attempt on, one miss runs at a time, under the lock of the policies. No shard's lock is held
//! during backend calls, so hits continue.

use std::sync::{Arc, Weak};

use warpline_sync::MutexGuard;

use crate::growth::{GrowthPolicies, Miss};
use crate::routes::PrivatePool;
use crate::rules::segment_size;
use crate::shard::{AllocatedBlock, Request, Shard, ShardState};
use crate::shared::AllocatorState;
use crate::sync::lock;
use crate::trace::{TraceAction, TraceStep};
use crate::{AllocError, Backend, OutOfMemory, Policy, reclaim};

/// The shard of an allocated block, and the block.
type ShardAllocation<B> = (Arc<Shard<B>>, AllocatedBlock);

impl<B: Backend> AllocatorState<B> {
    /// Tries all ways of serving a miss, in order.
    #[cold]
    pub(crate) fn miss(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
    ) -> Result<ShardAllocation<B>, AllocError> {
        let core = &*self.core;
        let in_shard = |allocated| (Arc::clone(shard), allocated);
        if core.hooks.run_callbacks()
            && let Some(allocated) = search(shard, ShardState::take_fit, request)
        {
            return Ok(in_shard(allocated));
        }
        // Declare this before `policies`, so that it is dropped after the lock is released: a
        // pool's source may own values of the program.
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        let mut policies = lock(&core.policies);
        // The options may have changed since the search.
        let request = shard.lock().request(request.requested, request.site)?;
        // Another thread may have cached memory while this thread waited for the lock.
        if let Some(allocated) = search(shard, ShardState::take_fit_again, request) {
            return Ok(in_shard(allocated));
        }
        core.release_orphans();
        self.poll_events();
        policies.retry_refused(core, false);
        let limit = policies.limit(core, request.requested)?;
        let miss = Miss { core, shard, request, limit };
        reclaim::collect_garbage(core, limit);
        if let Some(allocated) = policies.grow(&miss)? {
            return Ok(in_shard(allocated));
        }
        if let Some(found) = take_from_pools(&pools, shard, request) {
            return Ok(found);
        }
        if core.is_capturing() {
            // A capture forbids releases and waits.
            return Err(self.fail(policies, &miss));
        }
        if reclaim::release_oversize(shard, request)
            && let Some(allocated) = policies.grow(&miss)?
        {
            return Ok(in_shard(allocated));
        }
        self.synchronize_events();
        if let Some(allocated) = search(shard, ShardState::take_fit_again, request) {
            return Ok(in_shard(allocated));
        }
        policies.release_cached(core);
        lock(&core.global).num_alloc_retries += 1;
        if let Some(allocated) = policies.grow(&miss)? {
            return Ok(in_shard(allocated));
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

    /// Takes free memory of another stream or of the other pool, as the last attempt. Later work on
    /// the request's stream waits, on the device, for the other stream's work so far. When the
    /// block is freed, its memory is reused only after the request's stream has completed its work.
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
        for other in self.core.shared_shards() {
            for kind in [request.kind, request.kind.other()] {
                let request = Request { kind, ..request };
                let (block, other_stream) = {
                    let mut state = other.lock();
                    let block = state.rules.caching.then(|| state.claim_fit(request)).flatten();
                    let Some(block) = block else { continue };
                    (block, state.stream.clone())
                };
                // The wait may block the host, so no shard's lock is held here.
                let ordered = Arc::ptr_eq(&other, shard)
                    || backend
                        .record(&other_stream)
                        .and_then(|e| backend.wait(&stream, &e))
                        .is_ok();
                let mut state = other.lock();
                if !ordered {
                    state.put_back(block);
                    continue;
                }
                let allocated = state.allocate_block(block, request);
                state.record_stream(block, &stream);
                drop(state);
                return Some((other, allocated));
            }
        }
        None
    }

    /// Frees memory whose uses have completed, in all shards, because a stream without new requests
    /// does not poll.
    fn poll_events(&self) {
        for shard in self.core.all_shards() {
            let mut state = shard.cell.lock_parked();
            if state.uses.has_events() && !self.core.is_capturing() {
                state.poll_events(&self.core.backend);
            }
        }
    }

    /// Waits for all pending events without a shard's lock, then frees their memory.
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
            // A smaller value must be that of another process, with the same id in another
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

/// Searches a shard's cache by the shard's own options. A private pool caches memory and rounds
/// sizes, even if caching is off in the shard that the request was made for.
fn search<B: Backend>(
    shard: &Shard<B>,
    how: impl Fn(&mut ShardState<B>, Request) -> Option<AllocatedBlock>,
    request: Request,
) -> Option<AllocatedBlock> {
    let mut state = shard.lock();
    let request = state.request(request.requested, request.site).ok()?;
    if state.rules.caching { how(&mut state, request) } else { None }
}

/// Takes free memory from private pools with `use_on_oom`. Returns `None` if the request is for a
/// private pool itself, because that pool's memory may be of another kind.
fn take_from_pools<B: Backend>(
    pools: &[Arc<PrivatePool<B>>],
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
        let allocated = search(&shard, ShardState::take_fit_again, request)?;
        Some((shard, allocated))
    })
}
