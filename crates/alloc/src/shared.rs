//! The state that clones of an allocator share.

use std::sync::{Arc, PoisonError, Weak};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::routes::{PrivatePool, Routes};
use crate::shard::{Shard, StreamTable};
use crate::stats::{Counters, Quantity};
use crate::sync::lock;
use crate::{AllocatorConfig, Backend};

pub(crate) struct AllocatorState<B: Backend> {
    pub(crate) core: Arc<Core<B>>,
    pub(crate) table: StreamTable<B>,
    /// Shards that do not fit in the table.
    pub(crate) overflow: Mutex<Vec<Arc<Shard<B>>>>,
    pub(crate) config: Mutex<AllocatorConfig>,
    /// Private pools that may still be alive.
    pub(crate) pools: Mutex<Vec<Weak<PrivatePool<B>>>>,
    pub(crate) next_pool: AtomicU64,
    pub(crate) routes: Routes<B>,
}

impl<B: Backend> AllocatorState<B> {
    pub(crate) fn allocated(&self) -> usize {
        let at = Quantity::AllocatedBytes as usize;
        let of = |shard: &Counters| shard.current[0][at] + shard.current[1][at];
        self.core.with_all(|_, shards| shards.iter().map(|s| of(s)).sum::<i64>()) as usize
    }
}

impl<B: Backend> Drop for AllocatorState<B> {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::SeqCst);
        // Each orphan owns the core, so dropping the orphans breaks the reference cycle.
        let orphans = std::mem::take(&mut *lock(&self.core.orphans));
        drop(orphans);
        let overflow = self.overflow.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.table.iter().chain(overflow.iter()).for_each(Shard::retire);
    }
}
