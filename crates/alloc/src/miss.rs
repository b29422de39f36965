//! What a request does that nothing cached fits: from callbacks to the last resort.

use std::sync::{Arc, Weak};

use warpline_sync::MutexGuard;

use crate::allocator::Shared;
use crate::core::Slow;
use crate::pages::{Kept, page_size};
use crate::rules::{MAX_REQUEST, segment_size};
use crate::shard::{Shard, lock};
use crate::state::{ArenaRange, Granted, Idle, Request, State};
use crate::trace::{Step, TraceAction};
use crate::{AllocError, Backend, OutOfMemory, Policy, VirtualMemory};

impl<B: Backend> Shared<B> {
    #[cold]
    pub(crate) fn miss(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
    ) -> Result<(Arc<Shard<B>>, Granted), AllocError> {
        if self.core.hooks.ask()
            && let Some(granted) = search(shard, State::take_fit, request)
        {
            return Ok((Arc::clone(shard), granted));
        }
        let mut slow = lock(&self.core.slow);
        // Another thread may have brought memory while this one waited.
        if let Some(granted) = search(shard, State::take_fit_again, request) {
            return Ok((Arc::clone(shard), granted));
        }
        self.core.release_left();
        self.poll_events();
        self.retry_refused(&mut slow, false);
        let limit = self.limit(&mut slow, request.requested)?;
        self.collect_garbage(limit);
        if let Some(granted) = self.grow(&mut slow, shard, request, limit)? {
            return Ok((Arc::clone(shard), granted));
        }
        if let Some(granted) = self.take_from_pools(shard, request) {
            return Ok(granted);
        }
        if self.core.is_capturing() {
            // Nothing can be given back, or waited for.
            return Err(self.fail(slow, shard, request, limit));
        }
        if self.release_oversize(shard, request)
            && let Some(granted) = self.grow(&mut slow, shard, request, limit)?
        {
            return Ok((Arc::clone(shard), granted));
        }
        self.synchronize_events();
        if let Some(granted) = search(shard, State::take_fit_again, request) {
            return Ok((Arc::clone(shard), granted));
        }
        self.release_cached(&mut slow);
        lock(&self.core.global).num_alloc_retries += 1;
        if let Some(granted) = self.grow(&mut slow, shard, request, limit)? {
            return Ok((Arc::clone(shard), granted));
        }
        if let Some(lent) = self.lend(shard, request) {
            return Ok(lent);
        }
        Err(self.fail(slow, shard, request, limit))
    }

    fn fail(
        &self,
        slow: MutexGuard<'_, Slow<B>>,
        shard: &Arc<Shard<B>>,
        request: Request,
        limit: Option<usize>,
    ) -> AllocError {
        let facts = self.out_of_memory(shard, request, limit);
        drop(slow);
        self.core.hooks.tell(&facts);
        AllocError::OutOfMemory(Box::new(facts))
    }

    /// Free memory of the private pools that lend theirs. Who asks for a private pool gets no
    /// other memory, which may be of another kind.
    fn take_from_pools(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
    ) -> Option<(Arc<Shard<B>>, Granted)> {
        if shard.pool != 0 {
            return None;
        }
        let stream = shard.lock().stream_id;
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        let lenders = pools.iter().filter(|pool| pool.options.use_on_oom);
        let mut shards = lenders.filter_map(|pool| pool.known_shard(stream));
        shards.find_map(|shard| {
            let granted = search(&shard, State::take_fit_again, request)?;
            Some((shard, granted))
        })
    }

    /// The last resort: memory that is idle on another stream, or in the other pool. Work on the
    /// request's stream waits, on the device, for what the other stream was given until now; and
    /// when the block is freed, the other one waits in turn.
    fn lend(&self, shard: &Arc<Shard<B>>, request: Request) -> Option<(Arc<Shard<B>>, Granted)> {
        if shard.pool != 0 {
            return None;
        }
        let backend = &self.core.backend;
        let stream = shard.lock().stream.clone();
        for lender in self.core.shared_shards() {
            for kind in [request.kind, request.kind.other()] {
                let request = Request { kind, ..request };
                let (block, other) = {
                    let mut state = lender.lock();
                    let block = state.config.caching.then(|| state.set_aside(request)).flatten();
                    let Some(block) = block else { continue };
                    (block, state.stream.clone())
                };
                // A wait may block the host, so no lock is held.
                let ordered = Arc::ptr_eq(&lender, shard)
                    || backend.record(&other).and_then(|e| backend.wait(&stream, &e)).is_ok();
                let mut state = lender.lock();
                if !ordered {
                    state.put_back(block);
                    continue;
                }
                let granted = state.hand_out(block, request);
                state.record_stream(block, &stream);
                drop(state);
                return Some((lender, granted));
            }
        }
        None
    }

