//! The waste of page-locked memory, in programs with sizes from 512 bytes to 1 GiB on a fake backend.

use warpline_alloc::{HostCache, HostConfig, PinnedBlock};

use crate::common::{Fake, MIB};

const KIB: usize = 1 << 10;
const GIB: usize = 1 << 30;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a size from `least` to `most`, evenly distributed on a logarithmic scale.
    fn size(&mut self, least: usize, most: usize) -> usize {
        let part = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (least as f64 * (most as f64 / least as f64).powf(part)) as usize
    }
}

/// The live blocks of a program, and the peaks of its sums in bytes.
struct Program {
    fake: Fake,
    cache: HostCache<Fake>,
    random: Random,
    live: Vec<PinnedBlock<Fake>>,
    requested: usize,
    peak_requested: usize,
    peak_reserved: usize,
    /// Bytes that a cache would occupy if it rounded sizes to powers of two.
    rounded: usize,
    peak_rounded: usize,
    total: usize,
}

impl Program {
    fn new(seed: u64) -> Self {
        let fake = Fake::new(1 << 50);
        let cache = HostCache::new(fake.clone(), HostConfig::default());
        Self {
            fake,
            cache,
            random: Random(seed),
            live: Vec::new(),
            requested: 0,
            peak_requested: 0,
            peak_reserved: 0,
            rounded: 0,
            peak_rounded: 0,
            total: 0,
        }
    }

    fn alloc(&mut self, least: usize, most: usize) {
        let bytes = self.random.size(least, most);
        self.live.push(self.cache.alloc(bytes).unwrap());
        self.requested += bytes;
        self.total += bytes;
        self.peak_requested = self.peak_requested.max(self.requested);
        let reserved = self.cache.stats().allocated_bytes.current;
        self.peak_reserved = self.peak_reserved.max(reserved as usize);
        self.rounded += bytes.next_power_of_two();
        self.peak_rounded = self.peak_rounded.max(self.rounded);
    }

    fn free(&mut self, at: usize) {
        let block = self.live.swap_remove(at);
        self.count_free(&block);
    }

    fn free_first(&mut self) {
        let block = self.live.remove(0);
        self.count_free(&block);
    }

    fn count_free(&mut self, block: &PinnedBlock<Fake>) {
        self.requested -= block.requested();
        self.rounded -= block.requested().next_power_of_two();
    }

    fn free_any(&mut self) {
        let at = self.random.below(self.live.len());
        self.free(at);
    }

    fn check(self, what: &str) {
        self.check_at(what, 1.10);
    }

    fn check_at(self, what: &str, most: f64) {
        let ratio = self.peak_reserved as f64 / self.peak_requested as f64;
        let rounded = self.peak_rounded as f64 / self.peak_requested as f64;
        let pinned: usize = self.fake.world().asked.iter().sum();
        println!(
            "{what}: {ratio:.4}, by powers of two {rounded:.3}; peak {} MiB; {:.0} % of bytes from \
             the cache",
            self.peak_requested / MIB,
            100.0 * (1.0 - pinned as f64 / self.total as f64),
        );
        assert!(rounded > 1.1, "{what} would not show waste");
        assert!(ratio <= most, "{what}: reserved / requested is {ratio}");
    }
}

#[test]
fn a_growing_live_set_wastes_little() {
    for seed in 0..5 {
        let mut p = Program::new(seed);
        for _ in 0..600 {
            p.alloc(4 * KIB, GIB);
            if p.random.below(5) == 0 {
                p.free_any();
            }
        }
        p.check("grow");
    }
}

#[test]
fn a_churning_live_set_wastes_little() {
    for live in [4, 16, 64, 400] {
        for seed in 0..5 {
            let mut p = Program::new(seed);
            for _ in 0..3000 {
                if p.live.len() == live {
                    p.free_any();
                }
                p.alloc(4 * KIB, GIB);
            }
            p.check(&format!("churn of {live}"));
        }
    }
}

#[test]
fn a_queue_wastes_little() {
    for seed in 0..5 {
        let mut p = Program::new(seed);
        for _ in 0..2000 {
            if p.live.len() == 24 {
                p.free_first();
            }
            p.alloc(4 * KIB, GIB);
        }
        p.check("queue");
    }
}

#[test]
fn phases_of_other_sizes_waste_little() {
    const PHASES: [(usize, usize, usize); 6] = [
        (4 * KIB, GIB, 40),
        (4 * KIB, MIB, 4000),
        (64 * MIB, GIB, 30),
        (MIB, 64 * MIB, 500),
        (300 * MIB, 700 * MIB, 25),
        (4 * KIB, GIB, 40),
    ];
    for seed in 0..5 {
        let mut p = Program::new(seed);
        for (least, most, live) in PHASES {
            // Blocks of the previous phase are freed while this phase allocates.
            let mut old = p.live.len();
            for _ in 0..live * 4 {
                if old > 0 {
                    old -= 1;
                    p.free(old);
                } else if p.live.len() >= live {
                    p.free_any();
                }
                p.alloc(least, most);
            }
        }
        p.check("phases");
    }
}

#[test]
fn bursts_waste_little() {
    for seed in 0..5 {
        let mut p = Program::new(seed);
        for _ in 0..40 {
            for _ in 0..1 + p.random.below(60) {
                p.alloc(4 * KIB, GIB);
            }
            let keep = p.random.below(4);
            while p.live.len() > keep {
                p.free_any();
            }
        }
        p.check("bursts");
    }
}

/// A freed block counts as in use until the stream that uses it has completed its work.
#[test]
fn lagging_streams_waste_little() {
    for seed in 0..5 {
        let mut p = Program::new(seed);
        let mut peak_active = 0;
        for step in 0..2000 {
            if p.live.len() == 32 {
                let at = p.random.below(32);
                let stream = p.random.below(4) as u64;
                p.fake.launch(stream);
                p.live[at].record_use(&stream);
                p.free(at);
            }
            if step % 5 == 0 {
                let stream = p.random.below(4) as u64;
                p.fake.complete(stream);
            }
            p.alloc(4 * KIB, GIB);
            peak_active = p.cache.stats().requested_bytes.peak as usize;
        }
        p.peak_requested = peak_active;
        let ratio = p.peak_reserved as f64 / peak_active as f64;
        println!("lag: {ratio:.4}");
        assert!(ratio <= 1.10, "reserved / in use is {ratio}");
    }
}

/// The batch sizes of a loader vary. Page-locking each batch anew would cost more than its copy.
#[test]
fn batches_of_varying_size_come_from_the_cache() {
    for seed in 0..5 {
        let mut p = Program::new(seed);
        for _ in 0..2000 {
            if p.live.len() == 6 {
                p.free_first();
            }
            p.alloc(500 * KIB, 8 * MIB);
        }
        let pinned: usize = p.fake.world().asked.iter().sum();
        println!("batches: {pinned} of {}", p.total);
        assert!(pinned < p.total / 20, "{pinned} of {} bytes were pinned anew", p.total);
    }
}

/// Small blocks share segments, whose free parts cannot be released alone.
#[test]
fn large_blocks_among_small_ones_waste_little() {
    for (least, most, live) in [
        (4 * KIB, MIB, 2000),
        (4 * KIB, 16 * MIB, 200),
        (512, 64 * KIB, 20_000),
        (MIB, 64 * MIB, 100),
    ] {
        for seed in 0..3 {
            let mut p = Program::new(seed);
            for _ in 0..live * 5 {
                if p.live.len() == live {
                    p.free_any();
                }
                p.alloc(least, most);
            }
            p.check_at(&format!("{least} to {most}"), 1.15);
        }
    }
}
