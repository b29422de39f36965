//! The cache of page-locked host memory.

use warpline_alloc::{AllocError, HostCache, HostConfig, PinnedBlock};

use crate::common::{Fake, FakeError, MIB};

/// Returns the address of a block.
fn place(block: &PinnedBlock<Fake>) -> u64 {
    block.memory().address + block.offset() as u64
}

#[test]
fn small_blocks_share_a_segment() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let [a, b, c] = [1000, 5000, 512].map(|bytes| cache.alloc(bytes).unwrap());
    assert_eq!((a.requested(), a.size(), a.offset()), (1000, 1024, 0));
    assert_eq!((b.requested(), b.size(), b.offset()), (5000, 5120, 1024));
    assert_eq!((c.size(), c.offset()), (512, 6144));
    assert_eq!(fake.world().asked, [2 * MIB]);
    // A request takes the smallest free part that fits.
    let hole = place(&a);
    drop(a);
    assert_eq!(place(&cache.alloc(1025).unwrap()), place(&c) + 512);
    assert_eq!(place(&cache.alloc(600).unwrap()), hole);
    // Adjacent free parts merge, up to the end of the segment.
    drop(c);
    drop(b);
    assert_eq!(cache.alloc(2 * MIB).unwrap().offset(), 0);
    assert_eq!(cache.stats().num_host_alloc, 1);
}

#[test]
fn a_large_block_has_a_segment_of_its_size() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let large = cache.alloc(600 * MIB + 1).unwrap();
    assert_eq!(fake.world().asked, [600 * MIB + 4096]);
    let small = cache.alloc(4096).unwrap();
    assert_ne!(small.memory().address, large.memory().address);
    let address = place(&large);
    drop(large);
    // A whole segment is reused if little of it stays unused.
    let nearly = cache.alloc(580 * MIB).unwrap();
    assert_eq!((place(&nearly), nearly.size()), (address, 580 * MIB));
    drop(nearly);
    assert_ne!(place(&cache.alloc(500 * MIB).unwrap()), address);
}

#[test]
fn the_longest_idle_memory_is_freed_before_the_cache_exceeds_the_peak() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let blocks = [100, 200, 300].map(|mib| cache.alloc(mib * MIB).unwrap());
    let [first, second, third] = blocks.each_ref().map(place);
    blocks.into_iter().for_each(drop);
    assert_eq!(fake.world().used(), 600 * MIB);
    // The headroom is 50 MiB, a twelfth of the peak of 600 MiB.
    let more = cache.alloc(120 * MIB).unwrap();
    let left: Vec<u64> = fake.world().live.keys().copied().collect();
    assert_eq!(left, [second, third, place(&more)]);
    assert_ne!(first, place(&more));
}

#[test]
fn host_memory_in_use_by_a_stream_is_not_reused() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let block = cache.alloc(MIB).unwrap();
    let address = place(&block);
    for stream in [1, 2] {
        block.record_use(&stream);
        block.record_use(&stream);
        fake.launch(stream);
    }
    drop(block);
    assert_eq!(fake.world().events_made, 2);
    assert_eq!(cache.stats().active_requests.current, 1);
    assert_ne!(place(&cache.alloc(MIB).unwrap()), address);
    fake.complete(1);
    // Keep the other block's address occupied.
    let held = cache.alloc(MIB).unwrap();
    assert_ne!(place(&held), address);
    fake.complete(2);
    assert_eq!(place(&cache.alloc(MIB).unwrap()), address);
    drop(held);
    assert_eq!(cache.stats().active_requests.current, 0);
}

/// PyTorch stops at the first pending event, on any stream.
#[test]
fn a_stuck_stream_keeps_only_its_own_blocks() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    // Test streams with events older than the events of the stuck stream, and streams with newer
    // events.
    let before = cache.alloc(20 * MIB).unwrap();
    let free_again = place(&before);
    before.record_use(&3);
    fake.launch(3);
    let stuck = cache.alloc(20 * MIB).unwrap();
    let address = place(&stuck);
    stuck.record_use(&1);
    fake.launch(1);
    drop((before, stuck));
    fake.complete(3);
    assert_eq!(place(&cache.alloc(20 * MIB).unwrap()), free_again);
    for _ in 0..50 {
        let block = cache.alloc(20 * MIB).unwrap();
        assert_ne!(place(&block), address);
        block.record_use(&2);
        fake.launch(2);
        drop(block);
        fake.complete(2);
    }
    let stats = cache.stats();
    assert_eq!(stats.num_host_alloc, 2, "the other stream's block was not reused each time");
    assert!(stats.active_requests.current <= 2);
    cache.empty_cache();
    assert_eq!(fake.world().used(), 20 * MIB);
    fake.complete(1);
    cache.empty_cache();
    assert_eq!(fake.world().used(), 0);
}

/// The cache waits first for the stream whose oldest event is the most recent, so that a stream that
/// completes soon is tried before a stuck stream.
#[test]
fn if_memory_is_short_a_stuck_stream_is_waited_for_last() {
    let fake = Fake::new(60 * MIB);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let [stuck, other] = [1, 2].map(|stream| {
        let block = cache.alloc(30 * MIB).unwrap();
        block.record_use(&stream);
        fake.launch(stream);
        (place(&block), block)
    });
    drop(stuck.1);
    drop(other.1);
    assert_eq!(place(&cache.alloc(30 * MIB).unwrap()), other.0);
    assert_eq!((fake.completed(1), fake.completed(2)), (0, 1));
}

