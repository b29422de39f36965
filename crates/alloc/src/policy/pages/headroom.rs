//! The memory that the policy reserves beyond the peak of the requested bytes, so that it moves free
//! pages less often.
//!
//! While the reserved memory exceeds the peak of the requested bytes by at most 1/64 or 8 MiB, whichever is more, new
//! pages are created even if other pages are free. The peak includes requests of waiting threads. If more
//! than 1/32 beyond the peak had to be reserved, because free memory was so scattered that even aliases could not use
//! it, the 1/64 counts from the memory that was reserved then.
//!
//! If requests never recur, or streams keep taking pages from each other, a program would remap pages forever.
//! Therefore the headroom grows by a quarter when each page was remapped eight times on average since the last growth.
//! One remapping per 256 requests is free and does not count. The pages that return for one request without a mapping
//! call count together as one remapping. The growth is reverted only when the cache is emptied. The option
//! `headroom_percent` sets the headroom instead.
//!
//! All constants are here. `docs/notes/default-policy.md` has their measured effects.

use crate::Backend;
use crate::core::Core;
use crate::stats::Quantity;

/// Divisor of the headroom: new pages are created, even if other pages are free, while the reserved memory exceeds the
/// peak of the requested bytes by at most this share.
const SHARE_DIVISOR: usize = 64;
/// Minimum headroom in bytes, so that the streams of a small program do not keep taking one page
/// from each other.
const MIN_BYTES: usize = 8 << 20;

/// Divisor that detects fragmentation. If even aliases could not use the free memory, and pages had to be created until
/// the reserved memory exceeded the peak by more than this share, the headroom counts from that amount. That memory is
/// lost anyway, and reserving slightly more avoids most mapping calls.
const FRAGMENTED_DIVISOR: usize = 32;

/// Number of requests, hits included, that allow one remapping without growth of the headroom. A
/// mapping takes about 41 µs, which is 160 ns per request.
const REQUESTS_PER_REMAP: u64 = 256;
/// Number of remappings per page, on average, before the headroom grows by a quarter. Does not count remappings that
/// [`REQUESTS_PER_REMAP`] allows. After this number, mappings have taken a tenth of a second per GiB, and the program
/// has not reached a state that repeats. Recorded programs, which repeat themselves, remap each page less than once.
const REMAPS_PER_STEP: usize = 8;
/// Minimum and maximum number of remappings before the headroom grows, for any number of pages.
/// The maximum takes about three seconds.
const REMAPS_PER_STEP_BOUNDS: [usize; 2] = [1 << 10, 1 << 16];
/// Maximum number of times that the headroom grows. By then, the headroom is sixteen times the
/// needed memory.
const MAX_STEPS: i32 = 31;

/// Number of requests for which there is no headroom after the backend refused a page because memory is exhausted. A
/// refusal takes twice as long as mapping a page.
const REFUSAL_PAUSE: u64 = 1024;

/// The demand for memory so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Peak of the requested bytes.
    pub(super) peak: usize,
    /// Number of served requests.
    pub(super) requests: u64,
}

/// State of the headroom. Reset when the cache is emptied.
#[derive(Debug, Default)]
pub(super) struct Headroom {
    /// Peak of the requested bytes, not affected by resets of the statistics.
    peak: usize,
    /// Reserved bytes when pages were last created because the free pages did not suffice.
    forced: usize,
    /// Number of times that the headroom grew by a quarter.
    steps: i32,
    /// Number of remapped pages since the headroom last grew, minus one per [`REQUESTS_PER_REMAP`] requests.
    excess: usize,
    /// Number of requests that `excess` already takes into account.
    requests: u64,
    /// Number of requests when a page was last refused.
    refused: Option<u64>,
}

impl Demand {
    /// Returns the demand, including `bytes` more requested bytes.
    pub(super) fn of<B: Backend>(core: &Core<B>, bytes: usize) -> Self {
        core.with_all(|global, shards| {
            let at = Quantity::RequestedBytes as usize;
            let now: i64 = shards.iter().map(|shard| shard.now()[2][at]).sum();
            let peak = global.peak(Quantity::RequestedBytes).max(now + bytes as i64) as usize;
            Self { peak, requests: global.requests(shards) }
        })
    }
}

impl Headroom {
    /// Returns the number of bytes of new pages that may be created although other pages are free,
    /// by the configured percentage or by this module's rule.
    pub(super) fn bytes(&self, demand: Demand, reserved: usize, percent: Option<f64>) -> usize {
        if self.refused.is_some_and(|at| demand.requests < at + REFUSAL_PAUSE) {
            return 0;
        }
        let peak = demand.peak.max(self.peak);
        let forced = self.forced.min(reserved);
        let most = match percent {
            None => {
                let needed = if forced > peak + peak / FRAGMENTED_DIVISOR { forced } else { peak };
                let least = (needed / SHARE_DIVISOR).max(MIN_BYTES);
                needed + (least as f64 * 1.25f64.powi(self.steps)) as usize
            }
            Some(percent) => {
                let part = percent.min(100.0) / 100.0;
                let share = |bytes: usize| (bytes as f64 * part) as usize;
                let wanted = peak + share(peak).max(MIN_BYTES);
                let beyond = forced + share(forced).min(forced / SHARE_DIVISOR);
                if forced > wanted { beyond } else { wanted }
            }
        };
        most.saturating_sub(reserved)
    }

    /// Records that new pages were created because the free pages did not suffice. `reserved`: the
    /// reserved bytes after that.
    pub(super) fn record_forced(&mut self, reserved: usize) {
        self.forced = reserved;
    }

