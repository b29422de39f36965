//! Blocks that outlive their allocator, or their pool.

use std::sync::Mutex;
use std::thread;

use warpline_alloc::{Block, CachingAllocator, PoolOptions};

use crate::common::{Act, Fake, MIB, Random, check_disjoint, check_state};

const POLICIES: [&str; 3] = ["policy:torch", "expandable_segments:True", "policy:default"];

fn assert_all_given_back(fake: &Fake, context: &str) {
    let world = fake.world();
    assert_eq!((world.used(), world.events_live), (0, 0), "{context}");
    assert!(world.ranges.is_empty() && world.mappings.is_empty(), "{context}");
}

/// Allocates blocks in several shards, some from a pool and some used by another stream.
fn blocks(allocator: &CachingAllocator<Fake>) -> Vec<Block<Fake>> {
    let fake = allocator.backend();
    let pool = allocator.new_pool(PoolOptions::default());
    let mut blocks = Vec::new();
    for (at, bytes) in [600, 3 * MIB, 700, 25 * MIB, 800, 5 * MIB].into_iter().enumerate() {
        let _route = (at % 3 == 2).then(|| allocator.use_pool(&pool));
        let block = allocator.malloc(bytes, &(at as u64 % 2)).unwrap();
        if at % 2 == 0 {
            block.record_stream(&7);
            fake.launch_on(7, &block);
        }
        blocks.push(block);
    }
    blocks
}

#[test]
fn the_last_block_freed_by_another_thread_gives_everything_back() {
    for options in POLICIES {
        let fake = Fake::with_pages(1 << 30);
        let allocator = fake.allocator(options);
        let mut blocks = blocks(&allocator);
        drop(allocator.malloc(9 * MIB, &0).unwrap());
        drop(allocator);
        let last = blocks.pop();
        thread::spawn(move || drop(blocks)).join().unwrap();
        assert!(fake.world().used() > 0);
        thread::spawn(move || drop(last)).join().unwrap();
        assert_all_given_back(&fake, options);
    }
}

#[test]
fn threads_free_blocks_while_the_allocator_is_dropped() {
    for round in 0..200 {
        for options in POLICIES {
            let fake = Fake::with_pages(1 << 30);
            let allocator = fake.allocator(options);
            let blocks = Mutex::new(blocks(&allocator));
            let next = || blocks.lock().unwrap().pop();
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while let Some(block) = next() {
                            drop(block);
                        }
                    });
                }
                drop(allocator);
            });
            assert_all_given_back(&fake, &format!("{options}, round {round}"));
        }
    }
}

/// A device, its allocator (`None` after the allocator is dropped), and its blocks.
type Device = (Fake, Option<CachingAllocator<Fake>>, Vec<Block<Fake>>);

/// Creates and drops allocators, each with its own device and with blocks that outlive it. Shard
/// cells are reused across allocators, and must not carry memory over.
#[test]
fn an_allocator_sees_no_blocks_of_another() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut devices: Vec<Device> = Vec::new();
        for _ in 0..400 {
            if devices.len() < 2 || (devices.len() < 6 && random.below(8) == 0) {
                let fake = Fake::with_pages(1 << 30);
                let allocator = fake.allocator(POLICIES[random.below(3)]);
                devices.push((fake, Some(allocator), Vec::new()));
            }
            let at = random.below(devices.len());
            let (fake, allocator, blocks) = &mut devices[at];
            match allocator {
                Some(allocator) if random.below(3) > 0 => {
                    let stream = random.below(3) as u64;
                    blocks.push(allocator.malloc(random.bytes(), &stream).unwrap());
                    check_state(allocator);
                    let size: usize = blocks.iter().map(Block::size).sum();
                    assert_eq!(allocator.memory_allocated(), size, "seed {seed}");
                }
                Some(_) if random.below(8) == 0 => *allocator = None,
                _ if !blocks.is_empty() => drop(blocks.swap_remove(random.below(blocks.len()))),
                _ => {}
            }
            check_disjoint(blocks.iter());
            if allocator.is_none() && blocks.is_empty() {
                assert_all_given_back(fake, &format!("seed {seed}"));
                devices.swap_remove(at);
            }
        }
        for (fake, allocator, blocks) in devices {
            drop(allocator);
            drop(blocks);
            assert_all_given_back(&fake, &format!("seed {seed}"));
        }
    }
}

/// Drops the last block of a stream. The drop waits for the stream, because the shard has arenas.
/// Meanwhile another thread raises the peaks, which locks all shards.
#[test]
fn a_dropped_shard_waits_without_its_lock() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    let last = allocator.malloc(40 * MIB, &0).unwrap();
    let pool = allocator.new_pool(PoolOptions::default());
    let route = allocator.use_pool(&pool);
    let [part, rest] = [5, 15].map(|mib| allocator.malloc(mib * MIB, &1).unwrap());
    // Peaks start at the current values, so the next free exceeds the peak of the inactive bytes.
    allocator.reset_peak_stats();
    drop((route, pool, allocator));
    let (done, added_up) = std::sync::mpsc::channel();
    let free = move || {
        std::thread::spawn(move || {
            drop(part);
            let _ = done.send(());
        });
        let waited = added_up.recv_timeout(std::time::Duration::from_secs(5));
        waited.expect("the wait holds a lock that other threads need");
    };
    fake.world().after_sync = Some(Act(Box::new(free)));
    drop(last);
    assert!(fake.world().after_sync.is_none(), "the drop did not wait for the device");
    drop(rest);
    assert_eq!(fake.world().used(), 0);
}