    // ---- growing ------------------------------------------------------------------------

    /// Asks the backend for memory. `None` if it, or the limit, says that there is none.
    fn grow(
        &self,
        slow: &mut Slow<B>,
        shard: &Arc<Shard<B>>,
        request: Request,
        limit: Option<usize>,
    ) -> Result<Option<Granted>, AllocError> {
        let config = shard.lock().config.clone();
        if config.caching
            && let Some(memory) = self.core.backend.virtual_memory()
        {
            let page_size = page_size(&config, request.kind);
            if config.policy == Policy::Default {
                return self.remap(slow, memory, shard, request, page_size, limit);
            }
            if config.expandable() {
                return self.expand(slow, memory, shard, request, page_size, limit);
            }
        }
        let bytes = if config.caching { segment_size(&config, request.size) } else { request.size };
        if !self.may_reserve(bytes, limit)? {
            return Ok(None);
        }
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        let pool = pools.iter().find(|pool| pool.id == shard.pool);
        let backend = pool.and_then(|pool| pool.backend.as_ref()).unwrap_or(&self.core.backend);
        match backend.alloc(bytes) {
            Ok(memory) => {
                let oversize = bytes >= config.max_split();
                let mut global = lock(&self.core.global);
                global.segment.increase(request.kind, 1);
                global.reserved_bytes.increase(request.kind, bytes as i64);
                global.oversize_segments.increase(i64::from(oversize));
                global.num_device_alloc += 1;
                drop(global);
                let address = B::address(&memory);
                Ok(Some(shard.lock().add_segment(memory, address, bytes, request)))
            }
            Err(error) if backend.is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(AllocError::from_backend(bytes, error)),
        }
    }

    /// Maps pages behind addresses of an arena.
    fn expand(
        &self,
        slow: &mut Slow<B>,
        memory: &dyn VirtualMemory<B::Error>,
        shard: &Arc<Shard<B>>,
        request: Request,
        page_size: usize,
        limit: Option<usize>,
    ) -> Result<Option<Granted>, AllocError> {
        let planned = shard.lock().plan_expansion(request, page_size);
        let growth = match planned {
            Some(growth) => growth,
            None => {
                let arena = self.reserve(slow, memory, request, request.size, page_size)?;
                let Some(arena) = arena else { return Ok(None) };
                let mut state = shard.lock();
                state.add_arena(request.kind, arena);
                let planned = state.plan_expansion(request, page_size);
                let Some(growth) = planned else { return Ok(None) };
                growth
            }
        };
        for (done, &pages) in growth.missing.iter().enumerate() {
            let mapped = match self.may_reserve(pages.size, limit) {
                Ok(true) => {
                    slow.arenas.create(memory, request.kind, pages).map_err(|(error, kept)| {
                        let out = self.core.backend.is_out_of_memory(&error);
                        ((!out).then(|| AllocError::from_backend(pages.size, error)), kept)
                    })
                }
                Ok(false) => Err((None, Kept::default())),
                Err(error) => Err((Some(error), Kept::default())),
            };
            let mut global = lock(&self.core.global);
            global.mapping_time += std::mem::take(&mut slow.arenas.spent);
            if let Err((error, kept)) = mapped {
                drop(global);
                self.count_kept(slow, request.kind, &kept);
                let mut state = shard.lock();
                state.undo(&growth, done);
                // What could not be unmapped again is there, as free memory.
                kept.mapped.into_iter().for_each(|pages| state.uncarve(request.kind, pages));
                return error.map_or(Ok(None), Err);
            }
            global.reserved_bytes.increase(request.kind, pages.size as i64);
            global.num_device_alloc += 1;
        }
        Ok(Some(shard.lock().finish(&growth, request)))
    }

