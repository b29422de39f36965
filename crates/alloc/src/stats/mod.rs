//! Statistics, under PyTorch's names.
//!
//! # Exact peaks without a shared counter
//!
//! Counters and peaks are exact at any moment, although no two streams share a counter. Each shard
//! counts for itself and has a limit. As long as no shard exceeds its limit, the sum over all
//! shards stays within the known peak. Only when a shard exceeds its limit are all shards locked and
//! their counters added up. A hit adds the allocated bytes to a pending amount and subtracts them
//! from the remaining room. The other counters are brought up to date when they are read.

mod counters;
mod global;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use counters::{Counters, Quantity};
pub(crate) use global::{Count, Global, RefusedReleases};

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Current value.
    pub current: i64,
    /// Highest value since the start or the last
    /// [reset](crate::CachingAllocator::reset_peak_stats).
    pub peak: i64,
    /// Sum of all increases since the start or the last
    /// [reset](crate::CachingAllocator::reset_accumulated_stats).
    pub allocated: i64,
    /// Sum of all decreases since the start or the same reset.
    pub freed: i64,
}

/// One quantity, for each pool and for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Sum over both pools.
    pub all: Stat,
    /// Requests up to 1 MiB, or up to 512 KiB under [`Policy::Default`](crate::Policy::Default).
    pub small_pool: Stat,
    /// All larger requests.
    pub large_pool: Stat,
}

/// Statistics of [`memory_stats`](crate::CachingAllocator::memory_stats), in bytes or numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Number of allocated blocks.
    pub allocation: PoolStats,
    /// Number of segments reserved from the backend, without arenas.
    pub segment: PoolStats,
    /// Number of blocks that are allocated, or freed but still used by another stream.
    pub active: PoolStats,
    /// Number of free blocks that are part of an allocation of the backend, so that they cannot be
    /// released. Free parts of arenas do not count.
    pub inactive_split: PoolStats,
    /// Bytes of the blocks counted by `allocation`.
    pub allocated_bytes: PoolStats,
    /// Bytes reserved from the backend, in segments and in pages.
    pub reserved_bytes: PoolStats,
    /// Bytes of the blocks counted by `active`.
    pub active_bytes: PoolStats,
    /// Bytes of the blocks counted by `inactive_split`.
    pub inactive_split_bytes: PoolStats,
    /// Requested bytes of the blocks counted by `active`.
    pub requested_bytes: PoolStats,
    /// Allocated blocks of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// The option `max_split_size`, in bytes. −1 if there is no limit.
    pub max_split_size: i64,
    /// Number of times that all cached memory was released to try a request again.
    pub num_alloc_retries: i64,
    /// Number of requests that failed because memory was exhausted.
    pub num_ooms: i64,
    /// Number of waits for all pending events.
    pub num_sync_all_streams: i64,
    /// Number of allocations by the backend.
    pub num_device_alloc: i64,
    /// Number of allocations released to the backend.
    pub num_device_free: i64,
    /// Number of pages that were mapped at an additional address because the free memory lay
    /// elsewhere. Not one of PyTorch's keys.
    pub num_remaps: i64,
    /// Time spent in backend calls that reserve addresses and create, map and unmap pages. Not one
    /// of PyTorch's keys.
    pub mapping_time: Duration,
    /// Number of segments, mappings, pages and address ranges that the backend refused to take back
    /// and has not taken since. They are retried when memory is short and when the cache is
    /// emptied. Until then, memory that is still mapped serves requests, and all of it counts as
    /// reserved. Not one of PyTorch's keys.
    pub refused_releases: i64,
    /// Bytes of the refused releases. Memory with several mappings counts once per address.
    pub refused_bytes: i64,
    /// Number of times that the backend refused a release.
    pub num_refused: i64,
}

impl MemoryStats {
    /// Returns the statistics under the keys of PyTorch's `torch.cuda.memory_stats`, such as
    /// `allocated_bytes.all.peak`.
    #[must_use]
    pub fn as_map(&self) -> BTreeMap<String, i64> {
        let mut map = BTreeMap::new();
        let mut put = |name: &str, stat: &Stat| {
            for (part, value) in [
                ("current", stat.current),
                ("peak", stat.peak),
                ("allocated", stat.allocated),
                ("freed", stat.freed),
            ] {
                map.insert(format!("{name}.{part}"), value);
            }
        };
        for (name, stats) in [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ] {
            put(&format!("{name}.all"), &stats.all);
            put(&format!("{name}.small_pool"), &stats.small_pool);
            put(&format!("{name}.large_pool"), &stats.large_pool);
        }
        put("oversize_allocations", &self.oversize_allocations);
        put("oversize_segments", &self.oversize_segments);
        for (name, value) in [
            ("max_split_size", self.max_split_size),
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ] {
            map.insert(name.to_string(), value);
        }
        map
    }
}
