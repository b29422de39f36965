//! Statistics of page-locked memory, under PyTorch's names.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Stat;
use crate::stats::Count;

/// Durations of a kind of call, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStat {
    /// Sum over all calls.
    pub total: u64,
    /// Longest call.
    pub max: u64,
    /// Shortest call.
    pub min: u64,
    /// Number of calls.
    pub count: u64,
}

impl DurationStat {
    /// Returns the mean.
    #[must_use]
    pub fn avg(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }

    fn add(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.min = if self.count == 0 { micros } else { self.min.min(micros) };
        self.max = self.max.max(micros);
        self.total = self.total.saturating_add(micros);
        self.count += 1;
    }
}

/// Statistics of a [`HostCache`](crate::HostCache) (`torch.cuda.host_memory_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMemoryStats {
    /// Number of allocations held from the backend, free ones included.
    pub allocations: Stat,
    /// Size of these allocations, in bytes.
    pub allocated_bytes: Stat,
    /// Number of blocks that are allocated or still used by a stream.
    pub active_requests: Stat,
    /// Size of these blocks in bytes, each rounded up to 512.
    pub active_bytes: Stat,
    /// Requested size of these blocks, in bytes. Not counted by PyTorch.
    pub requested_bytes: Stat,
    /// Number of allocations by the backend since the start or the last
    /// [reset](crate::HostCache::reset_accumulated_stats).
    pub num_host_alloc: u64,
    /// Number of allocations released to the backend since the start or the same reset.
    pub num_host_free: u64,
    /// Durations of the backend's allocations.
    pub host_alloc_time: DurationStat,
    /// Durations of the releases.
    pub host_free_time: DurationStat,
    /// Number of allocations that the backend refused to take back and has not taken since. They
    /// serve blocks as before and are retried like any idle allocation. Not counted by PyTorch.
    pub refused_releases: u64,
    /// Size of the refused allocations, in bytes.
    pub refused_bytes: u64,
    /// Number of times that the backend refused to take an allocation back.
    pub num_refused: u64,
}

impl HostMemoryStats {
    /// Returns the statistics under the keys of PyTorch's `torch.cuda.host_memory_stats`, such as
    /// `allocated_bytes.peak` and `host_alloc_time.avg`.
    #[must_use]
    pub fn as_map(&self) -> BTreeMap<String, i64> {
        let mut map = BTreeMap::new();
        for (name, stat) in [
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("active_requests", self.active_requests),
            ("active_bytes", self.active_bytes),
        ] {
            map.insert(format!("{name}.current"), stat.current);
            map.insert(format!("{name}.peak"), stat.peak);
            map.insert(format!("{name}.allocated"), stat.allocated);
            map.insert(format!("{name}.freed"), stat.freed);
        }
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, time) in
            [("host_alloc_time", self.host_alloc_time), ("host_free_time", self.host_free_time)]
        {
            map.insert(format!("{name}.total"), signed(time.total));
            map.insert(format!("{name}.max"), signed(time.max));
            map.insert(format!("{name}.min"), signed(time.min));
            map.insert(format!("{name}.count"), signed(time.count));
            map.insert(format!("{name}.avg"), signed(time.avg()));
        }
        map.insert("num_host_alloc".into(), signed(self.num_host_alloc));
        map.insert("num_host_free".into(), signed(self.num_host_free));
        map
    }
}

/// The counters behind the statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCounters {
    allocations: Count,
    allocated_bytes: Count,
    active_requests: Count,
    active_bytes: Count,
    requested_bytes: Count,
    alloc_time: DurationStat,
    free_time: DurationStat,
    refused: u64,
    refused_bytes: u64,
    num_refused: u64,
}

impl HostCounters {
    pub(super) fn allocated(&mut self, bytes: usize, time: Duration) {
        self.allocations.increase(1);
        self.allocated_bytes.increase(bytes as i64);
        self.alloc_time.add(time);
    }

    pub(super) fn refused(&mut self, bytes: usize, before: bool) {
        self.num_refused += 1;
        if !before {
            self.refused += 1;
            self.refused_bytes += bytes as u64;
        }
    }

    pub(super) fn released(&mut self, bytes: usize, refused: bool, time: Duration) {
        if refused {
            self.refused -= 1;
            self.refused_bytes -= bytes as u64;
        }
        self.allocations.decrease(1);
        self.allocated_bytes.decrease(bytes as i64);
        self.free_time.add(time);
    }

    pub(super) fn block_allocated(&mut self, size: usize, requested: usize) {
        self.active_requests.increase(1);
        self.active_bytes.increase(size as i64);
        self.requested_bytes.increase(requested as i64);
    }

    pub(super) fn block_freed(&mut self, size: usize, requested: usize) {
        self.active_requests.decrease(1);
        self.active_bytes.decrease(size as i64);
        self.requested_bytes.decrease(requested as i64);
    }

    /// Returns the requested size of the blocks that are not free, in bytes.
    pub(super) fn requested(&self) -> usize {
        self.requested_bytes.current as usize
    }

    fn counts(&mut self) -> [&mut Count; 5] {
        [
            &mut self.allocations,
            &mut self.allocated_bytes,
            &mut self.active_requests,
            &mut self.active_bytes,
            &mut self.requested_bytes,
        ]
    }

    pub(super) fn reset_peak(&mut self) {
        self.counts().into_iter().for_each(Count::reset_peak);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.counts().into_iter().for_each(Count::reset_accumulated);
        self.alloc_time = DurationStat::default();
        self.free_time = DurationStat::default();
        self.num_refused = 0;
    }

    pub(super) fn stats(&self) -> HostMemoryStats {
        HostMemoryStats {
            allocations: self.allocations.stat(),
            allocated_bytes: self.allocated_bytes.stat(),
            active_requests: self.active_requests.stat(),
            active_bytes: self.active_bytes.stat(),
            requested_bytes: self.requested_bytes.stat(),
            num_host_alloc: self.alloc_time.count,
            num_host_free: self.free_time.count,
            host_alloc_time: self.alloc_time,
            host_free_time: self.free_time,
            refused_releases: self.refused,
            refused_bytes: self.refused_bytes,
            num_refused: self.num_refused,
        }
    }
}
