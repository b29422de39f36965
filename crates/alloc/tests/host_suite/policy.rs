//! The choice of blocks for requests, and splitting, merging and release.

use warpline_alloc::{AllocError, AllocatorConfig, Block, BlockState, CachingAllocator, PoolKind};

use crate::common::{Fake, FakeError, MIB, check_state};

fn asked(fake: &Fake) -> Vec<usize> {
    fake.world().asked.clone()
}

#[test]
fn segments_come_in_three_sizes() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let _blocks = [1, MIB, MIB + 1, 9 * MIB, 10 * MIB, 11 * MIB, 108_000_000]
        .map(|bytes| allocator.malloc(bytes, &0).unwrap());
    // The request of 1 MiB fits beside the first in a segment of 2 MiB. The request of 9 MiB fits
    // the remainder of the segment of 20 MiB.
    assert_eq!(asked(&fake), [2 * MIB, 20 * MIB, 10 * MIB, 12 * MIB, 104 * MIB]);
    check_state(&allocator);
}

#[test]
fn the_figures_are_those_of_pytorchs_cuda_note() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(300 * 300 * 300 * 4, &0).unwrap();
    assert_eq!(block.size(), 108_000_256);
    assert_eq!(allocator.memory_allocated(), 108_000_256);
    assert_eq!(allocator.memory_reserved(), 109_051_904);
    let stats = allocator.memory_stats();
    assert_eq!(stats.allocated_bytes.all.peak, 108_000_256);
    assert_eq!(stats.inactive_split_bytes.all.current, 109_051_904 - 108_000_256);
}

#[test]
fn the_best_fit_is_the_smallest_then_the_lowest() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    // There are four free large segments, of 12, 10, 14 and 10 MiB.
    let blocks = [12, 10, 14, 10].map(|mib| allocator.malloc(mib * MIB, &0).unwrap());
    let addresses = blocks.each_ref().map(|block| block.address());
    drop(blocks);
    let first = allocator.malloc(10 * MIB - 4096, &0).unwrap();
    let second = allocator.malloc(10 * MIB - 4096, &0).unwrap();
    let third = allocator.malloc(10 * MIB, &0).unwrap();
    let fourth = allocator.malloc(13 * MIB, &0).unwrap();
    assert_eq!(first.address(), addresses[1]);
    assert_eq!(second.address(), addresses[3]);
    assert_eq!(third.address(), addresses[0]);
    assert_eq!(fourth.address(), addresses[2]);
    assert_eq!(asked(&fake).len(), 4);
}

/// Allocates eight small blocks and frees four of them out of order. Returns the blocks and the
/// addresses of all eight.
fn four_of_eight(allocator: &CachingAllocator<Fake>) -> (Vec<Option<Block<Fake>>>, Vec<u64>) {
    let mut blocks: Vec<_> = (0..8).map(|_| allocator.malloc(4096, &0).ok()).collect();
    let addresses = blocks.iter().flatten().map(Block::address).collect();
    [4, 0, 6, 2].into_iter().for_each(|at| blocks[at] = None);
    (blocks, addresses)
}

/// Returns the index of the freed block that each of four requests gets.
fn order_of_reuse(allocator: &CachingAllocator<Fake>) -> [usize; 4] {
    let (_blocks, addresses) = four_of_eight(allocator);
    let again = [(); 4].map(|()| allocator.malloc(4096, &0).unwrap());
    again.map(|block| addresses.iter().position(|&address| address == block.address()).unwrap())
}

#[test]
fn among_equal_small_blocks_the_last_freed_is_reused_first_except_under_torch() {
    let fake = Fake::with_pages(1 << 40);
    let allocator = fake.allocator("policy:default");
    assert_eq!(order_of_reuse(&allocator), [2, 6, 0, 4]);
    // The change of policy orders the existing free blocks by address.
    let blocks = four_of_eight(&allocator);
    allocator.set_config(AllocatorConfig::parse("policy:torch").unwrap());
    let again = [(); 4].map(|()| allocator.malloc(4096, &0).unwrap());
    assert!(again.iter().map(Block::address).is_sorted());
    drop((blocks, again));
    assert_eq!(order_of_reuse(&allocator), [0, 2, 4, 6]);
    check_state(&allocator);
}

#[test]
fn the_low_part_is_handed_out_and_the_rest_split_off() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let a = allocator.malloc(512, &0).unwrap();
    let b = allocator.malloc(512, &0).unwrap();
    assert_eq!(b.address(), a.address() + 512);
    let c = allocator.malloc(3 * MIB, &0).unwrap();
    let d = allocator.malloc(3 * MIB, &0).unwrap();
    assert_eq!(d.address(), c.address() + 3 * MIB as u64);
    check_state(&allocator);
}

