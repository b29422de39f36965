//! Concurrent paths under many schedules. `WARPLINE_SHUTTLE` sets the number of schedules. A
//! deadlock fails the test.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p warpline-alloc --test shuttle --target-dir target/shuttle`
#![cfg(shuttle)]

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "cuda")]
mod host;

use std::sync::Arc;

use common::{Fake, MIB, Owned, PAGE, check_state};
use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Barrier;
use shuttle::thread;
use warpline_alloc::{Block, CachingAllocator, MemPool, PoolOptions};

type Allocator = CachingAllocator<Fake>;

/// Runs a test under random schedules, and under schedules with few preemptions.
fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules =
        std::env::var("WARPLINE_SHUTTLE").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}

/// Runs a test on each kind of backend and policy.
fn check_policies(test: impl Fn(Allocator) + Send + Sync + Clone + 'static) {
    for options in ["policy:torch", "expandable_segments:True", "policy:default"] {
        let test = test.clone();
        check(move || {
            let fake = Fake::with_pages(1 << 30);
            test(fake.allocator(options));
            assert_eq!(fake.world().used(), 0);
            assert_eq!(fake.world().events_live, 0);
        });
    }
}

/// Starts a thread with a clone of the allocator.
fn spawn<T: Send + 'static>(
    allocator: &Allocator,
    run: impl FnOnce(Allocator) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let allocator = allocator.clone();
    thread::spawn(move || run(allocator))
}

/// Creates a private pool and allocates a block from it.
fn block_in_a_pool(
    allocator: &Allocator,
    bytes: usize,
    stream: u64,
) -> (MemPool<Fake>, Block<Fake>) {
    let pool = allocator.new_pool(PoolOptions::default());
    let block = {
        let _route = allocator.use_pool(&pool);
        allocator.malloc(bytes, &stream).unwrap()
    };
    (pool, block)
}

/// Returns the stream of the segment that contains an address.
fn stream_at(allocator: &Allocator, address: u64) -> Option<u64> {
    let segments = allocator.segments();
    let holds = |s: &&warpline_alloc::SegmentInfo| {
        (s.address..s.address + s.total_size as u64).contains(&address)
    };
    segments.iter().find(holds).map(|segment| segment.stream)
}