    /// Records that a page was refused because memory is exhausted.
    pub(super) fn record_refusal(&mut self, demand: Demand) {
        self.refused = Some(demand.requests);
    }

    /// Records that free pages were mapped at additional addresses.
    pub(super) fn record_remaps(&mut self, pages: usize) {
        self.excess += pages;
    }

    /// Records that a request was served. `pages`: the number of existing pages.
    pub(super) fn record_served(&mut self, demand: Demand, pages: usize) {
        self.peak = self.peak.max(demand.peak);
        let paid = demand.requests.saturating_sub(self.requests) / REQUESTS_PER_REMAP;
        self.requests += paid * REQUESTS_PER_REMAP;
        self.excess = self.excess.saturating_sub(paid as usize);
        let [least, most] = REMAPS_PER_STEP_BOUNDS;
        if self.excess > (REMAPS_PER_STEP * pages).clamp(least, most) {
            self.excess = 0;
            self.steps = (self.steps + 1).min(MAX_STEPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    fn demand(peak: usize, requests: u64) -> Demand {
        Demand { peak, requests }
    }

    #[test]
    fn headroom_is_a_share_of_the_peak_and_at_least_two_pages() {
        let mut headroom = Headroom::default();
        assert_eq!(headroom.bytes(demand(0, 0), 0, None), MIN_BYTES);
        assert_eq!(headroom.bytes(demand(GIB, 0), GIB, None), GIB / 64);
        assert_eq!(headroom.bytes(demand(GIB, 0), 2 * GIB, None), 0);
        // Resetting the statistics' peak does not affect the headroom.
        headroom.record_served(demand(GIB, 1), 256);
        assert_eq!(headroom.bytes(demand(0, 1), GIB, None), GIB / 64);
    }

    #[test]
    fn the_cost_of_fragmentation_counts_toward_headroom() {
        let mut headroom = Headroom::default();
        headroom.record_forced(GIB + GIB / 32);
        assert_eq!(headroom.bytes(demand(GIB, 0), GIB + GIB / 32, None), 0);
        let forced = GIB + GIB / 16;
        headroom.record_forced(forced);
        assert_eq!(headroom.bytes(demand(GIB, 0), forced, None), forced / 64);
        // The forced memory has been released.
        assert_eq!(headroom.bytes(demand(GIB, 0), GIB, None), GIB / 64);
    }

    #[test]
    fn headroom_is_the_percentage_that_the_caller_sets() {
        let mut headroom = Headroom::default();
        for (percent, bytes) in [(0.0, MIN_BYTES), (5.0, GIB / 20), (100.0, GIB)] {
            assert_eq!(headroom.bytes(demand(GIB, 0), GIB, Some(percent)), bytes);
        }
        // A headroom set in percent does not grow, and fragmentation counts only beyond it.
        headroom.steps = 3;
        headroom.record_forced(GIB + GIB / 25);
        assert_eq!(headroom.bytes(demand(GIB, 0), GIB, Some(5.0)), GIB / 20);
        let forced = GIB + GIB / 10;
        headroom.record_forced(forced);
        assert_eq!(headroom.bytes(demand(GIB, 0), forced, Some(5.0)), forced / 64);
        assert_eq!(headroom.bytes(demand(GIB, 0), forced, Some(0.0)), 0);
    }

    /// Serves `requests` requests and remaps `thousandths` / 1000 pages for each, with `pages`
    /// existing pages. Returns the headroom.
    fn after(requests: u64, thousandths: u64, pages: usize) -> usize {
        let mut headroom = Headroom::default();
        for request in 1..=requests {
            let [before, now] = [request - 1, request].map(|at| at * thousandths / 1000);
            headroom.record_remaps((now - before) as usize);
            headroom.record_served(demand(GIB, request), pages);
        }
        headroom.bytes(demand(GIB, requests), GIB, None)
    }

    #[test]
    fn headroom_grows_while_remappings_continue() {
        // Neither fewer remappings than one per 256 requests nor a burst of at most eight remappings per
        // page makes the headroom grow.
        let [first, second, third] = [64, 80, 100].map(|it| GIB / 64 / 64 * it);
        assert_eq!(after(1_000_000, 1000 / REQUESTS_PER_REMAP, 1000), first);
        assert_eq!(after(8_000, 1000, 1000), first);
        assert_eq!(after(8_100, 1000, 1000), second);
        assert_eq!(after(16_200, 1000, 1000), third);
        let most = after(1_000_000, 1000, 1000);
        assert!((15 * GIB..17 * GIB).contains(&most), "{most}");
        // With few or many pages, bounds on the number of remappings apply instead.
        assert_eq!(after(1_000, 1000, 1), first);
        assert_eq!(after(1_100, 1000, 1), second);
        assert_eq!(after(65_000, 1000, 100_000), first);
        assert_eq!(after(66_000, 1000, 100_000), second);
    }

    #[test]
    fn headroom_pauses_after_a_refusal() {
        let mut headroom = Headroom::default();
        headroom.record_refusal(demand(GIB, 5000));
        assert_eq!(headroom.bytes(demand(GIB, 5000), GIB, None), 0);
        assert_eq!(headroom.bytes(demand(GIB, 5000 + REFUSAL_PAUSE - 1), GIB, None), 0);
        assert_eq!(headroom.bytes(demand(GIB, 5000 + REFUSAL_PAUSE), GIB, None), GIB / 64);
    }
}