#[test]
fn a_remainder_of_one_mebibyte_stays_with_a_large_block() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    drop(allocator.malloc(20 * MIB, &0).unwrap());
    assert_eq!(allocator.malloc(19 * MIB, &0).unwrap().size(), 20 * MIB);
    assert_eq!(allocator.malloc(19 * MIB - 512, &0).unwrap().size(), 19 * MIB - 512);
}

#[test]
fn freed_neighbours_merge_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let fake = Fake::new(1 << 40);
        let allocator = fake.allocator("");
        let mut blocks: Vec<_> =
            (0..3).map(|_| Some(allocator.malloc(600 << 10, &0).unwrap())).collect();
        let start = blocks[0].as_ref().unwrap().address();
        for at in order {
            blocks[at] = None;
            check_state(&allocator);
        }
        let snapshot = allocator.segments();
        assert_eq!(snapshot.len(), 1);
        assert_eq!((snapshot[0].blocks.len(), snapshot[0].address), (1, start));
    }
}

#[test]
fn streams_and_pools_do_not_share() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    drop(allocator.malloc(512, &1).unwrap());
    let other = allocator.malloc(512, &2).unwrap();
    assert_eq!(asked(&fake), [2 * MIB, 2 * MIB]);
    assert_eq!(other.stream_id(), 2);
    // Free memory of the small pool does not serve a large request.
    let large = allocator.malloc(MIB + 1, &1).unwrap();
    assert_eq!(asked(&fake), [2 * MIB, 2 * MIB, 20 * MIB]);
    let kinds = allocator.segments().iter().map(|s| s.segment_type).collect::<Vec<_>>();
    assert_eq!(kinds, [PoolKind::Small, PoolKind::Small, PoolKind::Large]);
    drop((other, large));
    check_state(&allocator);
}

#[test]
fn a_request_of_zero_bytes_allocates_nothing() {
    let fake = Fake::new(0);
    let allocator = fake.allocator("");
    let block = allocator.malloc(0, &7).unwrap();
    block.record_stream(&8);
    assert_eq!((block.address(), block.size(), block.requested(), block.stream_id()), (0, 0, 0, 7));
    drop(block);
    assert_eq!(allocator.memory_stats().allocation.all.allocated, 0);
}

#[test]
fn an_exabyte_is_refused_by_name() {
    let allocator = Fake::new(usize::MAX).allocator("");
    for bytes in [1 << 60, usize::MAX] {
        let error = allocator.malloc(bytes, &0).unwrap_err();
        assert!(matches!(error, AllocError::TooLarge { requested } if requested == bytes));
        assert!(error.to_string().contains("more than 1EB memory"), "{error}");
    }
    // One byte less is an ordinary request.
    assert!(allocator.malloc((1 << 60) - 1, &0).is_ok());
    assert_eq!(allocator.memory_stats().num_ooms, 0);
}

#[test]
fn oversize_blocks_are_neither_split_nor_given_to_small_requests() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("max_split_size_mb:40");
    drop(allocator.malloc(100 * MIB, &0).unwrap());
    assert_eq!(allocator.memory_stats().oversize_segments.current, 1);
    // A request under the limit never gets an oversize block.
    let small = allocator.malloc(30 * MIB, &0).unwrap();
    assert_eq!(asked(&fake), [100 * MIB, 30 * MIB]);
    // A request from the limit on gets an oversize block as a whole, if the block exceeds the
    // request by less than 20 MiB.
    let other = allocator.malloc(80 * MIB, &0).unwrap();
    assert_eq!(asked(&fake), [100 * MIB, 30 * MIB, 80 * MIB]);
    let whole = allocator.malloc(80 * MIB + 512, &0).unwrap();
    assert_eq!(whole.size(), 100 * MIB);
    let stats = allocator.memory_stats();
    assert_eq!(stats.oversize_allocations.current, 2);
    assert_eq!(stats.max_split_size, 40 * MIB as i64);
    drop((small, other, whole));
    allocator.empty_cache();
    let stats = allocator.memory_stats();
    assert_eq!((stats.oversize_allocations.current, stats.oversize_segments.current), (0, 0));
    assert_eq!(stats.oversize_allocations.freed, 3);
}

#[test]
fn the_rounding_allowance_is_an_option() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("max_split_size_mb:40,max_non_split_rounding_mb:60");
    drop(allocator.malloc(100 * MIB, &0).unwrap());
    assert_eq!(allocator.malloc(41 * MIB, &0).unwrap().size(), 100 * MIB);
    drop(allocator.malloc(40 * MIB, &0).unwrap());
    assert_eq!(asked(&fake), [100 * MIB, 40 * MIB]);
}

