//! The memory reserved beyond the peak of the requests, which saves mappings.

use std::sync::Mutex;

use warpline_alloc::{Block, CachingAllocator};

use crate::common::{Fake, PAGE, Random, check_state};

/// Random blocks of one to twelve pages on four streams, up to 200 pages in total. The demand moves
/// between the streams, and no pattern recurs.
struct Churn {
    allocator: CachingAllocator<Fake>,
    random: Random,
    live: Vec<(usize, Block<Fake>)>,
}

impl Churn {
    fn new(fake: &Fake) -> Self {
        let allocator = fake.allocator("policy:default");
        Self { allocator, random: Random(1), live: Vec::new() }
    }

    /// Runs requests, and returns the number of remapped pages per request.
    fn run(&mut self, fake: &Fake, requests: usize) -> f64 {
        let before = self.allocator.memory_stats().num_remaps;
        for request in 0..requests {
            let pages = 1 + self.random.below(12);
            while self.live.iter().map(|(pages, _)| pages).sum::<usize>() + pages > 200 {
                drop(self.live.swap_remove(self.random.below(self.live.len())));
            }
            // Half of the requests go to a stream that changes every 50 requests.
            let stream =
                if self.random.below(2) == 0 { request / 50 } else { self.random.below(4) };
            let block = self.allocator.malloc(pages * PAGE, &(stream as u64 % 4)).unwrap();
            self.live.push((pages, block));
            (0..4).for_each(|stream| fake.complete(stream));
        }
        (self.allocator.memory_stats().num_remaps - before) as f64 / requests as f64
    }
}

#[test]
fn streams_that_take_turns_without_end_get_pages_of_their_own() {
    let fake = Fake::with_pages(1 << 40);
    let mut churn = Churn::new(&fake);
    assert!(churn.run(&fake, 1000) > 1.0);
    assert!(churn.allocator.memory_reserved() <= (200 + 4 + 12) * PAGE);
    churn.run(&fake, 30_000);
    assert!(churn.run(&fake, 5000) < 0.25);
    assert!(churn.allocator.memory_reserved() <= 4 * (200 + 12) * PAGE);
    check_state(&churn.allocator);
    churn.live.clear();
    churn.allocator.empty_cache();
    assert!(churn.run(&fake, 1000) > 1.0);
    assert!(churn.allocator.memory_reserved() <= (200 + 4 + 12) * PAGE);
}

#[test]
fn a_full_device_is_not_asked_repeatedly() {
    let fake = Fake::with_pages(202 * PAGE);
    let mut churn = Churn::new(&fake);
    churn.run(&fake, 1000);
    let before = fake.world().refused;
    assert!(churn.run(&fake, 10_000) > 1.0);
    let refused = fake.world().refused - before;
    assert!((1..=50).contains(&refused), "{refused}");
}

/// Resetting the statistics does not affect the policy.
#[test]
fn resetting_sums_does_not_change_the_reserved_memory() {
    let reserved = |resets: bool| {
        let fake = Fake::with_pages(1 << 40);
        let mut churn = Churn::new(&fake);
        for _ in 0..800 {
            if resets {
                churn.allocator.reset_accumulated_stats();
            }
            churn.run(&fake, 1);
            (0..2000).for_each(|_| drop(churn.allocator.malloc(512, &0).unwrap()));
        }
        churn.allocator.memory_reserved()
    };
    let expected = reserved(false);
    assert!(expected <= (200 + 4 + 12) * PAGE, "more memory is reserved than the headroom allows");
    assert_eq!(reserved(true), expected);
}

/// Without this rule, threads that miss by turns would keep taking each other's memory.
#[test]
fn requests_of_waiting_threads_count_as_requested() {
    let reserved = |waits: bool| {
        let fake = Fake::with_pages(1 << 40);
        let allocator = fake.allocator("policy:default");
        drop(allocator.malloc(20 * PAGE, &0).unwrap());
        let second = || drop(allocator.malloc(20 * PAGE, &1).unwrap());
        if waits {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let (reach, reached) = std::sync::mpsc::channel();
            let once = Mutex::new(Some((reach, stopped)));
            allocator.on_cache_miss(move || {
                let first = once.lock().unwrap().take();
                if let Some((reach, stopped)) = first {
                    reach.send(()).unwrap();
                    let _ = stopped.recv();
                }
                false
            });
            std::thread::scope(|scope| {
                let third = scope.spawn(|| allocator.malloc(20 * PAGE, &2).unwrap());
                reached.recv().unwrap();
                second();
                let reserved = allocator.memory_reserved();
                drop(stop);
                drop(third.join().unwrap());
                reserved
            })
        } else {
            second();
            allocator.memory_reserved()
        }
    };
    // If no request waits, stream 1 gets two new pages, which is the headroom, and 18 pages of stream
    // 0. If a request of 20 pages waits, the peak is 40 pages, and stream 1 gets 20 new pages.
    assert_eq!(reserved(false), 22 * PAGE);
    assert_eq!(reserved(true), 40 * PAGE);
}
