//! Private pools: memory that only chosen requests are served from.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use warpline_sync::thread::{self, ThreadId};

use crate::allocator::Shared;
use crate::core::Core;
use crate::shard::{Shard, State, lock};
use crate::{AllocError, AllocatorConfig, Backend, Block, CachingAllocator};

/// How a [`MemPool`] behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Its free memory serves other requests too before they fail.
    pub use_on_oom: bool,
    /// Its blocks are never split.
    pub no_split: bool,
}

/// A pool of its own within an allocator (`torch.cuda.MemPool`): requests are served from it while
/// a [route](CachingAllocator::use_pool) leads there, and its memory serves no others. Clones share
/// it. Once neither a clone nor a route is left it takes no more requests, and each of its segments
/// goes back to the backend with its last block.
///
/// It has segments under every [`Policy`](crate::Policy): nothing is ever mapped elsewhere, so that addresses
/// stay what they are, as a captured graph needs.
pub struct MemPool<B: Backend> {
    pub(crate) inner: Arc<Pool<B>>,
}

pub(crate) struct Pool<B: Backend> {
    pub(crate) id: u64,
    pub(crate) options: PoolOptions,
    /// Where its memory comes from, if not from the allocator's own.
    backend: Option<Arc<B>>,
    /// What its allocator's shards share.
    core: Weak<Core<B>>,
    shards: Mutex<HashMap<u64, Arc<Shard<B>>>>,
}

/// Which requests a route leads to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Thread(ThreadId),
    Stream(u64),
}

struct Route<B: Backend> {
    number: u64,
    filter: Filter,
    pool: Arc<Pool<B>>,
}

/// All routes of an allocator.
pub(crate) struct Routes<B: Backend> {
    /// How many there are.
    count: AtomicUsize,
    next: AtomicU64,
    routes: Mutex<Vec<Route<B>>>,
}

/// Leads requests to a pool until it is dropped.
pub struct PoolRoute<B: Backend> {
    shared: Arc<Shared<B>>,
    number: u64,
    capture: bool,
}

impl<B: Backend> MemPool<B> {
    pub(crate) fn new(
        core: &Arc<Core<B>>,
        id: u64,
        options: PoolOptions,
        backend: Option<Arc<B>>,
    ) -> Self {
        let (core, shards) = (Arc::downgrade(core), Mutex::default());
        Self { inner: Arc::new(Pool { id, options, backend, core, shards }) }
    }

    /// Its number, which no other pool of the allocator has; never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Whether the block is of this pool.
    #[must_use]
    pub fn holds(&self, block: &Block<B>) -> bool {
        lock(&self.inner.shards).values().any(|shard| block.is_of(&shard.cell))
    }

    /// How many clones and routes there are.
    #[must_use]
    pub fn use_count(&self) -> usize {
        Arc::strong_count(&self.inner)
    }
}

impl<B: Backend> Pool<B> {
    /// What serves a stream here.
    pub(crate) fn shard(
        &self,
        core: &Arc<Core<B>>,
        config: &Mutex<AllocatorConfig>,
        stream: &B::Stream,
    ) -> Arc<Shard<B>> {
        let mut shards = lock(&self.shards);
        let shard = shards.entry(B::stream_id(stream)).or_insert_with(|| {
            let config = lock(config);
            let mut state =
                State::new(stream.clone(), Arc::clone(&core.clock), Arc::clone(&core.tracer));
            state.set_config(core.in_force(&config, self.id));
            state.no_split = self.options.no_split;
            core.register(Shard::new(core, state, self.id, self.backend.clone()))
        });
        Arc::clone(shard)
    }

    /// What served a stream here so far.
    pub(crate) fn known_shard(&self, stream: u64) -> Option<Arc<Shard<B>>> {
        lock(&self.shards).get(&stream).cloned()
    }
}

impl<B: Backend> Drop for Pool<B> {
    fn drop(&mut self) {
        let shards = self.shards.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for shard in shards.values() {
            shard.retire();
        }
    }
}

impl<B: Backend> Default for Routes<B> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), next: AtomicU64::new(0), routes: Mutex::default() }
    }
}

impl<B: Backend> Routes<B> {
    #[inline]
    pub(crate) fn exist(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The pool that a request for a stream is led to: by the route that was made last.
    pub(crate) fn find(&self, stream: u64) -> Option<Arc<Pool<B>>> {
        let routes = lock(&self.routes);
        let leads = |route: &&Route<B>| match route.filter {
            Filter::Thread(id) => id == thread::current().id(),
            Filter::Stream(id) => id == stream,
        };
        routes.iter().rev().find(leads).map(|route| Arc::clone(&route.pool))
    }
}

impl<B: Backend> CachingAllocator<B> {
    /// A private pool.
    #[must_use]
    pub fn new_pool(&self, options: PoolOptions) -> MemPool<B> {
        self.shared().add_pool(options, None)
    }

    /// A private pool whose memory comes from another backend, for the same streams. Nothing is led
    /// to it if that [may not stand in](Backend::may_stand_in) for the allocator's own.
    #[must_use]
    pub fn new_pool_over(&self, backend: B, options: PoolOptions) -> MemPool<B> {
        self.shared().add_pool(options, Some(Arc::new(backend)))
    }