#[test]
fn a_failed_event_query_does_not_block_other_events() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let [a, b] = [(); 2].map(|()| cache.alloc(20 * MIB).unwrap());
    for block in [&a, &b] {
        block.record_use(&1);
        fake.launch(1);
    }
    fake.world().fail_query = Some(FakeError::Fault);
    drop(a);
    drop(b);
    assert_eq!(cache.stats().active_requests.current, 2);
    fake.complete(1);
    cache.empty_cache();
    assert_eq!(cache.stats().active_requests.current, 2, "blocks of unknown state count as in use");
    fake.world().fail_query = None;
    cache.empty_cache();
    assert_eq!((cache.stats().active_requests.current, fake.world().used()), (0, 0));
}

#[test]
fn the_statistics_are_exact() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let a = cache.alloc(3000).unwrap();
    drop(cache.alloc(20 * MIB + 1).unwrap());
    let stats = cache.stats();
    let large = (20 * MIB + 512) as i64;
    let held = (22 * MIB + 4096) as i64;
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (2, held));
    assert_eq!((stats.active_requests.current, stats.active_bytes.current), (1, 3072));
    assert_eq!((stats.active_bytes.peak, stats.active_bytes.freed), (3072 + large, large));
    assert_eq!(stats.requested_bytes.current, 3000);
    assert_eq!((stats.num_host_alloc, stats.host_alloc_time.count), (2, 2));
    let time = stats.host_alloc_time;
    assert!(time.min <= time.avg() && time.avg() <= time.max && time.max <= time.total);
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (1, 2 * MIB as i64));
    assert_eq!((stats.num_host_free, stats.host_free_time.count), (1, 1));
    let map = stats.as_map();
    assert_eq!(map.len(), 4 * 4 + 2 * 5 + 2);
    assert_eq!((map["allocated_bytes.peak"], map["active_requests.allocated"]), (held, 2));
    assert_eq!((map["host_free_time.count"], map["num_host_alloc"]), (1, 2));
    assert_eq!(map["host_alloc_time.avg"], time.avg() as i64);
    cache.reset_peak_stats();
    cache.reset_accumulated_stats();
    let stats = cache.stats();
    assert_eq!((stats.active_bytes.peak, stats.active_bytes.allocated), (3072, 0));
    assert_eq!((stats.num_host_alloc, stats.num_host_free), (0, 0));
    drop(a);
    assert_eq!(cache.stats().active_bytes.freed, 3072);
}

#[test]
fn empty_cache_leaves_memory_in_use() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let held = cache.alloc(20 * MIB).unwrap();
    let pending = cache.alloc(30 * MIB).unwrap();
    pending.record_use(&1);
    fake.launch(1);
    drop(pending);
    drop(cache.alloc(40 * MIB).unwrap());
    cache.empty_cache();
    assert_eq!(fake.world().used(), 50 * MIB);
    fake.complete(1);
    cache.empty_cache();
    assert_eq!(fake.world().used(), 20 * MIB);
    drop(held);
}

#[test]
fn if_memory_is_short_the_cache_is_emptied_and_streams_are_synchronized() {
    let fake = Fake::new(20 * MIB);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    drop(cache.alloc(1024).unwrap());
    let big = cache.alloc(20 * MIB).unwrap();
    assert_eq!(fake.world().used(), 20 * MIB, "the small segment was not released");
    let address = place(&big);
    big.record_use(&1);
    fake.launch(1);
    drop(big);
    assert_eq!(place(&cache.alloc(20 * MIB).unwrap()), address);
}

/// A shared segment is larger than its first block, unless memory is short.
#[test]
fn segments_are_smaller_when_memory_is_short() {
    let fake = Fake::new(8192);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let a = cache.alloc(4096).unwrap();
    let b = cache.alloc(100).unwrap();
    assert_eq!(fake.world().asked, [4096, 4096]);
    drop((a, b));
    assert_eq!(cache.stats().allocated_bytes.current, 8192);
}

#[test]
fn failures_are_typed_and_harmless() {
    let fake = Fake::new(4096);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let held = cache.alloc(4096).unwrap();
    let error = cache.alloc(1).unwrap_err();
    assert_eq!(error.backend::<FakeError>(), Some(&FakeError::OutOfMemory));
    let error = cache.alloc(usize::MAX).unwrap_err();
    assert!(matches!(error, AllocError::TooLarge { requested: usize::MAX }), "{error}");
    drop(held);
    assert_eq!(cache.alloc(0).unwrap().requested(), 0);
    assert_eq!(cache.stats().active_requests.current, 0);
}

#[test]
fn a_lost_device_keeps_no_memory() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let [a, b] = [cache.alloc(512).unwrap(), cache.alloc(512).unwrap()];
    a.record_use(&1);
    b.record_use(&1);
    fake.launch(1);
    drop(a);
    fake.world().fail_query = Some(FakeError::Lost);
    fake.world().fail_record = Some(FakeError::Lost);
    drop(b);
    cache.empty_cache();
    assert_eq!(fake.world().used(), 0);
    assert_eq!(fake.world().events_live, 0);
}

#[test]
fn the_cache_waits_for_streams_before_it_releases_memory() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    let block = cache.alloc(512).unwrap();
    block.record_use(&1);
    fake.launch(1);
    drop(cache);
    assert_eq!(fake.world().used(), 2 * MIB);
    drop(block);
    assert_eq!(fake.world().used(), 0);
    assert_eq!(fake.world().syncs, 1);
}

#[test]
fn threads_share_a_cache() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    std::thread::scope(|scope| {
        for stream in 0..4 {
            let cache = cache.clone();
            scope.spawn(move || {
                for i in 0..500 {
                    let block = cache.alloc(1 << (i % 12)).unwrap();
                    block.record_use(&stream);
                }
            });
        }
    });
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (2000, 2000));
    assert_eq!(fake.world().used(), 0);
}
