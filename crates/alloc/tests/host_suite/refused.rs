//! A backend that refuses releases. Refused memory stays counted, and does not hinder other requests.

use proptest::prelude::*;
use warpline_alloc::{Block, CachingAllocator, HostCache, HostConfig, PoolOptions};

use crate::common::{Fake, FakeError, MIB, Owned, Random, check_disjoint, check_state};

const OPTIONS: [&str; 5] = [
    "policy:torch",
    "policy:torch,max_split_size_mb:20",
    "policy:torch,garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "expandable_segments:True",
    "policy:default",
];

/// Makes the backend refuse `share` percent of all releases.
fn refuse(fake: &Fake, seed: u64, share: usize) {
    fake.world().refuses = Some((Random(seed), share));
}

fn accept(fake: &Fake) {
    fake.world().refuses = None;
}

/// Checks that the reserved bytes are the bytes held from the backend, refused releases included.
fn check(allocator: &CachingAllocator<Fake>) {
    let stats = allocator.memory_stats();
    assert_eq!(allocator.memory_reserved(), allocator.backend().world().used());
    assert!(stats.refused_releases > 0 || stats.refused_bytes == 0);
    if stats.refused_releases == 0 {
        check_state(allocator);
    }
}

#[test]
fn addresses_that_are_still_mapped_are_not_mapped_again() {
    for options in ["policy:default", "expandable_segments:True"] {
        let fake = Fake::with_pages(1 << 40);
        let allocator = fake.allocator(options);
        drop([30, 50].map(|mib| allocator.malloc(mib * MIB, &0).unwrap()));
        let reserved = allocator.memory_reserved();
        refuse(&fake, 0, 100);
        allocator.empty_cache();
        let stats = allocator.memory_stats();
        assert_eq!(allocator.memory_reserved(), reserved);
        assert_eq!(stats.refused_bytes, reserved as i64);
        assert!(stats.refused_releases > 1 && stats.num_refused > 0);
        check_state(&allocator);
        // The lowest address is reused: its memory serves a request, and the range grows behind the
        // refused pages.
        let asked = fake.world().asked.len();
        let block = allocator.malloc(20 * MIB, &0).unwrap();
        assert_eq!(
            fake.world().asked.len(),
            asked,
            "{options}: refused memory does not serve the request"
        );
        drop(block);
        drop(allocator.malloc(200 * MIB, &0).unwrap());
        check_state(&allocator);
        accept(&fake);
        allocator.empty_cache();
        let stats = allocator.memory_stats();
        assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0), "{options}");
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0), "{options}");
        assert!(fake.world().mappings.is_empty() && fake.world().ranges.is_empty());
    }
}

#[test]
fn a_refused_segment_is_counted_reused_and_released_later() {
    let fake = Fake::new(100 * MIB);
    let allocator = fake.allocator("policy:torch");
    let address = allocator.malloc(40 * MIB, &0).unwrap().address();
    refuse(&fake, 0, 100);
    allocator.empty_cache();
    let stats = allocator.memory_stats();
    assert_eq!((stats.refused_releases, stats.refused_bytes), (1, 40 * MIB as i64));
    assert_eq!((stats.segment.all.current, stats.num_device_free), (1, 0));
    assert!(allocator.memory_summary().contains("Releases that were refused: 1 (40.00 MiB)"));
    check_state(&allocator);
    assert_eq!(allocator.malloc(40 * MIB, &0).unwrap().address(), address);
    // A request of another stream fails until the refused segment is released.
    assert!(allocator.malloc(90 * MIB, &1).unwrap_err().is_out_of_memory());
    assert_eq!(allocator.memory_stats().num_refused, 2);
    accept(&fake);
    drop(allocator.malloc(90 * MIB, &1).unwrap());
    let stats = allocator.memory_stats();
    assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0));
    assert!(!allocator.memory_summary().contains("refused"));
    check_state(&allocator);
}

/// Refused memory serves no request if there is no cache, if its pool was dropped, or after a
/// capture.
#[test]
fn refused_releases_of_unused_memory_are_retried() {
    for case in 0..3 {
        let fake = Fake::new(100 * MIB);
        let allocator = fake.allocator("policy:torch");
        refuse(&fake, 0, 100);
        match case {
            0 => {
                let mut config = allocator.config();
                config.caching = false;
                allocator.set_config(config);
                drop(allocator.malloc(40 * MIB, &0).unwrap());
            }
            1 => {
                let pool = allocator.new_pool(PoolOptions::default());
                let route = allocator.use_pool(&pool);
                drop(allocator.malloc(40 * MIB, &0).unwrap());
                drop((route, pool));
            }
            _ => {
                let pool = allocator.new_pool(PoolOptions::default());
                let capture = allocator.capture_to(&pool, &0);
                drop(allocator.malloc(40 * MIB, &0).unwrap());
                drop((pool, capture));
            }
        }
        let reserved = allocator.memory_reserved();
        assert_eq!((reserved, fake.world().used()), (40 * MIB, 40 * MIB), "case {case}");
        let stats = allocator.memory_stats();
        assert_eq!((stats.refused_releases, stats.refused_bytes), (1, 40 * MIB as i64));
        accept(&fake);
        drop(allocator.malloc(80 * MIB, &0).unwrap());
        assert_eq!(allocator.memory_stats().refused_releases, 0, "case {case}");
        allocator.empty_cache();
        assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0), "case {case}");
    }
}

