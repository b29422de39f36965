//! PyTorch's tests of `MemPool`, one test for each, under their names.

use warpline_alloc::{AllocatorConfig, CachingAllocator, MemPool, PoolOptions, SegmentInfo};

use crate::common::{Fake, MIB, check_state};

const SHARES: PoolOptions = PoolOptions { use_on_oom: true, no_split: false };
const WHOLE: PoolOptions = PoolOptions { use_on_oom: false, no_split: true };

/// Returns a backend with segments and a backend with pages.
fn worlds(capacity: usize) -> [Fake; 2] {
    [Fake::new(capacity), Fake::with_pages(capacity)]
}

fn segments_of(allocator: &CachingAllocator<Fake>, pool: u64) -> Vec<SegmentInfo> {
    let mut segments = allocator.segments();
    segments.retain(|segment| segment.segment_pool_id == (0, pool));
    segments
}

fn count(allocator: &CachingAllocator<Fake>, pool: &MemPool<Fake>) -> usize {
    segments_of(allocator, pool.id()).len()
}

#[test]
fn mempool_with_allocator() {
    for fake in worlds(1 << 40) {
        let special = Fake::new(1 << 40);
        let allocator = fake.allocator("");
        let pool = allocator.new_pool_over(special.clone(), PoolOptions::default());
        assert_eq!(pool.use_count(), 1);
        assert!(
            special.world().asked.is_empty(),
            "the pool requested memory before its first block"
        );
        let first = {
            let _route = allocator.use_pool(&pool);
            assert_eq!(pool.use_count(), 2, "the route counts");
            allocator.malloc(MIB, &0).unwrap()
        };
        assert_eq!(pool.use_count(), 1);
        assert_eq!(special.world().asked, [2 * MIB]);
        let outside = allocator.malloc(MIB, &0).unwrap();
        let [second, third] = {
            let _route = allocator.use_pool(&pool);
            assert_eq!(count(&allocator, &pool), 1);
            let second = allocator.malloc(MIB, &0).unwrap();
            assert_eq!(count(&allocator, &pool), 1, "the block does not fit beside the first");
            [second, allocator.malloc(MIB, &0).unwrap()]
        };
        assert_eq!(count(&allocator, &pool), 2);
        assert_eq!(special.world().asked, [2 * MIB; 2]);
        drop((first, second, third));
        assert_eq!(special.world().frees, 0);
        drop(pool);
        assert_eq!(special.world().frees, 2);
        assert_eq!(special.world().used(), 0);
        assert!(fake.world().used() > 0);
        drop(outside);
        check_state(&allocator);
    }
}

#[test]
fn tensor_delete_after_allocator_delete() {
    let (fake, special) = (Fake::new(1 << 40), Fake::new(1 << 40));
    let allocator = fake.allocator("");
    let pool = allocator.new_pool_over(special.clone(), PoolOptions::default());
    let route = allocator.use_pool(&pool);
    let [block, pending] = [(); 2].map(|()| allocator.malloc(30 * MIB, &0).unwrap());
    drop((route, pool, allocator));
    assert_eq!(special.world().used(), 60 * MIB);
    // A block that a stream still uses is released too, after a wait.
    pending.record_stream(&1);
    special.launch(1);
    drop(pending);
    drop(block);
    assert_eq!(special.world().used(), 0);
    assert_eq!(special.world().events_live, 0);
}

#[test]
fn mempool_limited_memory() {
    for fake in worlds(80 * MIB) {
        let allocator = fake.allocator("");
        let [keeps, shares] = [PoolOptions::default(), SHARES]
            .map(|options| allocator.new_pool_over(fake.clone(), options));
        let within = |pool: &MemPool<Fake>, mib: usize| {
            let _route = allocator.use_pool(pool);
            allocator.malloc(mib * MIB, &0)
        };
        let (a, b) = (within(&keeps, 40).unwrap(), within(&shares, 40).unwrap());
        let addresses = (a.address(), b.address());
        assert!(allocator.malloc(40 * MIB, &0).is_err(), "all is in use");
        drop((a, b));
        let c = allocator.malloc(30 * MIB, &0).unwrap();
        assert_eq!(c.address(), addresses.1, "the freed block does not serve the request");
        let error = allocator.malloc(30 * MIB, &0).unwrap_err();
        assert!(error.is_out_of_memory(), "another pool must not serve the request: {error}");
        assert!(within(&shares, 40).is_err(), "a request in one pool got memory of the other pool");
        assert_eq!((count(&allocator, &keeps), count(&allocator, &shares)), (1, 1));
        drop(c);
        let (a, b) = (within(&keeps, 40).unwrap(), within(&shares, 40).unwrap());
        assert_eq!((a.address(), b.address()), addresses);
        check_state(&allocator);
    }
}

/// A pool over special memory must not serve requests from ordinary memory.
#[test]
fn a_pool_is_not_lent_other_memory() {
    for from_a_pool in [false, true] {
        let fake = Fake::new(80 * MIB);
        let allocator = fake.allocator("");
        let special = Fake::new(40 * MIB);
        let pool = allocator.new_pool_over(special, PoolOptions::default());
        let lender = allocator.new_pool(SHARES);
        if from_a_pool {
            let _route = allocator.use_pool(&lender);
            drop(allocator.malloc(20 * MIB, &0).unwrap());
        }
        // Stream 1 has enough free memory for the request, in a segment that cannot be released.
        drop(allocator.malloc(20 * MIB, &1).unwrap());
        let _kept = allocator.malloc(5 * MIB, &1).unwrap();
        {
            let _route = allocator.use_pool(&pool);
            let _all = allocator.malloc(40 * MIB, &0).unwrap();
            assert!(allocator.malloc(2 * MIB, &0).is_err());
        }
        drop(pool);
        check_state(&allocator);
    }
}

