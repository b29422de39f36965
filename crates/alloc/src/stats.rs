//! Statistics, under PyTorch's names.

use std::collections::BTreeMap;

use crate::PoolKind;

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
    /// Requests up to 1 MiB.
    pub small_pool: Stat,
    /// All others.
    pub large_pool: Stat,
}

/// What [`memory_stats`](crate::CachingAllocator::memory_stats) answers. Bytes or counts.
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

/// Counts one quantity. `freed` is not kept but follows from the others, so that a decrease is
/// one subtraction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) current: i64,
    peak: i64,
    allocated: i64,
    /// `current` when `allocated` was last reset.
    base: i64,
}

impl Count {
    #[inline]
    pub(crate) fn increase(&mut self, by: i64) {
        self.current += by;
        self.allocated += by;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn decrease(&mut self, by: i64) {
        self.current -= by;
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.allocated = 0;
        self.base = self.current;
    }

    pub(crate) fn stat(&self) -> Stat {
        Stat {
            current: self.current,
            peak: self.peak,
            allocated: self.allocated,
            freed: self.allocated + self.base - self.current,
        }
    }
}

/// Counts one quantity in both pools. The sum of the pools is not kept but for its peak.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolCount {
    pools: [Count; 2],
    peak: i64,
}

impl PoolCount {
    #[inline]
    pub(crate) fn increase(&mut self, kind: PoolKind, by: i64) {
        self.pools[kind as usize].increase(by);
        self.peak = self.peak.max(self.current());
    }

    #[inline]
    pub(crate) fn decrease(&mut self, kind: PoolKind, by: i64) {
        self.pools[kind as usize].decrease(by);
    }

    /// An increase or a decrease, whichever the sign says.
    #[inline]
    pub(crate) fn change(&mut self, kind: PoolKind, by: i64) {
        if by > 0 {
            self.increase(kind, by);
        } else {
            self.decrease(kind, -by);
        }
    }

    #[inline]
    pub(crate) fn current(&self) -> i64 {
        self.pools[0].current + self.pools[1].current
    }

    fn stats(&self) -> PoolStats {
        let [small_pool, large_pool] = self.pools.map(|pool| pool.stat());
        let all = Stat {
            current: small_pool.current + large_pool.current,
            peak: self.peak,
            allocated: small_pool.allocated + large_pool.allocated,
            freed: small_pool.freed + large_pool.freed,
        };
        PoolStats { all, small_pool, large_pool }
    }
}

/// Everything that is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocation: PoolCount,
    pub(crate) segment: PoolCount,
    pub(crate) active: PoolCount,
    pub(crate) inactive_split: PoolCount,
    pub(crate) allocated_bytes: PoolCount,
    pub(crate) reserved_bytes: PoolCount,
    pub(crate) active_bytes: PoolCount,
    pub(crate) inactive_split_bytes: PoolCount,
    pub(crate) requested_bytes: PoolCount,
    pub(crate) oversize_allocations: Count,
    pub(crate) oversize_segments: Count,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    pub(crate) num_sync_all_streams: i64,
    pub(crate) num_device_alloc: i64,
    pub(crate) num_device_free: i64,
}

impl Counters {
    fn pool_counts(&mut self) -> [&mut PoolCount; 9] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }

    pub(crate) fn reset_peak(&mut self) {
        for count in self.pool_counts() {
            count.pools.iter_mut().for_each(Count::reset_peak);
            count.peak = count.current();
        }
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    pub(crate) fn reset_accumulated(&mut self) {
        for count in self.pool_counts() {
            count.pools.iter_mut().for_each(Count::reset_accumulated);
        }
        self.oversize_allocations.reset_accumulated();
        self.oversize_segments.reset_accumulated();
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    pub(crate) fn stats(&self, max_split_size: Option<usize>) -> MemoryStats {
        MemoryStats {
            allocation: self.allocation.stats(),
            segment: self.segment.stats(),
            active: self.active.stats(),
            inactive_split: self.inactive_split.stats(),
            allocated_bytes: self.allocated_bytes.stats(),
            reserved_bytes: self.reserved_bytes.stats(),
            active_bytes: self.active_bytes.stats(),
            inactive_split_bytes: self.inactive_split_bytes.stats(),
            requested_bytes: self.requested_bytes.stats(),
            oversize_allocations: self.oversize_allocations.stat(),
            oversize_segments: self.oversize_segments.stat(),
            max_split_size: max_split_size.map_or(-1, |size| size as i64),
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            num_sync_all_streams: self.num_sync_all_streams,
            num_device_alloc: self.num_device_alloc,
            num_device_free: self.num_device_free,
        }
    }
}