#[test]
fn a_cache_of_host_memory_keeps_refused_releases() {
    let fake = Fake::new(1 << 30);
    let cache = HostCache::new(fake.clone(), HostConfig::default());
    drop([3 * MIB, 5 * MIB].map(|bytes| cache.alloc(bytes).unwrap()));
    refuse(&fake, 0, 100);
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.refused_releases, stats.refused_bytes), (2, 8 * MIB as u64));
    assert_eq!(stats.allocated_bytes.current as usize, fake.world().used());
    assert_eq!((stats.num_host_free, stats.num_refused), (0, 2));
    // The segment serves a request, and its release is retried later.
    let block = cache.alloc(5 * MIB).unwrap();
    assert_eq!(cache.stats().num_host_alloc, 2);
    accept(&fake);
    cache.empty_cache();
    assert_eq!(cache.stats().refused_bytes, 5 * MIB as u64);
    drop(block);
    cache.empty_cache();
    let stats = cache.stats();
    assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0));
    assert_eq!((stats.allocated_bytes.current, fake.world().used()), (0, 0));
}

#[test]
fn a_stream_that_cannot_be_waited_for_keeps_only_its_own_memory() {
    for options in OPTIONS {
        let fake = Fake::with_pages(1 << 40);
        fake.world().foreign = vec![7];
        let allocator = fake.allocator(options);
        let foreign = allocator.malloc(40 * MIB, &7).unwrap();
        let kept = allocator.memory_reserved();
        let own = allocator.malloc(40 * MIB, &0).unwrap();
        drop((foreign, own));
        allocator.empty_cache();
        assert!(allocator.memory_reserved() <= kept, "{options}");
        // Of these two blocks, only the block that the other stream uses stays reserved.
        let [used, unused] = [0, 1].map(|stream| allocator.malloc(40 * MIB, &stream).unwrap());
        let before = allocator.memory_reserved();
        used.record_stream(&7);
        drop((used, unused));
        allocator.empty_cache();
        assert!(allocator.memory_reserved() < before, "{options}");
        check_state(&allocator);
    }
}

#[test]
fn a_failed_event_query_does_not_block_later_events() {
    let fake = Fake::new(1 << 30);
    let allocator = fake.allocator("policy:torch");
    let blocks = [0, 1].map(|_| allocator.malloc(40 * MIB, &0).unwrap());
    drop(allocator.malloc(512, &0).unwrap());
    for block in blocks {
        block.record_stream(&1);
        drop(block);
    }
    // The first query fails, later queries succeed.
    let calls = fake.world().calls;
    fake.world().fail_calls = Some((calls..calls + 1, FakeError::Fault));
    let _hit = allocator.malloc(512, &0).unwrap();
    assert_eq!(allocator.memory_stats().active.all.current, 2);
}

/// The fake backend fails if pages are unmapped while work uses them.
#[test]
fn unrecorded_work_is_waited_for_before_pages_are_released() {
    let fake = Fake::with_pages(1 << 40);
    fake.world().waits_for_device = true;
    let allocator = fake.allocator("policy:default");
    let untold = |bytes| {
        let block = allocator.malloc(bytes, &0).unwrap();
        fake.launch_on(9, &block);
    };
    untold(40 * MIB);
    fake.world().fail_device_wait = Some(FakeError::Fault);
    let reserved = allocator.memory_reserved();
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), reserved, "memory that may be in use was released");
    check_state(&allocator);
    fake.world().fail_device_wait = None;
    allocator.empty_cache();
    assert_eq!((allocator.memory_reserved(), fake.world().device_waits), (0, 1));
    // The drop of the allocator waits too.
    untold(40 * MIB);
    drop(allocator);
    assert_eq!(fake.world().device_waits, 2);
    assert_eq!(fake.world().used(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Malloc(usize, u64),
    Free(usize),
    UseOn(usize, u64),
    Untold(usize),
    Complete(u64),
    EmptyCache,
    Refuse(usize),
    Pool(bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![1usize..4096, 1usize..3 * MIB, MIB..40 * MIB];
    prop_oneof![
        8 => (bytes, 0u64..3).prop_map(|(bytes, stream)| Step::Malloc(bytes, stream)),
        6 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), 0u64..3).prop_map(|(at, stream)| Step::UseOn(at, stream)),
        1 => any::<usize>().prop_map(Step::Untold),
        2 => (0u64..3).prop_map(Step::Complete),
        2 => Just(Step::EmptyCache),
        2 => prop_oneof![Just(0), Just(30), Just(100)].prop_map(Step::Refuse),
        1 => any::<bool>().prop_map(Step::Pool),
    ]
}