#[test]
fn a_shard_never_serves_two_streams() {
    check_policies(|allocator| {
        // Leaves a vacant shard, which one of the threads reuses.
        drop(allocator.malloc(512, &9).unwrap());
        allocator.empty_cache();
        let threads = [1, 2].map(|stream| {
            spawn(&allocator, move |allocator| {
                for _ in 0..2 {
                    let block = allocator.malloc(512, &stream).unwrap();
                    assert_eq!(stream_at(&allocator, block.address()), Some(stream));
                    drop(block);
                    allocator.empty_cache();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(allocator.memory_reserved(), 0);
    });
}

#[test]
fn two_threads_share_a_stream() {
    check_policies(|allocator| {
        let owned = Owned::default();
        let threads = [600, 3 * MIB].map(|bytes| {
            let owned = owned.clone();
            spawn(&allocator, move |allocator| {
                for _ in 0..3 {
                    let block = allocator.malloc(bytes, &1).unwrap();
                    owned.take(allocator.backend(), &block);
                    let other = allocator.malloc(2 * bytes, &1).unwrap();
                    owned.take(allocator.backend(), &other);
                    owned.free(allocator.backend(), block);
                    owned.free(allocator.backend(), other);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check_state(&allocator);
        allocator.empty_cache();
    });
}

#[test]
fn readers_see_one_moment_while_streams_allocate() {
    check_policies(|allocator| {
        let mut threads: Vec<_> = [1, 2]
            .map(|stream| {
                spawn(&allocator, move |allocator| {
                    for bytes in [1000, 3 * MIB] {
                        let block = allocator.malloc(bytes, &stream).unwrap();
                        block.record_stream(&(3 - stream));
                        allocator.backend().launch_on(3 - stream, &block);
                        drop(block);
                    }
                })
            })
            .into();
        threads.push(spawn(&allocator, |allocator| {
            allocator.empty_cache();
            let stats = allocator.memory_stats();
            let active = stats.active_bytes.all;
            assert!(0 <= stats.allocated_bytes.all.current);
            assert!(stats.allocated_bytes.all.current <= active.current);
            assert!(stats.requested_bytes.all.current <= active.current);
            assert!(stats.allocated_bytes.all.current <= stats.allocated_bytes.all.peak);
            for segment in allocator.snapshot().segments {
                let blocks = segment.blocks.iter().map(|block| block.size);
                assert_eq!(blocks.sum::<usize>(), segment.total_size);
            }
        }));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        allocator.empty_cache();
        check_state(&allocator);
    });
}

#[test]
fn pages_change_streams_while_these_allocate() {
    check(|| {
        // The memory holds one block of 12 MiB for each stream, and no third. The headroom is less,
        // so a stream also takes free pages of the other stream.
        let fake = Fake::with_pages(26 * MIB);
        let allocator = fake.allocator("policy:default");
        let owned = Owned::default();
        let threads = [1, 2].map(|stream| {
            let owned = owned.clone();
            spawn(&allocator, move |allocator| {
                for bytes in [6 * MIB, 12 * MIB] {
                    let block = allocator.malloc(bytes, &stream).unwrap();
                    owned.take(allocator.backend(), &block);
                    allocator.backend().launch_on(stream, &block);
                    owned.free(allocator.backend(), block);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check_state(&allocator);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0);
    });
}

#[test]
fn nothing_is_unmapped_before_the_work_that_uses_it_is_done() {
    check_policies(|allocator| {
        let work = spawn(&allocator, |allocator| {
            for _ in 0..3 {
                let block = allocator.malloc(3 * MIB, &1).unwrap();
                allocator.backend().launch_on(1, &block);
            }
        });
        allocator.empty_cache();
        work.join().unwrap();
        allocator.empty_cache();
    });
}

#[test]
fn a_pool_goes_while_its_blocks_do() {
    check_policies(|allocator| {
        let pool = allocator.new_pool(PoolOptions { use_on_oom: true, ..PoolOptions::default() });
        let blocks: Vec<_> = {
            let _route = allocator.use_pool(&pool);
            [512, 3 * MIB, 30 * MIB].map(|bytes| allocator.malloc(bytes, &1).unwrap()).into()
        };
        blocks[1].record_stream(&2);
        allocator.backend().launch_on(2, &blocks[1]);
        let drops = thread::spawn(move || drop(blocks));
        let asks = spawn(&allocator, |allocator| {
            // The request fits no free memory, so it also searches the pool.
            assert!(allocator.malloc(2 << 30, &1).is_err());
        });
        drop(pool);
        drops.join().unwrap();
        asks.join().unwrap();
        allocator.empty_cache();
        assert_eq!(allocator.memory_reserved(), 0);
        assert_eq!(allocator.memory_stats().active.all.current, 0);
    });
}

#[test]
fn a_capture_ends_while_blocks_are_freed() {
    check_policies(|allocator| {
        let pool = allocator.new_pool(PoolOptions::default());
        let before = allocator.malloc(3 * MIB, &2).unwrap();
        before.record_stream(&1);
        let thread = spawn(&allocator, move |allocator| {
            drop(before);
            let (other, block) = block_in_a_pool(&allocator, 5 * MIB, 2);
            block.record_stream(&3);
            drop(other);
            drop(block);
            allocator.empty_cache();
            drop(allocator.malloc(512, &2).unwrap());
        });
        let route = allocator.capture_to(&pool, &1);
        allocator.backend().world().capturing = Some(1);
        let blocks = [(); 2].map(|()| allocator.malloc(3 * MIB, &1).unwrap());
        blocks[0].record_stream(&2);
        drop(blocks);
        drop(pool);
        allocator.backend().world().capturing = None;
        drop(route);
        thread.join().unwrap();
        allocator.empty_cache();
        assert_eq!(allocator.memory_reserved(), 0);
        assert_eq!(allocator.backend().world().used(), 0);
        assert_eq!(allocator.memory_stats().active.all.current, 0);
    });
}

#[test]
fn peaks_are_those_of_an_order_in_which_it_can_have_happened() {
    check_policies(|allocator| {
        let barrier = Arc::new(Barrier::new(3));
        let threads = [1u64, 2, 3].map(|stream| {
            let (allocator, barrier) = (allocator.clone(), Arc::clone(&barrier));
            thread::spawn(move || {
                let bytes = stream as usize * 100_000;
                let held = allocator.malloc(bytes, &stream).unwrap();
                // Wait until all threads hold their first block.
                barrier.wait();
                let now = allocator.memory_stats().allocated_bytes.all;
                barrier.wait();
                let more = allocator.malloc(2 * bytes, &stream).unwrap();
                let most = held.size() + more.size();
                drop(more);
                let size = held.size();
                drop(held);
                (now, size as i64, most as i64)
            })
        });
        let seen = threads.map(|thread| thread.join().unwrap());
        let together: i64 = seen.iter().map(|(_, size, _)| size).sum();
        for (now, ..) in &seen {
            assert_eq!((now.current, now.peak), (together, together));
        }
        let stats = allocator.memory_stats().allocated_bytes.all;
        assert_eq!(stats.current, 0);
        // In every order, the peak is at least the sum of the first blocks and at least the peak of
        // each thread, and at most the sum of the threads' peaks.
        let most: i64 = seen.iter().map(|(_, _, most)| most).sum();
        assert!((together..=most).contains(&stats.peak), "{stats:?}");
        let alone = seen.iter().map(|(_, _, most)| *most).max();
        assert!(alone.is_some_and(|alone| alone <= stats.peak));
        allocator.empty_cache();
    });
}

#[test]
fn the_last_block_goes_while_its_allocator_does() {
    check_policies(|allocator| {
        let pool = allocator.new_pool(PoolOptions::default());
        let mut blocks = vec![allocator.malloc(3 * MIB, &1).unwrap()];
        {
            let _route = allocator.use_pool(&pool);
            blocks.push(allocator.malloc(5 * MIB, &1).unwrap());
        }
        for block in &blocks {
            block.record_stream(&2);
            allocator.backend().launch_on(2, block);
        }
        blocks.push(allocator.malloc(600, &1).unwrap());
        blocks.push(allocator.malloc(700, &2).unwrap());
        let mut threads: Vec<_> =
            blocks.into_iter().map(|block| thread::spawn(move || drop(block))).collect();
        threads.push(thread::spawn(move || drop(pool)));
        drop(allocator);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn threads_share_windows_while_the_cache_is_emptied() {
    check(|| {
        let fake = Fake::with_pages(1 << 30);
        let allocator = fake.allocator("policy:default");
        let blocks = (0..9).map(|_| allocator.malloc(PAGE, &0).unwrap()).enumerate();
        let kept: Vec<_> = blocks.filter(|(at, _)| at % 2 == 0).collect();
        let owned = Owned::default();
        let mut threads = Vec::new();
        for bytes in [4 * PAGE - 512, 3 * PAGE + 512] {
            let (owned, fake) = (owned.clone(), fake.clone());
            threads.push(spawn(&allocator, move |allocator| {
                for _ in 0..2 {
                    let block = allocator.malloc(bytes, &0).unwrap();
                    owned.take(&fake, &block);
                    fake.launch_on(0, &block);
                    owned.free(&fake, block);
                }
            }));
        }
        threads.push(spawn(&allocator, |allocator| allocator.empty_cache()));
        let (owner, other) = (owned.clone(), fake.clone());
        threads.push(spawn(&allocator, move |allocator| {
            let block = allocator.malloc(3 * PAGE, &1).unwrap();
            owner.take(&other, &block);
            other.launch_on(1, &block);
            block.record_stream(&0);
            owner.free(&other, block);
        }));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        check_state(&allocator);
        drop(kept);
        [0, 1].iter().for_each(|&stream| fake.complete(stream));
        allocator.empty_cache();
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    });
}

#[test]
fn a_pool_that_goes_stays_counted() {
    check_policies(|allocator| {
        let (pool, block) = block_in_a_pool(&allocator, 3 * MIB, 1);
        block.record_stream(&2);
        allocator.backend().launch_on(2, &block);
        let bytes = block.size() as i64;
        drop(pool);
        // The block counts as active until stream 2 completes its work below, even after the drop.
        let thread = thread::spawn(move || drop(block));
        let other = allocator.malloc(2 * MIB, &3).unwrap();
        thread.join().unwrap();
        let active = allocator.memory_stats().active_bytes.all;
        assert_eq!(active.current, bytes + 2 * MIB as i64, "current");
        assert!(active.peak >= active.current, "{active:?}");
        drop(other);
        allocator.backend().complete(2);
        allocator.empty_cache();
    });
}

#[test]
fn sums_do_not_shrink_as_a_pool_goes() {
    check_policies(|allocator| {
        let (pool, block) = block_in_a_pool(&allocator, 3 * MIB, 1);
        drop(block);
        let thread = thread::spawn(move || drop(pool));
        let stats = allocator.memory_stats();
        assert_eq!(stats.allocation.all.allocated, 1);
        thread.join().unwrap();
        allocator.empty_cache();
    });
}

#[test]
fn empty_blocks_are_in_no_shard() {
    check_policies(|allocator| {
        drop(allocator.malloc(512, &9).unwrap());
        allocator.empty_cache();
        let threads = [1, 2].map(|stream| {
            spawn(&allocator, move |allocator| {
                let empty = allocator.malloc(0, &stream).unwrap();
                empty.record_stream(&7);
                let block = allocator.malloc(512, &stream).unwrap();
                assert_eq!(stream_at(&allocator, block.address()), Some(stream));
                drop(block);
                allocator.empty_cache();
                let more = allocator.malloc(0, &(stream + 2)).unwrap();
                drop(allocator);
                (empty, more)
            })
        });
        allocator.empty_cache();
        drop(allocator);
        let all = threads.map(|thread| thread.join().unwrap());
        assert!(all.iter().all(|(a, b)| a.address() + b.address() == 0));
    });
}
