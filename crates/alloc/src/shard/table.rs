//! Lookup of a stream's shard without a lock.

use std::sync::Arc;

use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicU64, Ordering};

use super::{Shard, ShardCell};
use crate::Backend;
use crate::sync::StaticRef;

/// Number of slots. Streams beyond them are looked up under a shared lock.
const SLOTS: usize = 128;

/// Shards by stream. A slot keeps its shard forever. A shard without memory may be assigned to
/// another stream, so a thread checks the stream again under the shard's lock.
pub(crate) struct StreamTable<B: Backend> {
    streams: [AtomicU64; SLOTS],
    shards: [OnceLock<ShardSlot<B>>; SLOTS],
}

/// A shard and its cell. The direct reference to the cell keeps a hit from reading the cache line
/// with the shard's reference count.
type ShardSlot<B> = (StaticRef<ShardCell<B>>, Arc<Shard<B>>);

impl<B: Backend> StreamTable<B> {
    pub(crate) fn new() -> Self {
        Self {
            streams: [const { AtomicU64::new(0) }; SLOTS],
            shards: [const { OnceLock::new() }; SLOTS],
        }
    }

    #[inline]
    pub(crate) fn find(&self, stream: u64) -> Option<&ShardSlot<B>> {
        let first = (stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as usize;
        // Usually the first slot matches, because there are few streams. A later slot matches if
        // hashes collide, or if the shard served another stream before and kept its slot.
        (0..SLOTS).map(|step| (first + step) % SLOTS).find_map(|at| {
            if self.streams[at].load(Ordering::Relaxed) != stream {
                return None;
            }
            self.shards[at].get()
        })
    }

    /// Assigns a shard without memory to another stream. The caller changes the shard's state under
    /// its lock.
    pub(crate) fn assign(&self, shard: &Arc<Shard<B>>, stream: u64) {
        let at = self.shards.iter().position(|s| s.get().is_some_and(|s| Arc::ptr_eq(&s.1, shard)));
        if let Some(at) = at {
            self.streams[at].store(stream, Ordering::Relaxed);
        }
    }

    /// Adds a shard. Returns `false` if the table is full. Two threads must not call this at the
    /// same time.
    pub(crate) fn insert(&self, stream: u64, shard: &Arc<Shard<B>>) -> bool {
        let first = (stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as usize;
        let mut slots = (0..SLOTS).map(|step| (first + step) % SLOTS);
        let Some(at) = slots.find(|&at| self.shards[at].get().is_none()) else { return false };
        self.streams[at].store(stream, Ordering::Relaxed);
        self.shards[at].set((StaticRef::clone(&shard.cell), Arc::clone(shard))).is_ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shard<B>>> {
        self.shards.iter().filter_map(|slot| Some(&slot.get()?.1))
    }
}