#[test]
fn divisions_change_the_allocated_sizes() {
    let allocator = Fake::new(1 << 40).allocator("roundup_power2_divisions:[64:8,128:2,>:1]");
    let size = |bytes| allocator.malloc(bytes, &0).unwrap().size();
    assert_eq!(size(66 * MIB), 72 * MIB);
    assert_eq!(size(130 * MIB), 192 * MIB);
    assert_eq!(size(258 * MIB), 258 * MIB);
    // The default options round only to 512 bytes.
    allocator.set_config(Default::default());
    allocator.empty_cache();
    assert_eq!(size(66 * MIB), 66 * MIB);
}

#[test]
fn record_stream_defers_reuse_until_the_stream_is_done() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    let address = block.address();
    block.record_stream(&1);
    block.record_stream(&1);
    fake.launch(1);
    drop(block);
    assert_eq!(fake.world().events_made, 1, "one event per stream");
    assert_eq!(allocator.memory_allocated(), 0);
    assert_eq!(allocator.memory_stats().active_bytes.all.current, 512);
    assert_eq!(allocator.segments()[0].blocks[0].state, BlockState::AwaitingFree);
    check_state(&allocator);

    let other = allocator.malloc(512, &0).unwrap();
    assert_ne!(other.address(), address, "the other stream still uses it");
    fake.complete(1);
    let same = allocator.malloc(512, &0).unwrap();
    assert_eq!(same.address(), address);
    assert_eq!(allocator.memory_stats().active.all.current, 2);
    check_state(&allocator);
}

#[test]
fn a_block_waits_for_all_its_streams() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    let address = block.address();
    for stream in 1..=3 {
        block.record_stream(&stream);
        fake.launch(stream);
    }
    drop(block);
    for stream in 1..=3 {
        assert_ne!(allocator.malloc(512, &0).unwrap().address(), address);
        fake.complete(stream);
    }
    assert_eq!(allocator.malloc(512, &0).unwrap().address(), address);
}

#[test]
fn the_allocation_stream_needs_no_record() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &3).unwrap();
    block.record_stream(&3);
    fake.launch(3);
    let address = block.address();
    drop(block);
    assert_eq!(allocator.malloc(512, &3).unwrap().address(), address);
    assert_eq!(fake.world().events_made, 0);
}

#[test]
fn events_are_used_again_and_polled_only_while_some_are_pending() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    for _ in 0..10 {
        let block = allocator.malloc(512, &0).unwrap();
        block.record_stream(&1);
        drop(block);
    }
    assert_eq!(fake.world().events_made, 1);
    drop(allocator.malloc(512, &0).unwrap());
    let queries = fake.world().queries;
    drop(allocator.malloc(512, &0).unwrap());
    assert_eq!(fake.world().queries, queries);
}

#[test]
fn polling_stops_at_the_first_pending_event() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let blocks: Vec<_> = (0..5).map(|_| allocator.malloc(512, &0).unwrap()).collect();
    for block in blocks {
        block.record_stream(&1);
        fake.launch(1);
        drop(block);
    }
    fake.world().queries = 0;
    let _block = allocator.malloc(512, &0).unwrap();
    assert_eq!(fake.world().queries, 1);
}

#[test]
fn an_event_that_cannot_be_recorded_keeps_its_block_until_it_can() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    let address = block.address();
    block.record_stream(&1);
    fake.launch(1);
    fake.world().fail_record = Some(FakeError::Fault);
    drop(block);
    fake.complete(1);
    assert_ne!(allocator.malloc(512, &0).unwrap().address(), address);
    fake.world().fail_record = None;
    assert_eq!(allocator.malloc(512, &0).unwrap().address(), address);
    check_state(&allocator);
}

#[test]
fn a_query_that_fails_is_no_completion_unless_the_device_is_lost() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    let address = block.address();
    block.record_stream(&1);
    fake.launch(1);
    drop(block);
    fake.world().fail_query = Some(FakeError::Fault);
    assert_ne!(allocator.malloc(512, &0).unwrap().address(), address);
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 2 * MIB, "it still waits");
    fake.world().fail_query = Some(FakeError::Lost);
    assert_eq!(allocator.malloc(512, &0).unwrap().address(), address);
}

#[test]
fn a_lost_device_leaves_nothing_counted_on_drop() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    let pending = allocator.malloc(512, &0).unwrap();
    for block in [&block, &pending] {
        block.record_stream(&1);
        block.record_stream(&2);
    }
    fake.launch(1);
    drop(pending);
    {
        let mut world = fake.world();
        world.fail_record = Some(FakeError::Lost);
        world.fail_query = Some(FakeError::Lost);
        world.fail_alloc = Some(FakeError::Lost);
    }
    let error = allocator.malloc(30 * MIB, &0).unwrap_err();
    assert_eq!(error.backend::<FakeError>(), Some(&FakeError::Lost));
    drop(block);
    assert_eq!(allocator.memory_allocated(), 0);
    check_state(&allocator);
    drop(allocator);
    assert_eq!(fake.world().used(), 0);
    assert_eq!(fake.world().events_live, 0);
}

