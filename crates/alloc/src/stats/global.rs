//! The part of the statistics that all shards share.

use std::time::Duration;

use super::counters::{CounterValues, QUANTITIES};
use super::{Counters, MemoryStats, PoolStats, Quantity, Stat};
use crate::PoolKind;

/// Counter of one quantity. `freed` is not stored but computed from the other values, so that a
/// decrease costs one subtraction.
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
        stat(self.current, self.peak, self.allocated, self.base)
    }
}

fn stat(current: i64, peak: i64, allocated: i64, base: i64) -> Stat {
    Stat { current, peak, allocated, freed: allocated + base - current }
}

/// Counter of one quantity in both pools. For the sum of both, only the peak is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolCount {
    pools: [Count; 2],
    peak: i64,
}

impl PoolCount {
    pub(crate) fn increase(&mut self, kind: PoolKind, by: i64) {
        self.pools[kind as usize].increase(by);
        self.peak = self.peak.max(self.current());
    }

    pub(crate) fn decrease(&mut self, kind: PoolKind, by: i64) {
        self.pools[kind as usize].decrease(by);
    }

    /// Moves an amount to the other pool.
    pub(crate) fn transfer(&mut self, from: PoolKind, to: PoolKind, by: i64) {
        if from != to {
            self.decrease(from, by);
            self.increase(to, by);
        }
    }

    pub(crate) fn current(&self) -> i64 {
        self.pools[0].current + self.pools[1].current
    }

