//! Counts of latencies, in memory of a constant size.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two of nanoseconds. A bucket is 6 % wide.
const PARTS: u64 = 16;

#[derive(Debug)]
pub(super) struct Latencies {
    buckets: Vec<AtomicU64>,
    largest: AtomicU64,
}

/// Returns the bucket of a latency.
fn bucket(nanoseconds: u64) -> usize {
    let n = nanoseconds.max(PARTS);
    let power = n.ilog2() - PARTS.ilog2();
    (u64::from(power) * PARTS + (n >> power) - PARTS) as usize
}

/// Returns the smallest latency above a bucket.
fn end(bucket: usize) -> u64 {
    let (power, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    (PARTS + part + 1) << power
}

impl Latencies {
    pub(super) fn new() -> Self {
        let buckets = (0..=bucket(u64::MAX)).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, largest: AtomicU64::new(0) }
    }

    pub(super) fn record(&self, latency: Duration) {
        let nanoseconds = latency.as_nanos().try_into().unwrap_or(u64::MAX);
        self.buckets[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.largest.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns an upper bound of a quantile, at most 6 % above it.
    fn quantile(&self, quantile: f64) -> Duration {
        let (mut seen, wanted) = (0, (quantile * self.count() as f64).ceil() as u64);
        let reached = self.buckets.iter().position(|count| {
            seen += count.load(Ordering::Relaxed);
            seen >= wanted
        });
        let largest = self.largest.load(Ordering::Relaxed);
        Duration::from_nanos(reached.map_or(largest, |bucket| end(bucket).min(largest)))
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, high, largest] = [0.5, 0.999, 1.0].map(|q| self.quantile(q));
        let count = self.count();
        write!(f, "{count} ops: median {median:.1?}, 99.9 % {high:.1?}, largest {largest:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Latencies;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let latencies = Latencies::new();
        (1..=100_000).for_each(|n| latencies.record(Duration::from_nanos(n)));
        for (quantile, exact) in [(0.5, 50_000), (0.999, 99_900), (1.0, 100_000)] {
            let found = latencies.quantile(quantile).as_nanos();
            assert!((exact..=exact * 17 / 16).contains(&found), "{quantile}: {found}");
        }
    }
}
