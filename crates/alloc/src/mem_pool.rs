//! Private pools. A pool serves the requests that a route leads to it, and the requests that name
//! it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_sync::Mutex;
use warpline_sync::atomic::Ordering;
use warpline_sync::thread;

use crate::core::Core;
use crate::routes::{Filter, PrivatePool};
use crate::shared::AllocatorState;
use crate::sync::lock;
use crate::{AllocError, Backend, Block, CachingAllocator, PoolOptions};

/// A private pool of an allocator (`torch.cuda.MemPool`). It serves the requests that a
/// [route](CachingAllocator::use_pool) leads to it, and those of
/// [`malloc_from`](CachingAllocator::malloc_from). Its free memory serves no other requests,
/// except, with [`PoolOptions::use_on_oom`], requests for which the backend has no memory. Clones
/// share the pool. When the last clone and route are dropped, the pool takes no more requests, and each
/// segment goes back to the backend when its last block is freed.
///
/// A pool uses segments under every [`Policy`](crate::Policy): memory never moves to other
/// addresses, as captured graphs need.
pub struct MemPool<B: Backend> {
    pub(crate) inner: Arc<PrivatePool<B>>,
}

/// Leads requests to a pool until dropped. The route that [`CachingAllocator::capture`] returns
/// leads no requests. Dropping the route that `capture` or [`CachingAllocator::capture_to`]
/// returned ends the capture.
pub struct PoolRoute<B: Backend> {
    shared: Arc<AllocatorState<B>>,
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
        Self { inner: Arc::new(PrivatePool { id, options, backend, core, shards }) }
    }

    /// Returns the pool's identifier, unique within the allocator. Never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns whether the block belongs to this pool.
    #[must_use]
    pub fn holds(&self, block: &Block<B>) -> bool {
        lock(&self.inner.shards).values().any(|shard| block.belongs_to(&shard.cell))
    }

    /// Returns the number of clones and routes.
    #[must_use]
    pub fn use_count(&self) -> usize {
        Arc::strong_count(&self.inner)
    }
}

impl<B: Backend> CachingAllocator<B> {
    /// Creates a private pool.
    #[must_use]
    pub fn new_pool(&self, options: PoolOptions) -> MemPool<B> {
        self.shared().add_pool(options, None)
    }

    /// Creates a private pool whose memory comes from another backend, for the same streams. No
    /// requests are routed to it if that backend [may not stand in](Backend::may_stand_in) for the
    /// allocator's own.
    #[must_use]
    pub fn new_pool_over(&self, backend: B, options: PoolOptions) -> MemPool<B> {
        self.shared().add_pool(options, Some(Arc::new(backend)))
    }

    /// Serves this thread's requests from the pool until the route is dropped
    /// (`torch.cuda.use_mem_pool`). Has no effect for a pool of another allocator, or over a backend
    /// that [may not stand in](Backend::may_stand_in).
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

    /// Serves all requests for a stream from the pool until the route is dropped.
    #[must_use = "the route ends when this is dropped"]
    pub fn use_pool_for(&self, pool: &MemPool<B>, stream: &B::Stream) -> PoolRoute<B> {
        self.shared().add_route(pool, Filter::Stream(B::stream_id(stream)), false)
    }

    /// Serves this thread's requests outside the private pools until the route is dropped, even if earlier routes lead
    /// to one. Meant for memory that is kept in a cache.
    #[must_use = "the route ends when this is dropped"]
    pub fn use_default_pool(&self) -> PoolRoute<B> {
        let shared = self.shared();
        let number = shared.routes.next_number();
        shared.routes.add(number, Filter::Thread(thread::current().id()), None);
        PoolRoute { shared: Arc::clone(shared), number, capture: false }
    }

    /// Allocates memory for work on `stream` from the pool without a route. If a route leads the
    /// request to another pool, that pool serves it. The same as
    /// [`malloc`](CachingAllocator::malloc) if the pool belongs to another allocator, or is over a
    /// backend that [may not stand in](Backend::may_stand_in).
    ///
    /// # Errors
    /// The same as [`malloc`](CachingAllocator::malloc).
    #[track_caller]
    pub fn malloc_from(
        &self,
        pool: &MemPool<B>,
        bytes: usize,
        stream: &B::Stream,
    ) -> Result<Block<B>, AllocError> {
        let (shared, id) = (self.shared(), B::stream_id(stream));
        if bytes > 0 && shared.can_route_to(&pool.inner) && shared.routes.find(id).is_none() {
            let shard = pool.inner.shard(&shared.core, &shared.config, stream);
            let site = Location::caller();
            if let Some((cell, allocated)) = shared.malloc_in(&shard, bytes, id, site, false)? {
                return Ok(Block::new(cell, allocated, bytes, id));
            }
        }
        self.malloc(bytes, stream)
    }

    /// Declares that streams are being captured, until the returned [`PoolRoute`] is dropped after
    /// the capture. See [`capture_to`](CachingAllocator::capture_to). Routes no requests.
    #[must_use = "the capture ends when this is dropped"]
    pub fn capture(&self) -> PoolRoute<B> {
        let shared = self.shared();
        shared.core.begin_capture();
        let number = shared.routes.next_number();
        PoolRoute { shared: Arc::clone(shared), number, capture: true }
    }

    /// Serves from `pool` all requests for `stream`, which is being captured, until the returned
    /// route is dropped. Drop the route after the capture. Until then, nothing is released to the
    /// backend, no event is queried or recorded on a captured stream, and memory used by several
    /// streams is not reused.
    #[must_use = "the capture ends when this is dropped"]
    pub fn capture_to(&self, pool: &MemPool<B>, stream: &B::Stream) -> PoolRoute<B> {
        self.shared().core.begin_capture();
        self.shared().add_route(pool, Filter::Stream(B::stream_id(stream)), true)
    }
}

impl<B: Backend> AllocatorState<B> {
    fn add_pool(&self, options: PoolOptions, backend: Option<Arc<B>>) -> MemPool<B> {
        let id = self.next_pool.fetch_add(1, Ordering::Relaxed) + 1;
        let pool = MemPool::new(&self.core, id, options, backend);
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool.inner));
        drop(pools);
        pool
    }

    fn can_route_to(&self, pool: &PrivatePool<B>) -> bool {
        // A request of this allocator must not allocate from another allocator's shards.
        let own = std::ptr::eq(pool.core.as_ptr(), Arc::as_ptr(&self.core));
        // Memory of another device cannot replace this device's.
        own && pool.backend.as_ref().is_none_or(|other| self.core.backend.may_stand_in(other))
    }

    fn add_route(
        self: &Arc<Self>,
        pool: &MemPool<B>,
        filter: Filter,
        capture: bool,
    ) -> PoolRoute<B> {
        let number = self.routes.next_number();
        let pool = Arc::clone(&pool.inner);
        if self.can_route_to(&pool) {
            self.routes.add(number, filter, Some(pool));
        }
        PoolRoute { shared: Arc::clone(self), number, capture }
    }
}

impl<B: Backend> Drop for PoolRoute<B> {
    fn drop(&mut self) {
        // No lock may be held here, because this may drop the last reference to the pool.
        drop(self.shared.routes.remove(self.number));
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