    fn reset_peak(&mut self) {
        self.pools.iter_mut().for_each(Count::reset_peak);
        self.peak = self.current();
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

/// Releases that the backend refused and has not accepted since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusedReleases {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl RefusedReleases {
    pub(crate) fn refuse(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub(crate) fn accept(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }
}

/// Counters of backend calls, and the peaks of the shards' quantities.
#[derive(Clone, Debug, Default)]
pub(crate) struct Global {
    pub(crate) segment: PoolCount,
    pub(crate) reserved_bytes: PoolCount,
    pub(crate) oversize_segments: Count,
    pub(crate) num_alloc_retries: i64,
    pub(crate) num_ooms: i64,
    pub(crate) num_sync_all_streams: i64,
    pub(crate) num_device_alloc: i64,
    pub(crate) num_device_free: i64,
    pub(crate) num_remaps: i64,
    pub(crate) mapping_time: Duration,
    pub(crate) num_refused: i64,
    pub(crate) refused_segments: RefusedReleases,
    /// Refused mappings, pages and ranges, by policy.
    pub(crate) refused_pages: [RefusedReleases; 2],
    /// Peaks by pool, and of both pools together.
    peaks: [CounterValues; 3],
    /// Counters of retired shards.
    pub(crate) retired: Counters,
    /// Number of requests before the last reset of the sums.
    requests_before: i64,
}

impl Global {
    /// Raises the peaks to the current sums of the shards. All shards must be locked. Distributes
    /// the distance between peak and sum among the shards' limits.
    pub(crate) fn raise_peaks(&mut self, shards: &mut [&mut Counters]) {
        let count = shards.len().max(1) as i64;
        let now: Vec<[CounterValues; 3]> = shards.iter().map(|shard| shard.now()).collect();
        for (shard, now) in shards.iter_mut().zip(&now) {
            for (seen, now) in shard.seen.iter_mut().flatten().zip(now.iter().flatten()) {
                *seen = (*seen).max(*now);
            }
            shard.over = false;
        }
        for pool in 0..3 {
            for at in 0..QUANTITIES {
                let sum = now.iter().map(|now| now[pool][at]).sum::<i64>();
                // A shard may have exceeded its limit for a moment and have a lower value now.
                let more = shards.iter().zip(&now).map(|(s, now)| s.top[pool][at] - now[pool][at]);
                let more = more.fold(0, i64::max);
                let peak = &mut self.peaks[pool][at];
                *peak = (*peak).max(sum + more);
                let left = *peak - sum;
                let wanted = |shard: &Counters, now: &[CounterValues; 3]| {
                    i128::from(shard.seen[pool][at] - now[pool][at])
                };
                let all: i128 = shards.iter().zip(&now).map(|(s, n)| wanted(s, n)).sum();
                for (shard, now) in shards.iter_mut().zip(&now) {
                    // The share is proportional to the distance to the shard's highest value.
                    let share = match all {
                        0 => left / count,
                        _ => (i128::from(left) * wanted(shard, now) / all) as i64,
                    };
                    shard.limit[pool][at] = now[pool][at] + share;
                }
            }
        }
        for shard in shards {
            shard.top = [[0; QUANTITIES]; 3];
            shard.make_room();
        }
    }

    /// Counts a segment as released.
    pub(crate) fn count_segment_released(&mut self, kind: PoolKind, size: usize, oversize: bool) {
        self.segment.decrease(kind, 1);
        self.reserved_bytes.decrease(kind, size as i64);
        self.oversize_segments.decrease(i64::from(oversize));
        self.num_device_free += 1;
    }

    /// Reverts [`count_segment_released`](Self::count_segment_released) for a segment that the
    /// backend refused.
    pub(crate) fn count_segment_restored(&mut self, kind: PoolKind, size: usize, oversize: bool) {
        self.segment.increase(kind, 1);
        self.reserved_bytes.increase(kind, size as i64);
        self.oversize_segments.increase(i64::from(oversize));
        self.num_device_free -= 1;
    }

    /// Returns the peak of a quantity over both pools.
    pub(crate) fn peak(&self, quantity: Quantity) -> i64 {
        self.peaks[2][quantity as usize]
    }

    pub(crate) fn reset_peak(&mut self, shards: &mut [&mut Counters]) {
        self.segment.reset_peak();
        self.reserved_bytes.reset_peak();
        self.oversize_segments.reset_peak();
        self.peaks = [[0; QUANTITIES]; 3];
        for shard in &mut *shards {
            shard.seen = shard.now();
            shard.top = [[0; QUANTITIES]; 3];
        }
        self.raise_peaks(shards);
    }

    /// Returns the number of served requests, not affected by resets of the sums.
    pub(crate) fn requests(&self, shards: &[&mut Counters]) -> u64 {
        let all = shards.iter().map(|shard| &**shard).chain([&self.retired]);
        let made =
            all.flat_map(|shard| shard.increased).map(|pool| pool[Quantity::Allocation as usize]);
        (self.requests_before + made.sum::<i64>()) as u64
    }

    pub(crate) fn reset_accumulated(&mut self, shards: &mut [&mut Counters]) {
        self.requests_before = self.requests(shards) as i64;
        shards.iter_mut().for_each(|shard| shard.reset_accumulated());
        for count in [&mut self.segment, &mut self.reserved_bytes] {
            count.pools.iter_mut().for_each(Count::reset_accumulated);
        }
        self.oversize_segments.reset_accumulated();
        self.retired.reset_accumulated();
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
        self.num_remaps = 0;
        self.num_refused = 0;
        self.mapping_time = Duration::ZERO;
    }

    /// Returns all statistics, given the sum of the shards' counters.
    pub(crate) fn stats(&self, sum: &Counters, max_split_size: Option<usize>) -> MemoryStats {
        let pool = |quantity: Quantity| {
            let at = quantity as usize;
            let of = |kind: usize| {
                let peak = self.peaks[kind][at];
                stat(sum.current[kind][at], peak, sum.increased[kind][at], sum.base[kind][at])
            };
            let (small_pool, large_pool) = (of(0), of(1));
            let all = Stat {
                current: small_pool.current + large_pool.current,
                peak: self.peaks[2][at],
                allocated: small_pool.allocated + large_pool.allocated,
                freed: small_pool.freed + large_pool.freed,
            };
            PoolStats { all, small_pool, large_pool }
        };
        let refused = self.refused_pages.iter().chain([&self.refused_segments]);
        MemoryStats {
            allocation: pool(Quantity::Allocation),
            segment: self.segment.stats(),
            active: pool(Quantity::Active),
            inactive_split: pool(Quantity::InactiveSplit),
            allocated_bytes: pool(Quantity::AllocatedBytes),
            reserved_bytes: self.reserved_bytes.stats(),
            active_bytes: pool(Quantity::ActiveBytes),
            inactive_split_bytes: pool(Quantity::InactiveSplitBytes),
            requested_bytes: pool(Quantity::RequestedBytes),
            oversize_allocations: pool(Quantity::OversizeAllocations).all,
            oversize_segments: self.oversize_segments.stat(),
            max_split_size: max_split_size.map_or(-1, |size| size as i64),
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            num_sync_all_streams: self.num_sync_all_streams,
            num_device_alloc: self.num_device_alloc,
            num_device_free: self.num_device_free,
            num_remaps: self.num_remaps,
            mapping_time: self.mapping_time,
            refused_releases: refused.clone().map(|it| it.count).sum::<usize>() as i64,
            refused_bytes: refused.map(|it| it.bytes).sum::<usize>() as i64,
            num_refused: self.num_refused,
        }
    }
}