    /// Serves this thread's requests from the pool until the result is dropped
    /// (`torch.cuda.use_mem_pool`). Nothing is ever led to another allocator's pool.
    ///
    /// ```
    /// # use warpline_alloc::{AllocatorConfig, cuda::{CudaAllocator, CudaBackend}, PoolOptions};
    /// # use warpline_cuda_sys_safe::{owned::Stream, sim::SimConfig, Driver};
    /// # let driver: std::sync::Arc<dyn Driver> = SimConfig::new(1).build();
    /// # let stream = Stream::default_of(&driver, 0);
    /// # let allocator = CudaAllocator::new(CudaBackend::new(driver, 0), AllocatorConfig::default());
    /// let pool = allocator.new_pool(PoolOptions::default());
    /// let block = {
    ///     let _route = allocator.use_pool(&pool);
    ///     allocator.malloc(1 << 20, &stream)?
    /// };
    /// assert_eq!(allocator.snapshot().segments[0].segment_pool_id, (0, pool.id()));
    /// drop((pool, block));
    /// assert_eq!(allocator.memory_reserved(), 0);
    /// # Ok::<(), warpline_alloc::AllocError>(())
    /// ```
    #[must_use = "the route ends when this is dropped"]
    pub fn use_pool(&self, pool: &MemPool<B>) -> PoolRoute<B> {
        self.shared().add_route(pool, Filter::Thread(thread::current().id()), false)
    }

    /// Serves all requests for a stream from the pool until the result is dropped.
    #[must_use = "the route ends when this is dropped"]
    pub fn use_pool_for(&self, pool: &MemPool<B>, stream: &B::Stream) -> PoolRoute<B> {
        self.shared().add_route(pool, Filter::Stream(B::stream_id(stream)), false)
    }

    /// Memory for work on `stream` from the pool, without a route there, unless a route leads the
    /// request elsewhere. As [`malloc`](CachingAllocator::malloc) if the pool is another allocator's.
    ///
    /// # Errors
    /// As [`malloc`](CachingAllocator::malloc).
    #[track_caller]
    pub fn malloc_from(
        &self,
        pool: &MemPool<B>,
        bytes: usize,
        stream: &B::Stream,
    ) -> Result<Block<B>, AllocError> {
        let (shared, id) = (self.shared(), B::stream_id(stream));
        if bytes > 0 && shared.may_lead_to(&pool.inner) && shared.routes.find(id).is_none() {
            let shard = pool.inner.shard(&shared.core, &shared.config, stream);
            let site = Location::caller();
            if let Some((cell, granted)) = shared.malloc_in(&shard, bytes, id, site, false)? {
                return Ok(Block::new(cell, granted, bytes, id));
            }
        }
        self.malloc(bytes, stream)
    }

    /// Says that streams are being captured, until the result is dropped after the capture, as
    /// [`capture_to`](CachingAllocator::capture_to) does, and leads no request anywhere.
    #[must_use = "the capture ends when this is dropped"]
    pub fn capture(&self) -> PoolRoute<B> {
        let shared = self.shared();
        shared.core.begin_capture();
        let number = shared.routes.next.fetch_add(1, Ordering::Relaxed);
        PoolRoute { shared: Arc::clone(shared), number, capture: true }
    }

    /// Serves all requests for a stream that is being captured from the pool, until the result is
    /// dropped after the capture. Until then nothing goes back to the backend, no event is queried,
    /// none is recorded in a stream that is captured, and what several streams used stays unused.
    #[must_use = "the capture ends when this is dropped"]
    pub fn capture_to(&self, pool: &MemPool<B>, stream: &B::Stream) -> PoolRoute<B> {
        self.shared().core.begin_capture();
        self.shared().add_route(pool, Filter::Stream(B::stream_id(stream)), true)
    }
}

impl<B: Backend> Shared<B> {
    fn add_pool(&self, options: PoolOptions, backend: Option<Arc<B>>) -> MemPool<B> {
        let id = self.next_pool.fetch_add(1, Ordering::Relaxed) + 1;
        let pool = MemPool::new(&self.core, id, options, backend);
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool.inner));
        drop(pools);
        pool
    }

    fn may_lead_to(&self, pool: &Pool<B>) -> bool {
        // Another allocator's shards are not to be filled from here.
        let own = std::ptr::eq(pool.core.as_ptr(), Arc::as_ptr(&self.core));
        // Nor is another device's memory to be taken for this one's.
        own && pool.backend.as_ref().is_none_or(|other| self.core.backend.may_stand_in(other))
    }

    fn add_route(
        self: &Arc<Self>,
        pool: &MemPool<B>,
        filter: Filter,
        capture: bool,
    ) -> PoolRoute<B> {
        let number = self.routes.next.fetch_add(1, Ordering::Relaxed);
        let pool = Arc::clone(&pool.inner);
        if self.may_lead_to(&pool) {
            lock(&self.routes.routes).push(Route { number, filter, pool });
            self.routes.count.fetch_add(1, Ordering::SeqCst);
        }
        PoolRoute { shared: Arc::clone(self), number, capture }
    }
}

impl<B: Backend> Drop for PoolRoute<B> {
    fn drop(&mut self) {
        let routes = &self.shared.routes;
        let route = {
            let mut routes = lock(&routes.routes);
            let at = routes.iter().position(|route| route.number == self.number);
            at.map(|at| routes.remove(at))
        };
        routes.count.fetch_sub(usize::from(route.is_some()), Ordering::SeqCst);
        // The pool may go with it, which takes locks.
        drop(route);
        if self.capture {
            self.shared.core.end_capture();
        }
    }
}

impl<B: Backend> Clone for MemPool<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B: Backend> fmt::Debug for MemPool<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemPool")
            .field("id", &self.id())
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> fmt::Debug for PoolRoute<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolRoute").field("capture", &self.capture).finish_non_exhaustive()
    }
}
