//! Statistics, under PyTorch's names.
//!
//! # Exact peaks without a shared counter
//!
//! Counters and peaks are exact at any moment, although no counter is shared by two streams. Each
//! shard counts for itself and knows a limit: up to it, the sum over all shards cannot pass the
//! known peak. Only a shard that reaches its limit locks all shards and adds up their counters. A
//! hit counts the bytes that the caller received and subtracts them from the remaining room. The
//! other counters are brought up to date when somebody reads them.

mod counters;
mod global;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use counters::{Counters, Quantity};
pub(crate) use global::{Count, Global, RefusedReleases};

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// The most since the start or the last [reset](crate::CachingAllocator::reset_peak_stats).
    pub peak: i64,
    /// The sum of all increases since the start or the last
    /// [reset](crate::CachingAllocator::reset_accumulated_stats).
    pub allocated: i64,
    /// The sum of all decreases since then.
    pub freed: i64,
}

/// One quantity, over both pools and for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Both pools.
    pub all: Stat,
    /// Requests up to 1 MiB, or under [`Policy::Default`](crate::Policy::Default) 512 KiB.
    pub small_pool: Stat,
    /// All others.
    pub large_pool: Stat,
}

/// What [`memory_stats`](crate::CachingAllocator::memory_stats) returns. Bytes or counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Blocks in callers' hands.
    pub allocation: PoolStats,
    /// Segments held of the backend.
    pub segment: PoolStats,
    /// Blocks in callers' hands, or freed while another stream still uses them.
    pub active: PoolStats,
    /// Free blocks that are parts of a segment, so that they cannot be given back.
    pub inactive_split: PoolStats,
    /// Bytes of the blocks counted by `allocation`.
    pub allocated_bytes: PoolStats,
    /// Bytes of the segments counted by `segment`.
    pub reserved_bytes: PoolStats,
    /// Bytes of the blocks counted by `active`.
    pub active_bytes: PoolStats,
    /// Bytes of the blocks counted by `inactive_split`.
    pub inactive_split_bytes: PoolStats,
    /// Bytes that callers asked for, of the blocks counted by `active`.
    pub requested_bytes: PoolStats,
    /// Blocks in callers' hands of at least `max_split_size`.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: Stat,
    /// The option, in bytes; −1 if there is no such limit.
    pub max_split_size: i64,
    /// Requests that the backend refused until cached memory was given back to it.
    pub num_alloc_retries: i64,
    /// Requests that failed for want of memory.
    pub num_ooms: i64,
    /// Times that all pending events were waited for.
    pub num_sync_all_streams: i64,
    /// Allocations made by the backend.
    pub num_device_alloc: i64,
    /// Allocations given back to the backend.
    pub num_device_free: i64,
    /// Pages that were mapped at one more address because what was free lay elsewhere. Not one of
    /// PyTorch's keys.
    pub num_remaps: i64,
    /// Time spent in the backend's calls that create, map and unmap pages. Not one of PyTorch's
    /// keys.
    pub mapping_time: Duration,
    /// Segments, mappings, pages and ranges of addresses that the backend refused to take back and
    /// has not taken back since. They are tried again when memory is short and when the cache is
    /// emptied; until then what is still mapped serves requests, and all of it counts as reserved.
    /// Not one of PyTorch's keys.
    pub refused_releases: i64,
    /// Their bytes; of memory that is mapped more than once, at each address.
    pub refused_bytes: i64,
    /// How often the backend refused to take something back.
    pub num_refused: i64,
}

impl MemoryStats {
    /// The same under the keys of PyTorch's `torch.cuda.memory_stats`, such as
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
