//! Misuse by callers and faults of backends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use warpline_alloc::{
    AllocError, AllocatorConfig, Backend, CachingAllocator, HostCache, HostConfig, PoolOptions,
    StreamBackend, VirtualMemory,
};

use crate::common::{Event, Fake, FakeError, MIB, Memory, check_disjoint, check_state};

#[test]
fn an_observer_is_not_notified_of_its_own_failure() {
    let allocator = Fake::new(50 * MIB).allocator("");
    let (inner, calls) = (allocator.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    allocator.on_out_of_memory(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        assert!(inner.malloc(60 * MIB, &0).is_err());
    });
    assert!(allocator.malloc(60 * MIB, &0).is_err());
    assert_eq!((calls.load(Ordering::Relaxed), allocator.memory_stats().num_ooms), (1, 2));
    // The observer is called for the next failure again.
    assert!(allocator.malloc(60 * MIB, &0).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn an_observer_that_panicked_is_notified_of_the_next_failure() {
    let allocator = Fake::new(50 * MIB).allocator("");
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    allocator.on_out_of_memory(move |_| {
        assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "the first time");
    });
    let attempt = || allocator.malloc(60 * MIB, &0).is_err();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_err());
    assert!(attempt());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn a_cache_miss_in_a_callback_does_not_call_the_callback_again() {
    let allocator = Fake::new(500 * MIB).allocator("");
    let (inner, calls) = (allocator.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    allocator.on_cache_miss(move || {
        count.fetch_add(1, Ordering::Relaxed);
        inner.malloc(30 * MIB, &7).is_ok()
    });
    assert!(allocator.malloc(60 * MIB, &0).is_ok());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn requests_are_not_routed_to_a_pool_of_another_allocator() {
    let [fake, foreign] = [(); 2].map(|()| Fake::new(1 << 40));
    let [allocator, other] = [&fake, &foreign].map(|fake| fake.allocator(""));
    let pool = other.new_pool(PoolOptions::default());
    let inside = {
        let _route = other.use_pool(&pool);
        other.malloc(30 * MIB, &0).unwrap()
    };
    let routes = (allocator.use_pool(&pool), allocator.capture_to(&pool, &0));
    let block = allocator.malloc(30 * MIB, &0).unwrap();
    assert_eq!((fake.world().used(), foreign.world().used()), (30 * MIB, 30 * MIB));
    drop((block, inside, routes, pool));
    for (allocator, fake) in [(&allocator, &fake), (&other, &foreign)] {
        allocator.empty_cache();
        check_state(allocator);
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    }
    // Routes to the allocator's own pools still apply.
    let own = allocator.new_pool(PoolOptions::default());
    let _route = allocator.use_pool(&own);
    let _block = allocator.malloc(30 * MIB, &0).unwrap();
    assert_eq!(allocator.segments()[0].segment_pool_id.1, own.id());
}

/// A backend that, during a wait, requires another thread to use the allocator. This fails if the
/// allocator holds a lock that hits take during the wait.
#[derive(Clone)]
struct Waits(Fake, Arc<OnceLock<CachingAllocator<Waits>>>, Arc<AtomicUsize>);

impl StreamBackend for Waits {
    type Stream = u64;
    type Event = Event;
    type Error = FakeError;

    fn stream_id(stream: &u64) -> u64 {
        *stream
    }

    fn record(&self, stream: &u64) -> Result<Event, FakeError> {
        self.0.record(stream)
    }

    fn query(&self, event: &Event) -> Result<bool, FakeError> {
        self.0.query(event)
    }

    fn synchronize(&self, event: &Event) -> Result<(), FakeError> {
        self.0.synchronize(event)
    }

    fn wait(&self, stream: &u64, event: &Event) -> Result<(), FakeError> {
        let (allocator, (done, used)) = (self.1.get().unwrap().clone(), channel());
        thread::spawn(move || done.send(allocator.memory_allocated()));
        used.recv_timeout(Duration::from_secs(5)).expect("a wait holds a lock that hits take");
        self.2.fetch_add(1, Ordering::Relaxed);
        self.0.wait(stream, event)
    }
}

impl Backend for Waits {
    type Memory = Memory;

    fn alloc(&self, bytes: usize) -> Result<Memory, FakeError> {
        Backend::alloc(&self.0, bytes)
    }

    fn address(memory: &Memory) -> u64 {
        memory.address
    }

    fn is_out_of_memory(&self, error: &FakeError) -> bool {
        self.0.is_out_of_memory(error)
    }

    fn mem_info(&self) -> Result<(usize, usize), FakeError> {
        self.0.mem_info()
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<FakeError>> {
        self.0.virtual_memory()
    }
}

#[test]
fn waits_are_made_without_the_lock_that_hits_take() {
    for (pages, options) in [(false, "policy:torch"), (true, "policy:default")] {
        let fake = if pages { Fake::with_pages(60 * MIB) } else { Fake::new(60 * MIB) };
        let backend = Waits(fake, Arc::default(), Arc::default());
        let allocator =
            CachingAllocator::new(backend.clone(), AllocatorConfig::parse(options).unwrap());
        assert!(backend.1.set(allocator.clone()).is_ok());
        // Nearly half of the device's memory is free on stream 0. Under `policy:torch` it lies in a
        // segment that cannot be released.
        let kept = allocator.malloc(25 * MIB, &0).unwrap();
        drop(allocator.malloc(30 * MIB, &0).unwrap());
        let rest = allocator.malloc(2 * MIB, &0).unwrap();
        let other = allocator.malloc(20 * MIB, &1).unwrap();
        assert!(pages || other.size() >= 20 * MIB);
        drop((kept, rest, other));
        assert!(backend.2.load(Ordering::Relaxed) > 0, "{options}: the allocator did not wait");
    }
}

#[test]
fn memory_of_another_stream_that_cannot_be_ordered_stays_where_it_is() {
    let fake = Fake::new(60 * MIB);
    let allocator = fake.allocator("policy:torch");
    let blocks = [20, 20, 20].map(|mib| allocator.malloc(mib * MIB - 512, &0).unwrap());
    drop(blocks);
    drop(allocator.malloc(60 * MIB, &0).unwrap());
    let block = allocator.malloc(5 * MIB, &0).unwrap();
    fake.world().fail_record = Some(FakeError::Fault);
    let before = allocator.memory_stats();
    assert!(allocator.malloc(50 * MIB, &1).unwrap_err().is_out_of_memory());
    check_state(&allocator);
    let after = allocator.memory_stats();
    assert_eq!(before.allocation, after.allocation);
    assert_eq!(before.inactive_split, after.inactive_split);
    fake.world().fail_record = None;
    assert_eq!(allocator.malloc(50 * MIB, &1).unwrap().address(), block.address() + 5 * MIB as u64);
}

#[test]
fn unused_address_ranges_are_released_for_new_ranges() {
    for options in ["policy:default", "expandable_segments:True"] {
        let fake = Fake::with_pages(100 * MIB);
        fake.world().max_ranges = 1;
        let allocator = fake.allocator(options);
        drop(allocator.malloc(30 * MIB, &0).unwrap());
        let block = allocator.malloc(30 * MIB, &1).unwrap();
        let error = allocator.malloc(30 * MIB, &2).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        drop(block);
        assert!(allocator.malloc(30 * MIB, &2).is_ok());
    }
}

#[test]
fn a_failed_memory_query_names_the_request() {
    let fake = Fake::new(MIB);
    let allocator = fake.allocator("per_process_memory_fraction:0.5");
    fake.world().fail_calls = Some((0..1, FakeError::Fault));
    let error = allocator.malloc(1000, &0).unwrap_err();
    assert_eq!(error.to_string(), "allocating 1000 bytes failed: Fault");
}

#[test]
fn host_requests_of_any_size_are_counted_right() {
    let cache = HostCache::new(Fake::new(1 << 30), HostConfig::default());
    drop(cache.alloc(1000).unwrap());
    for bytes in [usize::MAX, usize::MAX - 8191, 1 << 63, (1 << 60) + 1, 1 << 60, 1 << 59] {
        assert!(cache.alloc(bytes).is_err(), "{bytes}");
        drop(cache.alloc(3 * MIB).unwrap());
    }
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.allocations.current, stats.active_bytes.current), (0, 0));
    assert!(
        matches!(cache.alloc(1 << 60), Err(AllocError::TooLarge { requested }) if requested == 1 << 60)
    );
}

/// Tests options that can be set only through fields, not by text.
#[test]
fn odd_options_are_harmless() {
    let mut odd = Vec::new();
    for value in [0, 1, 511, 1000, MIB + 1, usize::MAX] {
        let mut config = AllocatorConfig::parse("policy:torch").unwrap();
        config.max_split_size = Some(value);
        odd.push(config.clone());
        config.max_split_size = None;
        config.max_non_split_rounding = value;
        odd.push(config.clone());
        config.large_segment_size = value;
        odd.push(config.clone());
        config.roundup_power2_divisions = [value; 16];
        odd.push(config.clone());
        config.host.reserve_segment_size = value;
        config.host.register_threads = Some(value);
        config.host.max_cached_size = Some(value);
        odd.push(config);
        let mut config = AllocatorConfig::default();
        config.page_size = value;
        odd.push(config);
    }
    for value in [-1.0, 0.0, f64::NAN, f64::INFINITY, 2.0] {
        let mut config = AllocatorConfig::default();
        config.garbage_collection_threshold = Some(value);
        config.memory_fraction = Some(0.5);
        odd.push(config.clone());
        config.memory_fraction = Some(value);
        odd.push(config.clone());
        config.memory_fraction = None;
        config.headroom_percent = Some(value);
        odd.push(config);
    }
    for config in odd {
        let fake = Fake::with_pages(300 * MIB);
        let allocator = CachingAllocator::new(fake.clone(), config.clone());
        let sizes = [1, 700, 3000, MIB + 1, 3 * MIB, 11 * MIB, 30 * MIB, 80 * MIB, 300 * MIB];
        for _ in 0..3 {
            let blocks: Vec<_> =
                sizes.iter().filter_map(|&bytes| allocator.malloc(bytes, &0).ok()).collect();
            check_disjoint(&blocks);
            check_state(&allocator);
        }
        allocator.empty_cache();
        assert_eq!(fake.world().used(), 0, "{config:?}");

        let host = HostCache::new(fake.clone(), config.host.clone());
        for _ in 0..3 {
            drop(sizes.map(|bytes| host.alloc(bytes)));
        }
        assert!(fake.world().asked.iter().all(|bytes| bytes.is_multiple_of(512)), "{config:?}");
        drop(host);
        assert_eq!(fake.world().used(), 0, "{config:?}");
    }
}

/// Uses a device that reports `usize::MAX` bytes of memory.
#[test]
fn a_device_with_maximal_memory_causes_no_overflow() {
    for options in ["policy:default", "expandable_segments:True", "policy:torch"] {
        let fake = Fake::with_pages(usize::MAX);
        for options in [options.to_owned(), format!("{options},per_process_memory_fraction:0.5")] {
            let allocator = fake.allocator(&options);
            let block = allocator.malloc(30 * MIB, &0).unwrap();
            check_disjoint([&block]);
        }
    }
}

proptest! {
    /// Parsing any text returns usable options or an error that quotes part of the text.
    #[test]
    fn any_text_gives_options_or_an_error_that_quotes_it(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "max_split_size_mb", "roundup_power2_divisions", "pinned_reserve_segment_size_mb",
            "garbage_collection_threshold", "per_process_memory_fraction", "policy", "backend",
            "large_segment_size_mb", "max_non_split_rounding_mb", "expandable_segments", ":", ":",
            ":", ",", ",", "[", "]", ">", "1", "2", "0", "0.5", "20", "256", "512", "-", "True",
            "18446744073709551615", "torch", "default", "native", "é",
            "cudaMallocAsync", "page_size_mb", "headroom_percent", " ", "\0", "NaN", "1e400",
        ]), 0..14),
    ) {
        let text = parts.concat();
        match AllocatorConfig::parse(&text) {
            Ok(config) => {
                let fake = Fake::with_pages(300 * MIB);
                let allocator = CachingAllocator::new(fake.clone(), config);
                let blocks = [1, 3000, 3 * MIB, 30 * MIB].map(|bytes| allocator.malloc(bytes, &0));
                check_state(&allocator);
                drop(blocks);
                allocator.empty_cache();
                prop_assert_eq!(fake.world().used(), 0);
            }
            Err(error) => {
                let error = error.to_string();
                let quoted = error.split('`').nth(1).unwrap_or_default();
                let plain: String = text.split_whitespace().collect();
                prop_assert!(plain.contains(quoted) && error.contains("option"), "{}", error);
            }
        }
    }
}

