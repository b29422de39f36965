//! Private pools.

use warpline_alloc::{PoolOptions, TraceConfig};

use crate::common::{Fake, MIB, check_state};

#[test]
fn a_route_leads_a_threads_requests_to_a_pool() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let pool = allocator.new_pool(PoolOptions::default());
    let outside = allocator.malloc(4 * MIB, &0).unwrap();
    let inside = {
        let _route = allocator.use_pool(&pool);
        let other_thread =
            std::thread::scope(|s| s.spawn(|| allocator.malloc(512, &0)).join().unwrap().unwrap());
        assert_eq!(pool_of(&allocator, other_thread.address()), 0);
        allocator.malloc(4 * MIB, &0).unwrap()
    };
    assert_eq!(pool_of(&allocator, inside.address()), pool.id());
    assert_eq!(pool_of(&allocator, outside.address()), 0);
    // Free memory of the pool serves no other request.
    let address = inside.address();
    drop(inside);
    assert_ne!(allocator.malloc(4 * MIB, &0).unwrap().address(), address);
    let _route = allocator.use_pool(&pool);
    assert_eq!(allocator.malloc(4 * MIB, &0).unwrap().address(), address);
    check_state(&allocator);
}

fn pool_of(allocator: &warpline_alloc::CachingAllocator<Fake>, address: u64) -> u64 {
    let segments = allocator.segments();
    let holds = |s: &&warpline_alloc::SegmentInfo| {
        (s.address..s.address + s.total_size as u64).contains(&address)
    };
    segments.iter().find(holds).unwrap().segment_pool_id.1
}

#[test]
fn a_stream_can_be_routed_for_all_threads_and_the_last_route_wins() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let [first, second] = [(); 2].map(|()| allocator.new_pool(PoolOptions::default()));
    let _first = allocator.use_pool_for(&first, &5);
    let block =
        std::thread::scope(|s| s.spawn(|| allocator.malloc(512, &5)).join().unwrap().unwrap());
    assert_eq!(pool_of(&allocator, block.address()), first.id());
    assert_eq!(pool_of(&allocator, allocator.malloc(512, &4).unwrap().address()), 0);
    {
        let _second = allocator.use_pool(&second);
        let block = allocator.malloc(512, &5).unwrap();
        assert_eq!(pool_of(&allocator, block.address()), second.id());
        assert_eq!(second.use_count(), 2);
    }
    assert_eq!(second.use_count(), 1);
    let block = allocator.malloc(512, &5).unwrap();
    assert_eq!(pool_of(&allocator, block.address()), first.id());
}

#[test]
fn a_pool_keeps_its_memory_until_its_last_block_is_freed() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let pool = allocator.new_pool(PoolOptions::default());
    let [a, b] = {
        let _route = allocator.use_pool(&pool);
        [30 * MIB, 50 * MIB].map(|bytes| allocator.malloc(bytes, &0).unwrap())
    };
    drop(a);
    allocator.empty_cache();
    assert_eq!(
        allocator.memory_reserved(),
        80 * MIB,
        "a pool in use does not keep its free memory"
    );
    drop(pool);
    assert_eq!(allocator.memory_reserved(), 50 * MIB);
    check_state(&allocator);
    drop(b);
    assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    let stats = allocator.memory_stats();
    assert_eq!(stats.allocated_bytes.all.peak, 80 * MIB as i64);
    assert_eq!(stats.allocated_bytes.all.freed, 80 * MIB as i64, "sums outlive the pool");
}

#[test]
fn a_pool_used_on_oom_is_asked_before_a_request_fails() {
    for (use_on_oom, serves) in [(false, false), (true, true)] {
        let fake = Fake::new(100 * MIB);
        let allocator = fake.allocator("");
        let pool = allocator.new_pool(PoolOptions { use_on_oom, ..PoolOptions::default() });
        {
            let _route = allocator.use_pool(&pool);
            drop(allocator.malloc(80 * MIB, &0).unwrap());
        }
        assert_eq!(allocator.malloc(60 * MIB, &0).is_ok(), serves);
        assert!(allocator.malloc(60 * MIB, &1).is_err(), "another stream's memory is not ordered");
        check_state(&allocator);
    }
}

