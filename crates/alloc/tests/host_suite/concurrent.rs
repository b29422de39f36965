//! Real threads, on their own streams and on shared streams.

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use warpline_alloc::{AllocatorConfig, Block, CachingAllocator, PoolOptions};

use crate::common::{Fake, MIB, Owned, Random, check_state};

const THREADS: u64 = 8;
const POLICIES: [&str; 3] = ["policy:torch", "expandable_segments:True", "policy:default"];
const EACH: [&[&str]; 3] = [&[POLICIES[0]], &[POLICIES[1]], &[POLICIES[2]]];

/// The work of one thread. Blocks pass through `shared`, so that other threads free them.
fn work(
    allocator: &CachingAllocator<Fake>,
    owned: &Owned,
    shared: &Mutex<Vec<Block<Fake>>>,
    number: u64,
    streams: u64,
    options: &[&str],
) {
    let fake = allocator.backend();
    let mut random = Random(number);
    let mut live = Vec::new();
    for _ in 0..2000 {
        let other = random.below(THREADS as usize) as u64;
        match random.below(32) {
            0..=12 => {
                if let Ok(block) = allocator.malloc(random.bytes(), &(number % streams)) {
                    owned.take(fake, &block);
                    live.push(block);
                }
            }
            13..=20 if !live.is_empty() => {
                let block = live.swap_remove(random.below(live.len()));
                owned.free(fake, block);
            }
            21..=23 if !live.is_empty() => {
                shared.lock().unwrap().push(live.swap_remove(random.below(live.len())));
            }
            24..=26 => {
                let block = shared.lock().unwrap().pop();
                block.into_iter().for_each(|block| owned.free(fake, block));
            }
            27 | 28 if !live.is_empty() => {
                let block = &live[random.below(live.len())];
                block.record_stream(&other);
                fake.launch_on(other, block);
            }
            29 => fake.complete(other),
            30 if random.below(50) == 0 => allocator.empty_cache(),
            30 if options.len() > 1 && random.below(50) == 0 => {
                let options = options[random.below(options.len())];
                allocator.set_config(AllocatorConfig::parse(options).unwrap());
            }
            31 if random.below(20) == 0 => {
                let stats = allocator.memory_stats();
                let allocated = stats.allocated_bytes.all;
                assert!(0 <= allocated.current && allocated.current <= allocated.peak);
                assert!(allocated.current <= stats.active_bytes.all.current);
                for segment in allocator.snapshot().segments {
                    let sizes = segment.blocks.iter().map(|block| block.size);
                    assert_eq!(sizes.sum::<usize>(), segment.total_size);
                }
            }
            _ => {}
        }
        while live.len() > 40 {
            owned.free(fake, live.swap_remove(random.below(live.len())));
        }
    }
    live.into_iter().for_each(|block| owned.free(fake, block));
}

/// Fails if `run` takes minutes, which means a deadlock.
fn within_minutes(run: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        let _ = done.send(());
    });
    match finished.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock"),
        _ => thread.join().unwrap(),
    }
}

/// Runs all threads once for each list of options. The threads switch between the options of a
/// list.
fn stress(streams: u64, capacity: usize, lists: &[&'static [&'static str]]) {
    for &options in lists {
        within_minutes(move || {
            let fake = Fake::with_pages(capacity);
            let allocator = fake.allocator(options[0]);
            let (owned, shared) = (Owned::default(), Mutex::default());
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let (allocator, owned, shared) = (&allocator, &owned, &shared);
                    scope.spawn(move || work(allocator, owned, shared, number, streams, options));
                }
            });
            check_state(&allocator);
            drop(shared);
            check_state(&allocator);
            allocator.empty_cache();
            let stats = allocator.memory_stats();
            assert_eq!(stats.active.all.current, 0);
            assert_eq!(stats.allocation.all.allocated, stats.allocation.all.freed);
            assert_eq!((stats.reserved_bytes.all.current, fake.world().used()), (0, 0));
            drop(allocator);
            let world = fake.world();
            assert!(world.ranges.is_empty() && world.mappings.is_empty());
            assert_eq!(world.events_live, 0);
        });
    }
}

#[test]
fn eight_threads_on_their_own_streams() {
    stress(THREADS, 4096 * MIB, &EACH);
}

#[test]
fn eight_threads_on_shared_streams() {
    stress(3, 4096 * MIB, &EACH);
}

#[test]
fn eight_threads_on_a_device_that_is_short_of_memory() {
    stress(5, 400 * MIB, &EACH);
}

#[test]
fn the_options_change_while_eight_threads_work() {
    stress(5, 400 * MIB, &[&POLICIES]);
    stress(5, 4096 * MIB, &[&["policy:default", "policy:default,max_split_size_mb:20"]]);
}

#[test]
fn pools_and_captures_on_eight_threads() {
    for options in POLICIES {
        within_minutes(move || {
            // While the threads capture by turns, no memory is released, so the capacity must be
            // ample.
            let fake = Fake::with_pages(1 << 40);
            let allocator = fake.allocator(options);
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let allocator = &allocator;
                    scope.spawn(move || {
                        let mut random = Random(number);
                        let mut blocks = Vec::new();
                        for _ in 0..200 {
                            let use_on_oom = random.below(2) == 0;
                            let options = PoolOptions { use_on_oom, ..PoolOptions::default() };
                            let pool = allocator.new_pool(options);
                            let route = match random.below(3) {
                                0 => allocator.use_pool(&pool),
                                1 => allocator.use_pool_for(&pool, &number),
                                _ => allocator.capture_to(&pool, &number),
                            };
                            for _ in 0..random.below(6) {
                                let block = allocator.malloc(random.bytes(), &number).unwrap();
                                block.record_stream(&(random.below(9) as u64));
                                blocks.push(block);
                            }
                            drop(pool);
                            blocks.truncate(random.below(8));
                            drop(route);
                            if random.below(16) == 0 {
                                allocator.empty_cache();
                            }
                        }
                    });
                }
            });
            allocator.empty_cache();
            check_state(&allocator);
            assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
            assert_eq!(allocator.memory_stats().active.all.current, 0);
        });
    }
}
