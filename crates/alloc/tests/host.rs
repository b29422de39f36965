//! The cache of page-locked host memory.

mod common;

use common::{Fake, FakeError, MIB};
use warpline_alloc::{AllocError, HostCache};

#[test]
fn a_freed_block_is_used_again_by_its_size_class() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
    let block = cache.alloc(1000).unwrap();
    assert_eq!((block.requested(), block.size(), block.memory().bytes), (1000, 1024, 1024));
    let address = block.memory().address;
    drop(block);
    assert_eq!(cache.alloc(513).unwrap().memory().address, address);
    assert_ne!(cache.alloc(1025).unwrap().memory().address, address);
    assert_ne!(cache.alloc(512).unwrap().memory().address, address);
    let stats = cache.stats();
    assert_eq!((stats.num_host_alloc, stats.num_host_free), (3, 0));
}

#[test]
fn not_while_a_stream_uses_it() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
    let block = cache.alloc(MIB).unwrap();
    let address = block.memory().address;
    for stream in [1, 2] {
        block.record_use(&stream);
        block.record_use(&stream);
        fake.launch(stream);
    }
    drop(block);
    assert_eq!(fake.world().events_made, 2);
    assert_eq!(cache.stats().active_requests.current, 1);
    assert_ne!(cache.alloc(MIB).unwrap().memory().address, address);
    fake.complete(1);
    // Let go of the other block's address by holding it.
    let held = cache.alloc(MIB).unwrap();
    assert_ne!(held.memory().address, address);
    fake.complete(2);
    assert_eq!(cache.alloc(MIB).unwrap().memory().address, address);
    drop(held);
    assert_eq!(cache.stats().active_requests.current, 0);
}

#[test]
fn the_statistics_are_exact() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
    let a = cache.alloc(3000).unwrap();
    drop(cache.alloc(5000).unwrap());
    let stats = cache.stats();
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (2, 4096 + 8192));
    assert_eq!((stats.active_requests.current, stats.active_bytes.current), (1, 4096));
    assert_eq!((stats.active_bytes.peak, stats.active_bytes.freed), (4096 + 8192, 8192));
    assert_eq!((stats.num_host_alloc, stats.host_alloc_time.count), (2, 2));
    let time = stats.host_alloc_time;
    assert!(time.min <= time.avg() && time.avg() <= time.max && time.max <= time.total);
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (1, 4096));
    assert_eq!((stats.num_host_free, stats.host_free_time.count), (1, 1));
    cache.reset_peak_stats();
    cache.reset_accumulated_stats();
    let stats = cache.stats();
    assert_eq!((stats.active_bytes.peak, stats.active_bytes.allocated), (4096, 0));
    assert_eq!((stats.num_host_alloc, stats.num_host_free), (0, 0));
    drop(a);
    assert_eq!(cache.stats().active_bytes.freed, 4096);
}

#[test]
fn empty_cache_leaves_what_is_in_use() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
    let held = cache.alloc(512).unwrap();
    let pending = cache.alloc(1024).unwrap();
    pending.record_use(&1);
    fake.launch(1);
    drop(pending);
    drop(cache.alloc(2048).unwrap());
    cache.empty_cache();
    assert_eq!(fake.world().used(), 512 + 1024);
    fake.complete(1);
    cache.empty_cache();
    assert_eq!(fake.world().used(), 512);
    drop(held);
}

#[test]
fn under_pressure_the_cache_is_emptied_and_streams_waited_for() {
    let fake = Fake::new(4096);
    let cache = HostCache::new(fake.clone());
    drop(cache.alloc(1024).unwrap());
    let big = cache.alloc(4096).unwrap();
    assert_eq!(fake.world().used(), 4096, "the 1024 went back");
    let address = big.memory().address;
    big.record_use(&1);
    fake.launch(1);
    drop(big);
    assert_eq!(cache.alloc(4096).unwrap().memory().address, address);
}

#[test]
fn failures_are_typed_and_harmless() {
    let fake = Fake::new(4096);
    let cache = HostCache::new(fake.clone());
    let held = cache.alloc(4096).unwrap();
    let error = cache.alloc(1).unwrap_err();
    assert_eq!(error.backend::<FakeError>(), Some(&FakeError::OutOfMemory));
    let error = cache.alloc(usize::MAX).unwrap_err();
    assert!(matches!(error, AllocError::SizeOverflow { bytes: usize::MAX, .. }), "{error}");
    drop(held);
    assert_eq!(cache.alloc(0).unwrap().requested(), 0);
    assert_eq!(cache.stats().active_requests.current, 0);
}

#[test]
fn a_lost_device_keeps_nothing() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
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
fn the_cache_waits_for_streams_before_its_memory_goes() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
    let block = cache.alloc(512).unwrap();
    block.record_use(&1);
    fake.launch(1);
    drop(cache);
    assert_eq!(fake.world().used(), 512);
    drop(block);
    assert_eq!(fake.world().used(), 0);
    assert_eq!(fake.world().syncs, 1);
}

#[test]
fn threads_share_a_cache() {
    let fake = Fake::new(1 << 40);
    let cache = HostCache::new(fake.clone());
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