#[test]
fn everything_is_returned_in_any_order_of_drops() {
    for options in ["policy:torch", "expandable_segments:True", "policy:default"] {
        for order in 0..120 {
            let fake = Fake::with_pages(1 << 30);
            let allocator = fake.allocator(options);
            let pool = allocator.new_pool(PoolOptions { use_on_oom: true, no_split: false });
            let used = |allocator: &CachingAllocator<Fake>| {
                let block = allocator.malloc(5 * MIB, &0).unwrap();
                block.record_stream(&1);
                fake.launch_on(1, &block);
                block
            };
            let outside = used(&allocator);
            let route = if order % 2 == 0 {
                allocator.use_pool(&pool)
            } else {
                allocator.capture_to(&pool, &0)
            };
            let inside = used(&allocator);
            let mut all: Vec<Box<dyn std::any::Any>> = vec![
                Box::new(allocator),
                Box::new(pool),
                Box::new(route),
                Box::new(outside),
                Box::new(inside),
            ];
            let mut order = order;
            while !all.is_empty() {
                drop(all.remove(order % all.len()));
                order /= all.len() + 1;
            }
            let world = fake.world();
            assert_eq!((world.used(), world.events_live), (0, 0), "{options}");
            assert!(world.ranges.is_empty() && world.mappings.is_empty(), "{options}");
        }
    }
}

/// The README's table lists exactly the existing options.
#[test]
fn every_option_is_in_the_readme() {
    let error = AllocatorConfig::parse("none:1").unwrap_err().to_string();
    let (_, list) = error.split_once("there are ").unwrap();
    let mut options: Vec<&str> = list.split(", ").collect();
    let (_, table) = include_str!("../../README.md").split_once("\n## Options\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut rows: Vec<&str> = rows.collect();
    options.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, options);
}
