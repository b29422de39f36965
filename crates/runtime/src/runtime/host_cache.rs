//! A cache of pageable host memory.
//!
//! Allocating a block from the system costs more than an op that writes the block: the system
//! finds, zeroes and maps pages, and unmaps them when the block is freed. Freed blocks of 64 KiB
//! and more are therefore kept for later tensors, up to
//! [`RuntimeConfig::host_cache_limit`](crate::RuntimeConfig) bytes and 512 blocks. If a limit is
//! exceeded, the blocks that were kept longest are released.
//!
//! Sizes are rounded up by at most an eighth, and a block serves only requests of its rounded size.
//! A reused block holds the bytes of its last user, as reused device memory does: a caller that
//! needs zeros writes them.
//!
//! New blocks of 1 MiB and more are mapped, in huge pages if the system has any. The system
//! provides their pages at the first write, so the threads of an op share this cost. Smaller blocks
//! come from the standard library. A forked child keeps no blocks, because another thread of the
//! parent may have held the cache's lock during the fork.

use std::collections::VecDeque;
use std::sync::PoisonError;

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::HostMemory;
use warpline_sync::Mutex;

/// Minimum size of a kept block, in bytes. Allocating a smaller block costs less than a search.
pub(crate) const MIN_CACHED_BYTES: usize = 64 << 10;

/// Maximum number of kept blocks, so that searching all of them costs less than a new block.
const MAX_BLOCKS: usize = 512;

/// Statistics of the cache of pageable host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCacheStats {
    /// Bytes in kept free blocks.
    pub cached_bytes: usize,
    /// Peak of `cached_bytes`.
    pub cached_bytes_peak: usize,
    /// Number of kept free blocks.
    pub cached_blocks: usize,
    /// Maximum number of bytes that may be kept.
    pub limit: usize,
    /// Number of blocks allocated from the system, among requests large enough to be kept.
    pub num_alloc: u64,
    /// Number of requests served by a kept block.
    pub num_reused: u64,
    /// Number of blocks released to the system.
    pub num_free: u64,
}

#[derive(Debug)]
pub(crate) struct PageableCache(Mutex<CachedBlocks>);

#[derive(Debug)]
struct CachedBlocks {
    /// The kept blocks, in the order in which they were freed.
    blocks: VecDeque<HostMemory>,
    stats: HostCacheStats,
}

/// Returns the size to request from the system, at most an eighth larger than `bytes`, so that
/// blocks of similar sizes are interchangeable. `None` on overflow.
fn rounded(bytes: usize) -> Option<usize> {
    let eighth = 1 << (bytes.max(8).ilog2() - 3);
    bytes.checked_next_multiple_of(eighth)
}