#[test]
fn empty_cache_gives_back_entirely_free_segments() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let kept = allocator.malloc(512, &0).unwrap();
    drop(allocator.malloc(512, &1).unwrap());
    drop(allocator.malloc(30 * MIB, &0).unwrap());
    let pending = allocator.malloc(40 * MIB, &0).unwrap();
    pending.record_stream(&1);
    fake.launch(1);
    drop(pending);
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 2 * MIB);
    assert_eq!(fake.world().used(), 2 * MIB);
    assert_eq!(allocator.memory_stats().num_device_free, 3);
    assert_eq!(allocator.memory_stats().num_sync_all_streams, 1);
    check_state(&allocator);
    drop(kept);
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn without_caching_every_block_is_the_backends() {
    let fake = Fake::new(1 << 40);
    let mut config = warpline_alloc::AllocatorConfig::default();
    config.caching = false;
    let allocator = warpline_alloc::CachingAllocator::new(fake.clone(), config);
    let a = allocator.malloc(1000, &0).unwrap();
    let b = allocator.malloc(3 * MIB + 1, &0).unwrap();
    assert_eq!(asked(&fake), [1000, 3 * MIB + 1]);
    assert_eq!((a.size(), b.size()), (1000, 3 * MIB + 1));
    assert_eq!(fake.world().live.get(&a.address()), Some(&1000));
    check_state(&allocator);
    drop(a);
    assert_eq!(fake.world().used(), 3 * MIB + 1);
    // A block that another stream uses is released only after that stream's work.
    b.record_stream(&1);
    fake.launch(1);
    drop(b);
    assert_eq!(fake.world().used(), 3 * MIB + 1);
    fake.complete(1);
    drop(allocator.malloc(8, &0).unwrap());
    assert_eq!(fake.world().used(), 0);
    assert_eq!(allocator.memory_stats().segment.all.freed, 3);
    check_state(&allocator);
}

/// Captured graphs go on using the memory of their pool.
#[test]
fn without_caching_private_pools_keep_their_memory() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let pool = allocator.new_pool(warpline_alloc::PoolOptions::default());
    let made = |when| {
        let route = allocator.use_pool(&pool);
        drop(allocator.malloc(512, &0).unwrap());
        drop(route);
        drop(allocator.malloc(512, &0).unwrap());
        assert_eq!(fake.world().used(), 2 * MIB, "{when}");
    };
    let mut config = allocator.config();
    config.caching = false;
    allocator.set_config(config);
    made("a pool that is used after");
    made("again");
    drop(pool);
    allocator.empty_cache();
    assert_eq!(fake.world().used(), 0);
    check_state(&allocator);
}

#[test]
fn blocks_outlive_their_allocator() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.clone().malloc(512, &0).unwrap();
    drop(allocator);
    assert_eq!(fake.world().used(), 2 * MIB);
    drop(block);
    assert_eq!(fake.world().used(), 0);
}

#[test]
fn pending_streams_are_waited_for_before_memory_is_released() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    let block = allocator.malloc(512, &0).unwrap();
    block.record_stream(&1);
    fake.launch(1);
    drop(allocator);
    drop(block);
    assert_eq!(fake.world().used(), 0);
    assert_eq!(fake.world().syncs, 1);
}

#[test]
fn many_short_lived_streams_leave_nothing_behind() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    for stream in 0..500 {
        let block = allocator.malloc(512, &stream).unwrap();
        block.record_stream(&(stream + 1));
        drop(block);
        allocator.empty_cache();
    }
    assert_eq!(fake.world().used(), 0);
    check_state(&allocator);
}

#[test]
fn handles_cross_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    shared(&allocator);
    shared(&allocator.malloc(512, &0).unwrap());
    std::thread::scope(|scope| {
        for stream in 0..4 {
            let allocator = &allocator;
            scope.spawn(move || {
                let mut live = Vec::new();
                for i in 0..2000usize {
                    let block = allocator.malloc(1 + i * 7919 % (3 * MIB), &stream).unwrap();
                    if i % 3 == 0 {
                        block.record_stream(&(stream + 1));
                    }
                    live.push(block);
                    if i % 5 == 4 {
                        live.drain(..4);
                    }
                    if i % 500 == 0 {
                        allocator.empty_cache();
                    }
                }
                live.truncate(20);
            });
        }
    });
    check_state(&allocator);
    assert_eq!(allocator.memory_allocated(), 0);
    allocator.empty_cache();
    assert_eq!(fake.world().used(), 0);
}