struct Program {
    fake: Fake,
    allocator: CachingAllocator<Fake>,
    live: Vec<Block<Fake>>,
    owned: Owned,
}

impl Program {
    fn step(&mut self, step: &Step, seed: u64) {
        let Self { fake, allocator, live, owned } = self;
        match *step {
            Step::Malloc(bytes, stream) => match allocator.malloc(bytes, &stream) {
                Ok(block) => {
                    owned.take(fake, &block);
                    live.push(block);
                }
                Err(error) => assert!(error.is_out_of_memory(), "{error}"),
            },
            Step::Free(at) if !live.is_empty() => {
                owned.free(fake, live.swap_remove(at % live.len()));
            }
            Step::UseOn(at, stream) if !live.is_empty() => {
                let block = &live[at % live.len()];
                block.record_stream(&stream);
                fake.launch_on(stream, block);
            }
            // Unrecorded uses are allowed only if the backend can wait for the device.
            Step::Untold(at) if !live.is_empty() && fake.world().waits_for_device => {
                fake.launch_on(9, &live[at % live.len()]);
            }
            Step::Complete(stream) => fake.complete(stream),
            Step::EmptyCache => allocator.empty_cache(),
            Step::Refuse(share) => refuse(fake, seed, share),
            Step::Pool(use_on_oom) => {
                let pool = allocator.new_pool(PoolOptions { use_on_oom, no_split: false });
                let _route = allocator.use_pool(&pool);
                drop(allocator.malloc(3 * MIB, &1));
            }
            _ => {}
        }
        check_disjoint(&self.live);
        check(&self.allocator);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn after_refused_releases_no_byte_is_allocated_twice_and_all_memory_is_released_in_the_end(
        steps in prop::collection::vec(any_step(), 1..120),
        options in prop::sample::select(&OPTIONS[..]),
        pages in prop::bool::weighted(0.8),
        waits_for_device in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let fake = if pages { Fake::with_pages(160 * MIB) } else { Fake::new(160 * MIB) };
        fake.world().waits_for_device = waits_for_device;
        let allocator = fake.allocator(options);
        let (live, owned) = (Vec::new(), Owned::default());
        let mut program = Program { fake: fake.clone(), allocator, live, owned };
        for (at, step) in steps.iter().enumerate() {
            program.step(step, seed.wrapping_add(at as u64));
        }
        accept(&fake);
        while !program.live.is_empty() {
            program.step(&Step::Free(0), 0);
        }
        (0..3).for_each(|stream| fake.complete(stream));
        program.allocator.empty_cache();
        let stats = program.allocator.memory_stats();
        prop_assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0));
        prop_assert_eq!(program.allocator.memory_reserved(), 0);
        check_state(&program.allocator);
        drop(program);
        let world = fake.world();
        prop_assert_eq!(world.used(), 0);
        prop_assert!(world.ranges.is_empty() && world.mappings.is_empty());
        prop_assert_eq!(world.events_live, 0);
    }

    #[test]
    fn a_cache_of_host_memory_settles_after_refused_releases(
        steps in prop::collection::vec((0usize..5, any::<usize>()), 1..120),
        most in prop::option::of(0usize..20 * MIB),
        seed in any::<u64>(),
    ) {
        let fake = Fake::new(100 * MIB);
        let mut config = HostConfig::default();
        config.max_cached_size = most;
        let cache = HostCache::new(fake.clone(), config);
        let mut live = Vec::new();
        for (at, &(kind, n)) in steps.iter().enumerate() {
            match kind {
                0 | 1 => live.extend(cache.alloc(1 + n % [4096, MIB, 20 * MIB][n % 3]).ok()),
                2 if !live.is_empty() => drop(live.swap_remove(n % live.len())),
                3 => cache.empty_cache(),
                _ => refuse(&fake, seed.wrapping_add(at as u64), [0, 50, 100][n % 3]),
            }
            prop_assert_eq!(cache.stats().allocated_bytes.current as usize, fake.world().used());
            let mut spans: Vec<(u64, usize)> =
                live.iter().map(|b| (b.memory().address + b.offset() as u64, b.size())).collect();
            spans.sort_unstable();
            prop_assert!(spans.windows(2).all(|p| p[0].0 + p[0].1 as u64 <= p[1].0));
        }
        accept(&fake);
        live.clear();
        cache.empty_cache();
        let stats = cache.stats();
        prop_assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0));
        prop_assert_eq!((stats.allocated_bytes.current, fake.world().used()), (0, 0));
    }
}