impl PageableCache {
    /// Creates a cache that keeps up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let stats = HostCacheStats { limit, ..HostCacheStats::default() };
        Self(Mutex::new(CachedBlocks { blocks: VecDeque::new(), stats }))
    }

    /// Returns a block of at least `bytes` bytes: a kept block of the same rounded size with its
    /// old contents, or a new zeroed block.
    pub(crate) fn take(&self, bytes: usize) -> Result<HostMemory, DriverError> {
        // The system rejects a size that overflows, with its own error.
        let bytes = rounded(bytes).unwrap_or(bytes);
        if let Some(kept) = self.lock().reuse(bytes) {
            return Ok(kept);
        }
        let new = HostMemory::pageable(bytes).or_else(|_| {
            // Releasing the kept blocks may provide the memory.
            self.empty();
            HostMemory::pageable(bytes)
        })?;
        self.lock().stats.num_alloc += 1;
        Ok(new)
    }

    /// Keeps a freed block from [`take`](Self::take). Releases the blocks that were kept longest if
    /// the limits are exceeded.
    pub(crate) fn put(&self, block: HostMemory) {
        // Unmap the surplus after the lock is released, so that other threads do not wait for it.
        let _surplus = self.lock().keep(block);
    }

    /// Releases all kept blocks to the system.
    pub(crate) fn empty(&self) {
        let _all = self.lock().release(0, 0);
    }

    pub(crate) fn stats(&self) -> HostCacheStats {
        self.lock().stats
    }

    fn lock(&self) -> warpline_sync::MutexGuard<'_, CachedBlocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedBlocks {
    /// Returns the block of this size that was freed last, because its bytes may still be in the
    /// processor's caches.
    fn reuse(&mut self, bytes: usize) -> Option<HostMemory> {
        let at = self.blocks.iter().rposition(|block| block.bytes() == bytes)?;
        let block = self.blocks.remove(at)?;
        self.stats.num_reused += 1;
        self.count();
        self.stats.cached_bytes -= bytes;
        Some(block)
    }

    fn keep(&mut self, block: HostMemory) -> Vec<HostMemory> {
        let bytes = block.bytes();
        if bytes > self.stats.limit {
            self.stats.num_free += 1;
            return vec![block];
        }
        let surplus = self.release(self.stats.limit - bytes, MAX_BLOCKS - 1);
        self.blocks.push_back(block);
        self.count();
        self.stats.cached_bytes += bytes;
        self.stats.cached_bytes_peak = self.stats.cached_bytes_peak.max(self.stats.cached_bytes);
        surplus
    }

    /// Removes the blocks that were kept longest until at most `bytes` bytes and `blocks` blocks
    /// are left.
    fn release(&mut self, bytes: usize, blocks: usize) -> Vec<HostMemory> {
        let mut removed = Vec::new();
        while self.stats.cached_bytes > bytes || self.blocks.len() > blocks {
            let Some(block) = self.blocks.pop_front() else { break };
            self.stats.cached_bytes -= block.bytes();
            self.stats.num_free += 1;
            removed.push(block);
        }
        self.count();
        removed
    }

    fn count(&mut self) {
        self.stats.cached_blocks = self.blocks.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn address(block: &HostMemory) -> usize {
        block.as_ptr().addr().get()
    }

    #[test]
    fn a_freed_block_serves_the_next_request_of_similar_size() {
        let cache = PageableCache::new(64 * MIB);
        let first = cache.take(3 * MIB).unwrap();
        let at = address(&first);
        cache.put(first);
        assert_eq!(cache.stats().cached_bytes, 3 * MIB);
        let again = cache.take(3 * MIB - 5000).unwrap();
        assert_eq!((address(&again), again.bytes()), (at, 3 * MIB));
        let other = cache.take(4 * MIB).unwrap();
        let stats = cache.stats();
        assert_eq!((stats.num_alloc, stats.num_reused, stats.num_free), (2, 1, 0));
        assert_eq!((stats.cached_bytes, stats.cached_blocks), (0, 0));
        assert_eq!(stats.cached_bytes_peak, 3 * MIB);
        drop((again, other));
    }

    #[test]
    fn the_block_freed_last_is_reused_first() {
        let cache = PageableCache::new(64 * MIB);
        let (a, b) = (cache.take(MIB).unwrap(), cache.take(MIB).unwrap());
        let at = [address(&b), address(&a)];
        cache.put(a);
        cache.put(b);
        let (first, second) = (cache.take(MIB).unwrap(), cache.take(MIB).unwrap());
        assert_eq!([address(&first), address(&second)], at);
    }

    #[test]
    fn cached_bytes_do_not_exceed_the_limit() {
        let cache = PageableCache::new(4 * MIB);
        let blocks: Vec<HostMemory> = (0..6).map(|_| cache.take(MIB).unwrap()).collect();
        let last = address(&blocks[5]);
        blocks.into_iter().for_each(|block| cache.put(block));
        let stats = cache.stats();
        assert_eq!((stats.cached_bytes, stats.cached_blocks, stats.num_free), (4 * MIB, 4, 2));
        assert_eq!(address(&cache.take(MIB).unwrap()), last, "the oldest blocks were released");
        cache.put(cache.take(5 * MIB).unwrap());
        assert_eq!(cache.stats().num_free, 3, "larger than the limit");
        cache.put(cache.take(4 * MIB).unwrap());
        assert_eq!((cache.stats().cached_bytes, cache.stats().cached_blocks), (4 * MIB, 1));
        cache.empty();
        assert_eq!((cache.stats().cached_bytes, cache.stats().cached_blocks), (0, 0));
    }

    #[test]
    fn the_number_of_blocks_is_limited_too() {
        let cache = PageableCache::new(usize::MAX);
        let blocks: Vec<HostMemory> =
            (0..MAX_BLOCKS + 3).map(|_| cache.take(MIN_CACHED_BYTES).unwrap()).collect();
        blocks.into_iter().for_each(|block| cache.put(block));
        let stats = cache.stats();
        assert_eq!((stats.cached_blocks, stats.num_free), (MAX_BLOCKS, 3));
        assert_eq!(stats.cached_bytes, MAX_BLOCKS * MIN_CACHED_BYTES);
    }

    #[test]
    fn sizes_are_rounded_by_an_eighth_at_most() {
        for bytes in
            [MIN_CACHED_BYTES, MIN_CACHED_BYTES + 1, 100_000, MIB - 1, 5 * MIB + 1, (1 << 40) - 1]
        {
            let rounded = rounded(bytes).unwrap();
            assert!(rounded >= bytes && rounded <= bytes + bytes / 8, "{bytes}: {rounded}");
        }
        assert_eq!(rounded(usize::MAX), None);
        assert!(PageableCache::new(MIB).take(usize::MAX).is_err());
    }

    #[test]
    fn cached_blocks_are_released_if_an_allocation_fails() {
        let cache = PageableCache::new(4 * MIB);
        cache.put(cache.take(MIB).unwrap());
        assert!(cache.take(1 << 60).is_err());
        assert_eq!(cache.stats().cached_blocks, 0);
    }

    #[test]
    fn storages_come_from_the_cache_and_go_back() {
        use crate::{Runtime, RuntimeConfig, Storage};

        let config = RuntimeConfig { host_cache_limit: 3 * MIB, ..RuntimeConfig::default() };
        let reason = DriverError::ForkedChild { call: "none", parent: 0 };
        let runtime = Runtime::without_cuda(reason, &config);
        let first = Storage::pageable(&runtime, 2 * MIB).unwrap();
        let at = first.address();
        let other = first.clone();
        drop(first);
        assert_eq!(runtime.host_cache_stats().cached_bytes, 0, "the clone uses the memory");
        drop(other);
        let again = Storage::pageable(&runtime, 2 * MIB - 3).unwrap();
        assert_eq!((again.address(), again.bytes()), (at, 2 * MIB - 3));
        drop((again, Storage::pageable(&runtime, 2 * MIB).unwrap()));
        assert_eq!(runtime.host_cache_stats().cached_bytes, 2 * MIB, "no more than the limit");
        runtime.empty_host_cache();
        assert_eq!(runtime.host_cache_stats().cached_blocks, 0);
        // Smaller blocks are not cached.
        drop(Storage::pageable(&runtime, MIN_CACHED_BYTES - 1).unwrap());
        assert_eq!(runtime.host_cache_stats().cached_blocks, 0);
    }
}