#[test]
fn blocks_can_be_kept_whole() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let pool = allocator.new_pool(PoolOptions { no_split: true, ..PoolOptions::default() });
    let _route = allocator.use_pool(&pool);
    let block = allocator.malloc(3 * MIB, &0).unwrap();
    assert_eq!((block.size(), block.requested()), (20 * MIB, 3 * MIB));
    check_state(&allocator);
}

#[test]
fn a_pool_can_have_a_backend_of_its_own() {
    let [fake, special] = [(); 2].map(|()| Fake::new(1 << 40));
    let allocator = fake.allocator("");
    let pool = allocator.new_pool_over(special.clone(), PoolOptions::default());
    let block = {
        let _route = allocator.use_pool(&pool);
        allocator.malloc(30 * MIB, &0).unwrap()
    };
    assert_eq!((fake.world().used(), special.world().used()), (0, 30 * MIB));
    assert_eq!(allocator.memory_reserved(), 30 * MIB);
    drop((pool, block));
    assert_eq!(special.world().used(), 0);
}

#[test]
fn during_a_capture_no_memory_is_released_and_no_event_is_used() {
    let fake = Fake::new(200 * MIB);
    let allocator = fake.allocator("");
    drop(allocator.malloc(30 * MIB, &1).unwrap());
    let pool = allocator.new_pool(PoolOptions::default());
    let pending = allocator.malloc(30 * MIB, &2).unwrap();
    fake.launch(3);
    pending.record_stream(&3);
    drop(pending);
    let calls = || {
        let world = fake.world();
        (world.events_made, world.queries)
    };
    let before = calls();
    let shared = {
        let _capture = allocator.capture_to(&pool, &0);
        let shared = allocator.malloc(30 * MIB, &0).unwrap();
        shared.record_stream(&1);
        let address = shared.address();
        drop(shared);
        assert_ne!(allocator.malloc(30 * MIB, &0).unwrap().address(), address);
        assert!(allocator.malloc(150 * MIB, &0).is_err());
        allocator.empty_cache();
        assert_eq!(fake.world().frees, 0);
        assert_eq!(calls(), before);
        address
    };
    // The event is recorded after the capture. The block becomes free when the event completes.
    assert_eq!(calls().0, before.0 + 1);
    let _route = allocator.use_pool_for(&pool, &0);
    let blocks = [(); 2].map(|()| allocator.malloc(30 * MIB, &0).unwrap().address());
    assert!(blocks.contains(&shared) || allocator.malloc(30 * MIB, &0).is_ok());
    check_state(&allocator);
}

#[test]
fn actions_in_a_pool_are_traced_as_well() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    allocator.record_memory_history(Some(TraceConfig::default()));
    let pool = allocator.new_pool(PoolOptions::default());
    {
        let _route = allocator.use_pool(&pool);
        drop(allocator.malloc(512, &0).unwrap());
    }
    drop(pool);
    let snapshot = allocator.snapshot();
    let names: Vec<_> = snapshot.device_traces[0].iter().map(|e| e.action.name()).collect();
    let expected =
        ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free", "snapshot"];
    assert_eq!(names, expected);
}

/// A stream without a cache requests exact sizes. A pool, which has a cache, still splits at
/// multiples of 512.
#[test]
fn a_pool_that_helps_out_keeps_its_blocks_aligned() {
    for options in ["backend:cudaMallocAsync", "no caching"] {
        let fake = Fake::new(64 * MIB);
        let mut config = warpline_alloc::AllocatorConfig::default();
        match options {
            "no caching" => config.caching = false,
            options => config = warpline_alloc::AllocatorConfig::parse(options).unwrap(),
        }
        let allocator = warpline_alloc::CachingAllocator::new(fake.clone(), config);
        let pool = allocator.new_pool(PoolOptions { use_on_oom: true, no_split: false });
        drop(allocator.malloc_from(&pool, 60 * MIB, &0).unwrap());
        let sizes = [15 * MIB + 1, 15 * MIB, 700 << 10];
        let [first, second, small] = sizes.map(|bytes| allocator.malloc(bytes, &0));
        let [first, second] = [first.unwrap(), second.unwrap()];
        assert!(pool.holds(&first) && pool.holds(&second));
        assert_eq!(first.size(), 15 * MIB + 512, "{options}");
        assert_eq!(second.address(), first.address() + first.size() as u64, "{options}");
        drop((first, second, small));
        check_state(&allocator);
    }
}