    /// Reserves addresses for at least `bytes` bytes of a request. `None` if there are not enough.
    pub(crate) fn reserve(
        &self,
        slow: &mut Slow<B>,
        memory: &dyn VirtualMemory<B::Error>,
        request: Request,
        bytes: usize,
        page_size: usize,
    ) -> Result<Option<ArenaRange>, AllocError> {
        let backend_error = |error| AllocError::from_backend(request.requested, error);
        let (_, total) = self.core.backend.mem_info().map_err(backend_error)?;
        // More than there is: what is left unmapped between blocks takes addresses too.
        let total = total.min(MAX_REQUEST);
        let range = (total / 8 * 9).max(page_size).next_multiple_of(page_size);
        if bytes > range {
            return Ok(None);
        }
        match slow.arenas.reserve(memory, range, page_size) {
            Ok((number, base)) => Ok(Some(ArenaRange { number, base, bytes: range, page_size })),
            // Those that nothing uses go back before the request fails.
            Err(error) if self.core.backend.is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(backend_error(error)),
        }
    }

    pub(crate) fn may_reserve(
        &self,
        bytes: usize,
        limit: Option<usize>,
    ) -> Result<bool, AllocError> {
        let reserved = self.core.reserved();
        let overflow = AllocError::SizeOverflow { what: "reserved memory", bytes };
        let reserved = reserved.checked_add(bytes).ok_or(overflow)?;
        Ok(limit.is_none_or(|limit| reserved <= limit))
    }

    /// The memory fraction in bytes.
    fn limit(&self, slow: &mut Slow<B>, requested: usize) -> Result<Option<usize>, AllocError> {
        let limit = &mut slow.limit;
        if let Some(fraction) = limit.fraction
            && limit.bytes.is_none()
        {
            let info = self.core.backend.mem_info();
            let (_, total) = info.map_err(|error| AllocError::from_backend(requested, error))?;
            limit.bytes = Some((fraction * total as f64) as usize);
        }
        Ok(limit.bytes)
    }

    // ---- giving back --------------------------------------------------------------------

    /// Gives large segments back that have been idle longer than the mean, until no more than
    /// the threshold is reserved.
    fn collect_garbage(&self, limit: Option<usize>) {
        let shards = self.core.all_shards();
        let threshold = shards.first().and_then(|s| s.lock().config.garbage_collection_threshold);
        let (Some(limit), Some(share)) = (limit, threshold) else { return };
        let threshold = (share * limit as f64) as usize;
        let reserved = self.core.reserved();
        let target = reserved.saturating_sub(threshold);
        let now = self.core.searches();
        let mut idle: Vec<(&Arc<Shard<B>>, Idle)> = shards
            .iter()
            .flat_map(|shard| {
                let segments = shard.lock().idle_segments(now);
                segments.into_iter().map(move |idle| (shard, idle))
            })
            .collect();
        let mut reclaimed = 0;
        let mut garbage = Vec::new();
        while reclaimed < target && !idle.is_empty() {
            let total: u64 = idle.iter().map(|(_, idle)| idle.age).sum();
            let mean = total as f64 / idle.len() as f64;
            // The oldest is never under the mean, so this ends.
            idle.retain(|(shard, idle)| {
                let old = idle.age as f64 >= mean;
                if old && let Some(segment) = shard.lock().release(idle.block) {
                    reclaimed += segment.size;
                    garbage.push((Arc::clone(shard), segment));
                }
                !old
            });
        }
        for (shard, segment) in garbage {
            self.core.give_back(&shard, vec![segment]);
        }
    }

    fn release_oversize(&self, shard: &Arc<Shard<B>>, request: Request) -> bool {
        let mut released = Vec::new();
        let enough = shard.lock().take_oversize(request, &mut released);
        self.core.give_back(shard, released);
        enough
    }

    /// Frees what streams are done with by now, of those too that ask for nothing any more.
    fn poll_events(&self) {
        for shard in self.core.all_shards() {
            let mut state = shard.books.lock_parked();
            if !state.pending.is_empty() && !self.core.is_capturing() {
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
        self.core.release_left();
    }

    fn out_of_memory(
        &self,
        shard: &Arc<Shard<B>>,
        request: Request,
        limit: Option<usize>,
    ) -> OutOfMemory {
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
        let stream = shard.lock().stream_id;
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
            private_pools: private.map(|shard| shard.lock().reserved()).sum(),
            largest_free: shards.iter().map(|shard| shard.lock().largest_free()).max(),
            remaps: config.policy == Policy::Default || config.expandable(),
        }
    }
}

fn search<B: Backend>(
    shard: &Shard<B>,
    how: impl Fn(&mut State<B>, Request) -> Option<Granted>,
    request: Request,
) -> Option<Granted> {
    let mut state = shard.lock();
    if state.config.caching { how(&mut state, request) } else { None }
}