#[test]
fn deleted_mempool_not_used_on_oom() {
    for fake in worlds(20 * MIB) {
        let allocator = fake.allocator("");
        for deleted_first in [false, true] {
            let pool = allocator.new_pool(SHARES);
            let a = {
                let _route = allocator.use_pool(&pool);
                allocator.malloc(20 * MIB, &0).unwrap()
            };
            if deleted_first {
                drop(pool);
                assert!(allocator.malloc(20 * MIB, &0).is_err(), "the block lives on");
                drop(a);
            } else {
                drop(a);
                drop(pool);
            }
            assert_eq!(fake.world().used(), 0);
            drop(allocator.malloc(20 * MIB, &0).unwrap());
            check_state(&allocator);
            allocator.empty_cache();
        }
    }
}

#[test]
fn mempool_no_split() {
    for fake in worlds(1 << 40) {
        let allocator = fake.allocator("");
        let [splits, whole] = [PoolOptions::default(), WHOLE].map(|o| allocator.new_pool(o));
        for (pool, expected) in [(&splits, 1), (&whole, 2)] {
            let _route = allocator.use_pool(pool);
            let _blocks = [(); 2].map(|()| allocator.malloc(MIB, &0).unwrap());
            assert_eq!(count(&allocator, pool), expected);
        }
        let _route = allocator.use_pool(&whole);
        let again = [(); 2].map(|()| allocator.malloc(1000, &0).unwrap());
        assert_eq!(again.each_ref().map(|block| block.size()), [2 * MIB; 2]);
        let segments = segments_of(&allocator, whole.id());
        assert!(segments.iter().all(|segment| segment.blocks.len() == 1));
        assert_eq!(segments.len(), 2, "free memory was not reused");
        check_state(&allocator);
    }
}

#[test]
fn nested_mempool() {
    for fake in worlds(1 << 40) {
        let allocator = fake.allocator("");
        let pools = [(); 3].map(|()| allocator.new_pool(PoolOptions::default()));
        let mut blocks = Vec::new();
        let mut allocate = || blocks.push(allocator.malloc(20 * MIB, &0).unwrap());
        {
            let _first = allocator.use_pool(&pools[0]);
            allocate();
            {
                let _second = allocator.use_pool(&pools[1]);
                allocate();
                {
                    let _third = allocator.use_pool(&pools[2]);
                    allocate();
                }
                allocate();
            }
            allocate();
        }
        allocate();
        let counts = [0, 1, 2].map(|i| count(&allocator, &pools[i]));
        assert_eq!((counts, segments_of(&allocator, 0).len()), ([2, 2, 1], 1));
        drop((blocks, pools));
        check_state(&allocator);
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0);
    }
}

#[test]
fn mempool_ctx_multithread() {
    for fake in worlds(1 << 40) {
        let allocator = fake.allocator("");
        let pool = allocator.new_pool(PoolOptions::default());
        let _route = allocator.use_pool(&pool);
        drop(allocator.malloc(MIB, &0).unwrap());
        let before = (segments_of(&allocator, 0).len(), count(&allocator, &pool));
        assert_eq!(before, (0, 1));
        let (outside, nested) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let outside = allocator.malloc(MIB, &0).unwrap();
                let own = allocator.new_pool(PoolOptions::default());
                let _route = allocator.use_pool(&own);
                (outside, (allocator.malloc(MIB, &0).unwrap(), own))
            });
            thread.join().unwrap()
        });
        let after = [0, pool.id(), nested.1.id()].map(|id| segments_of(&allocator, id).len());
        assert_eq!(after, [1, 1, 1], "a thread's requests did not follow its own routes");
        drop((outside, nested));
        check_state(&allocator);
    }
}

#[test]
fn mempool_emptycache_multithread() {
    for fake in worlds(1 << 40) {
        let allocator = fake.allocator("");
        std::thread::scope(|scope| {
            for stream in 0..4 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for _ in 0..50 {
                        let pool = allocator.new_pool(PoolOptions::default());
                        let _route = allocator.use_pool(&pool);
                        drop(allocator.malloc(16, &stream).unwrap());
                        allocator.empty_cache();
                        assert_eq!(count(allocator, &pool), 1, "the pool did not keep its memory");
                        let block = allocator.malloc(16, &stream).unwrap();
                        assert_eq!(count(allocator, &pool), 1);
                        drop(block);
                    }
                });
            }
        });
        check_state(&allocator);
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    }
}

/// PyTorch rejects such pools. Here they use segments, also after the options change.
#[test]
fn mempool_expandable() {
    for options in ["policy:default", "expandable_segments:True"] {
        let (fake, special) = (Fake::with_pages(1 << 40), Fake::with_pages(1 << 40));
        let allocator = fake.allocator(options);
        let [own, over] = [
            allocator.new_pool(PoolOptions::default()),
            allocator.new_pool_over(special.clone(), PoolOptions::default()),
        ];
        let mut blocks = Vec::new();
        for change in [false, true] {
            if change {
                allocator.set_memory_fraction(0.5).unwrap();
                allocator.set_config(AllocatorConfig::parse(options).unwrap());
            }
            for pool in [&own, &over] {
                let _route = allocator.use_pool(pool);
                blocks.push(allocator.malloc(30 * MIB, &0).unwrap());
            }
        }
        let segments = allocator.segments();
        assert_eq!(segments.len(), 4);
        assert!(segments.iter().all(|segment| !segment.is_expandable), "{options}");
        assert_eq!((fake.world().used(), special.world().used()), (60 * MIB, 60 * MIB));
        drop((own, over, blocks));
        assert_eq!((fake.world().used(), special.world().used()), (0, 0));
    }
}
