//! The shards of private pools, and the routes of requests to them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use warpline_sync::thread::{self, ThreadId};

use crate::core::Core;
use crate::shard::{Shard, ShardState};
use crate::sync::lock;
use crate::{AllocatorConfig, Backend};

/// Options of a [`MemPool`](crate::MemPool).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Whether free memory of the pool also serves other requests for which the backend has no
    /// memory. Default: `false`.
    pub use_on_oom: bool,
    /// Whether blocks of the pool are never split. Default: `false`.
    pub no_split: bool,
}

pub(crate) struct PrivatePool<B: Backend> {
    pub(crate) id: u64,
    pub(crate) options: PoolOptions,
    /// Backend of the pool. `None`: the allocator's own.
    pub(crate) backend: Option<Arc<B>>,
    /// The shared state of the pool's allocator.
    pub(crate) core: Weak<Core<B>>,
    pub(crate) shards: Mutex<HashMap<u64, Arc<Shard<B>>>>,
}

impl<B: Backend> PrivatePool<B> {
    /// Returns the shard that serves a stream in this pool. Creates it if needed.
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
                ShardState::new(stream.clone(), Arc::clone(&core.clock), Arc::clone(&core.tracer));
            state.set_config(core.in_force(&config, self.id));
            state.no_split = self.options.no_split;
            core.register(Shard::new(core, state, self.id, self.backend.clone()))
        });
        Arc::clone(shard)
    }

    /// Returns the shard that serves a stream in this pool, if there is one.
    pub(crate) fn known_shard(&self, stream: u64) -> Option<Arc<Shard<B>>> {
        lock(&self.shards).get(&stream).cloned()
    }
}

impl<B: Backend> Drop for PrivatePool<B> {
    fn drop(&mut self) {
        let shards = self.shards.get_mut().unwrap_or_else(PoisonError::into_inner);
        for shard in shards.values() {
            shard.retire();
        }
    }
}

/// The requests that a route applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    Thread(ThreadId),
    Stream(u64),
}

struct Route<B: Backend> {
    number: u64,
    filter: Filter,
    /// `None`: the allocator's default pool.
    pool: Option<Arc<PrivatePool<B>>>,
}

/// All routes of an allocator.
pub(crate) struct Routes<B: Backend> {
    /// Number of routes.
    count: AtomicUsize,
    next: AtomicU64,
    routes: Mutex<Vec<Route<B>>>,
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

    /// Returns an identifier that no route has had.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, number: u64, filter: Filter, pool: Option<Arc<PrivatePool<B>>>) {
        lock(&self.routes).push(Route { number, filter, pool });
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a route, if there is a route with this identifier. Returns its pool, so that the
    /// caller can drop the pool without holding a lock.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<PrivatePool<B>>> {
        let route = {
            let mut routes = lock(&self.routes);
            let at = routes.iter().position(|route| route.number == number);
            at.map(|at| routes.remove(at))
        };
        self.count.fetch_sub(usize::from(route.is_some()), Ordering::SeqCst);
        route.and_then(|route| route.pool)
    }

    /// Returns the private pool for a request of a stream: that of the latest matching route, if that route leads to
    /// one.
    pub(crate) fn find(&self, stream: u64) -> Option<Arc<PrivatePool<B>>> {
        let routes = lock(&self.routes);
        let leads = |route: &&Route<B>| match route.filter {
            Filter::Thread(id) => id == thread::current().id(),
            Filter::Stream(id) => id == stream,
        };
        routes.iter().rev().find(leads).and_then(|route| route.pool.clone())
    }
}
