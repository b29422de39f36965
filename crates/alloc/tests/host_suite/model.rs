//! Random programs against a simple model: no block gets memory that may still be in use, and the
//! statistics and snapshots agree with the model.

use proptest::prelude::*;
use warpline_alloc::{
    AllocatorConfig, Block, BlockState, CachingAllocator, Policy, PoolKind, PoolOptions,
};

use crate::common::{
    Fake, FakeError, MIB, Physical, Random, check_disjoint, check_state, physical,
};

#[derive(Clone, Debug)]
enum Step {
    Malloc {
        bytes: usize,
        stream: u64,
    },
    Free(usize),
    /// Enqueues work that uses a block, and records the use.
    Use {
        block: usize,
        stream: u64,
    },
    Complete(u64),
    EmptyCache,
    Fault(Option<FakeError>),
    RecordFault(bool),
    QueryFault(bool),
    MapFault(bool),
    Capacity(usize),
    /// Sets whether the backend can wait for the whole device.
    DeviceWaits(bool),
    NewPool {
        use_on_oom: bool,
        no_split: bool,
    },
    DropPool,
    /// Routes a stream's requests, or this thread's, to the newest pool.
    Route(Option<u64>),
    DropRoute,
    Capture(u64),
    EndCapture,
    Snapshot,
    Config(&'static str),
    ResetPeaks,
    ResetSums,
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        8 => 1usize..8192,
        4 => 8192usize..(2 * MIB),
        4 => MIB..(12 * MIB),
        2 => (10 * MIB)..(70 * MIB),
        1 => Just((1usize << 60) - 1),
        1 => Just(usize::MAX),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![Just(None), Just(Some(FakeError::Fault)), Just(None)];
    prop_oneof![
        12 => (bytes(), 0u64..3).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        10 => any::<prop::sample::Index>().prop_map(|i| Step::Free(i.index(1 << 20))),
        5 => (any::<prop::sample::Index>(), 0u64..4)
            .prop_map(|(i, stream)| Step::Use { block: i.index(1 << 20), stream }),
        4 => (0u64..4).prop_map(Step::Complete),
        1 => Just(Step::EmptyCache),
        1 => fault.prop_map(Step::Fault),
        1 => any::<bool>().prop_map(Step::RecordFault),
        1 => any::<bool>().prop_map(Step::QueryFault),
        1 => any::<bool>().prop_map(Step::MapFault),
        1 => any::<(bool, bool)>()
            .prop_map(|(use_on_oom, no_split)| Step::NewPool { use_on_oom, no_split }),
        1 => Just(Step::DropPool),
        1 => proptest::option::of(0u64..3).prop_map(Step::Route),
        2 => Just(Step::DropRoute),
        1 => (0u64..3).prop_map(Step::Capture),
        2 => Just(Step::EndCapture),
        1 => Just(Step::Snapshot),
        1 => options().prop_map(Step::Config),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
        1 => (50usize..400).prop_map(|mib| Step::Capacity(mib * MIB)),
    ]
}

/// Steps with blocks of several pages each, so that free memory is fragmented.
fn step_in_pages() -> impl Strategy<Value = Step> {
    let pages = (1usize..12).prop_map(|pages| pages * 4 * MIB);
    let bytes = prop_oneof![1usize..MIB, MIB..(8 * MIB), (8 * MIB)..(60 * MIB), pages];
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        20 => (bytes, 0u64..3).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        16 => index().prop_map(|i| Step::Free(i.index(1 << 20))),
        2 => (index(), 0u64..4)
            .prop_map(|(i, stream)| Step::Use { block: i.index(1 << 20), stream }),
        3 => (0u64..4).prop_map(Step::Complete),
        1 => prop_oneof![Just(Step::EmptyCache), Just(Step::Snapshot)],
        1 => any::<bool>().prop_map(Step::MapFault),
    ]
}

/// Steps with blocks of several pages each, and changes of the options between them: one heap
/// contains pages of several sizes, segments and memory of the driver's pools.
fn step_under_changing_options() -> impl Strategy<Value = Step> {
    let capacity = (50usize..400).prop_map(|mib| Step::Capacity(mib * MIB));
    prop_oneof![
        40 => step_in_pages(),
        3 => options_of_pages().prop_map(Step::Config),
        1 => prop_oneof![capacity, any::<bool>().prop_map(Step::DeviceWaits)],
    ]
}

fn options_of_pages() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "page_size_mb:2,headroom_percent:0",
        "page_size_mb:8",
        "page_size_mb:32,headroom_percent:5",
        "page_size_mb:16,headroom_percent:100,per_process_memory_fraction:0.6",
        "policy:torch",
        "expandable_segments:True",
        "policy:default,max_split_size_mb:20",
        "backend:cudaMallocAsync",
    ])
}

fn options() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "policy:torch",
        "max_split_size_mb:20",
        "max_split_size_mb:32,max_non_split_rounding_mb:40",
        "policy:torch,roundup_power2_divisions:4",
        "policy:torch,garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
        "large_segment_size_mb:32",
        "expandable_segments:True",
        "expandable_segments:True,per_process_memory_fraction:0.5",
        "policy:default",
        "policy:default,roundup_power2_divisions:4",
        "policy:default,page_size_mb:8,headroom_percent:5",
        "policy:default,page_size_mb:2,headroom_percent:0",
        "policy:default,per_process_memory_fraction:0.5",
        "policy:default,max_split_size_mb:20",
        "expandable_segments:True,max_split_size_mb:20",
        "policy:default,garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
        "backend:cudaMallocAsync",
    ])
}

fn overlap(a: &Physical, b: &Physical) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 == y.0 && x.1 < y.2 && y.1 < x.2))
}

/// A live block, its memory, and its uses by other streams, as (stream, operation number).
struct Live {
    block: Block<Fake>,
    memory: Physical,
    uses: Vec<(u64, u64)>,
}

/// Freed memory that streams may still use, and the number of waits enqueued before the free.
struct Busy {
    memory: Physical,
    uses: Vec<(u64, u64)>,
    at: usize,
}

/// Memory freed in the order of a stream, with the number of operations of that stream and of waits
/// enqueued before the free.
struct Freed {
    memory: Physical,
    stream: u64,
    work: u64,
    at: usize,
}

/// Returns whether the waits, without the first `at` of them, order `stream` after `other`.
fn comes_after(waits: &[(u64, u64)], stream: u64, other: u64, at: usize) -> bool {
    let mut reached = vec![other];
    for (waiter, waited) in &waits[at..] {
        if reached.contains(waited) {
            reached.push(*waiter);
        }
    }
    reached.contains(&stream)
}

#[derive(Default)]
struct Model {
    live: Vec<Live>,
    busy: Vec<Busy>,
    freed: Vec<Freed>,
    submitted: [u64; 4],
    completed: [u64; 4],
    /// Number of allocations since the sums were reset, and the bytes allocated at the reset.
    mallocs: i64,
    base: i64,
    was_reset: bool,
    peak_allocated: i64,
}

impl Model {
    /// Removes freed memory whose uses have completed.
    fn settle(&mut self) {
        let completed = self.completed;
        let open = |(stream, at): &(u64, u64)| completed[*stream as usize] < *at;
        self.busy.retain(|busy| busy.uses.iter().any(open));
    }

    /// Takes over the completions of waits on the host.
    fn sync_completed(&mut self, fake: &Fake) {
        for stream in 0..4 {
            self.completed[stream as usize] = fake.completed(stream);
        }
        self.settle();
    }
}

/// Checks that the snapshot's allocated blocks are the live blocks, and that its segments add up to
/// the reserved bytes.
fn check_snapshot(allocator: &CachingAllocator<Fake>, live: &[Live]) {
    let snapshot = allocator.snapshot();
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let allocated = blocks.filter(|block| block.state == BlockState::Allocated);
    let mut found: Vec<_> =
        allocated.map(|block| (block.address, block.size, block.requested_size)).collect();
    let live = live.iter().map(|live| &live.block).filter(|block| block.size() > 0);
    let mut wanted: Vec<_> =
        live.map(|block| (block.address(), block.size(), block.requested())).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    let stats = allocator.memory_stats();
    let total: usize = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(total as i64, stats.reserved_bytes.all.current);
}

fn run(options: &str, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let fake = Fake::with_pages(300 * MIB);
    let allocator = fake.allocator(options);
    let config = allocator.config();
    let remaps = config.policy == Policy::Default;
    let small = if remaps { MIB / 2 } else { MIB };
    let mut reconfigured = false;
    let mut model = Model::default();
    let mut pools = Vec::new();
    let mut routes = Vec::new();
    let mut capture = None;
    let mut had_pools = false;
    let mut had_driver_pools = config.policy == Policy::CudaMallocAsync;
    for step in steps {
        match step {
            Step::Malloc { bytes, stream } => {
                let before = allocator.memory_stats();
                let got = allocator.malloc(bytes, &stream);
                // A wait inside `malloc` may have completed work.
                model.sync_completed(&fake);
                match got {
                    Ok(block) if bytes == 0 => prop_assert_eq!(block.address(), 0),
                    Ok(block) => {
                        prop_assert!(block.size() >= bytes);
                        // The driver's pools do not round sizes, and a cache may reuse their memory
                        // after the options change.
                        prop_assert!(block.size() % 512 == 0 || had_driver_pools);
                        prop_assert_eq!(block.address() % 512, 0);
                        prop_assert_eq!((block.requested(), block.stream_id()), (bytes, stream));
                        let memory = physical(&fake, block.address(), block.size());
                        let waits = fake.world().waits.clone();
                        for busy in &model.busy {
                            // Reuse is safe if the use has completed, or if waits order `stream`
                            // after the using stream.
                            let ordered = |(user, work): &(u64, u64)| {
                                model.completed[*user as usize] >= *work
                                    || comes_after(&waits, stream, *user, busy.at)
                            };
                            prop_assert!(
                                !overlap(&memory, &busy.memory) || busy.uses.iter().all(ordered),
                                "{:x?} was given to {stream} while {:?} may use it",
                                busy.memory,
                                busy.uses
                            );
                        }
                        for freed in &model.freed {
                            prop_assert!(
                                !overlap(&memory, &freed.memory)
                                    || model.completed[freed.stream as usize] >= freed.work
                                    || comes_after(&waits, stream, freed.stream, freed.at),
                                "{:x?} went from stream {} to {stream} without a wait",
                                freed.memory,
                                freed.stream
                            );
                        }
                        // The block's stream is now the last stream to use this memory. A record of
                        // several pieces stays, because the block may cover only some of them.
                        model.freed.retain(|freed| {
                            !overlap(&memory, &freed.memory) || freed.memory.len() > 1
                        });
                        model.mallocs += 1;
                        model.live.push(Live { block, memory, uses: Vec::new() });
                    }
                    Err(error) => {
                        let after = allocator.memory_stats();
                        prop_assert_eq!(before.allocation, after.allocation, "{}", error);
                        prop_assert_eq!(before.allocated_bytes, after.allocated_bytes);
                    }
                }
            }
            Step::Free(i) if !model.live.is_empty() => {
                let live = model.live.swap_remove(i % model.live.len());
                let Live { memory, .. } = &live;
                let (memory, stream) = (memory.clone(), live.block.stream_id());
                let at = fake.world().waits.len();
                let work = model.submitted[stream as usize];
                model.freed.push(Freed { memory: memory.clone(), stream, work, at });
                drop(live.block);
                // The event of the free covers all work enqueued on a stream so far, including work
                // after the recorded use.
                let uses = live
                    .uses
                    .iter()
                    .map(|(stream, _)| (*stream, model.submitted[*stream as usize]))
                    .collect();
                model.busy.push(Busy { memory, uses, at });
                model.settle();
            }
            Step::Use { block, stream } if !model.live.is_empty() => {
                let at = block % model.live.len();
                let live = &mut model.live[at];
                fake.launch(stream);
                model.submitted[stream as usize] += 1;
                live.block.record_stream(&stream);
                if live.block.stream_id() != stream {
                    live.uses.push((stream, model.submitted[stream as usize]));
                }
            }
            Step::Complete(stream) => {
                fake.complete(stream);
                model.sync_completed(&fake);
            }
            Step::EmptyCache => {
                allocator.empty_cache();
                model.sync_completed(&fake);
            }
            Step::Fault(error) => fake.world().fail_alloc = error,
            Step::RecordFault(fails) => {
                fake.world().fail_record = fails.then_some(FakeError::Fault);
            }
            Step::QueryFault(fails) => fake.world().fail_query = fails.then_some(FakeError::Fault),
            Step::MapFault(fails) => fake.world().fail_map = fails.then_some(FakeError::Fault),
            Step::NewPool { use_on_oom, no_split } => {
                had_pools = true;
                pools.push(allocator.new_pool(PoolOptions { use_on_oom, no_split }));
            }
            Step::DropPool => drop(pools.pop()),
            Step::Route(stream) => {
                let pool = pools.last();
                routes.extend(pool.map(|pool| match stream {
                    Some(stream) => allocator.use_pool_for(pool, &stream),
                    None => allocator.use_pool(pool),
                }));
            }
            Step::DropRoute => drop(routes.pop()),
            Step::Capture(stream) if capture.is_none() && !pools.is_empty() => {
                capture = pools.last().map(|pool| allocator.capture_to(pool, &stream));
                fake.world().capturing = Some(stream);
            }
            Step::EndCapture => {
                fake.world().capturing = None;
                capture = None;
            }
            Step::Config(options) => {
                reconfigured = true;
                let config = AllocatorConfig::parse(options).unwrap();
                had_driver_pools |= config.policy == Policy::CudaMallocAsync;
                allocator.set_config(config);
            }
            Step::ResetPeaks => {
                allocator.reset_peak_stats();
                model.peak_allocated = allocator.memory_stats().allocated_bytes.all.current;
            }
            Step::ResetSums => {
                allocator.reset_accumulated_stats();
                (model.mallocs, model.was_reset) = (0, true);
                model.base = allocator.memory_stats().allocated_bytes.all.current;
            }
            Step::Snapshot => check_snapshot(&allocator, &model.live),
            Step::Capacity(bytes) => {
                let mut world = fake.world();
                world.capacity = bytes.max(world.used());
            }
            Step::DeviceWaits(waits) => fake.world().waits_for_device = waits,
            Step::Free(_) | Step::Use { .. } | Step::Capture(_) => {}
        }
        // During a capture, the backend still has the memory of released segments.
        if capture.is_none() {
            check_state(&allocator);
            prop_assert_eq!(allocator.memory_reserved(), fake.world().used());
        }
        check_disjoint(model.live.iter().map(|live| &live.block));
        let stats = allocator.memory_stats();
        let sum = |kind: Option<PoolKind>| -> i64 {
            let blocks = model.live.iter().map(|live| live.block.size());
            let of = |size: &usize| match kind {
                None => true,
                // The size shows the pool: a block of the large pool is never split down to the
                // small pool's limit.
                Some(PoolKind::Small) => *size <= small,
                Some(PoolKind::Large) => *size > small,
            };
            blocks.filter(of).sum::<usize>() as i64
        };
        let allocated = stats.allocated_bytes;
        prop_assert_eq!(allocated.all.current, sum(None));
        // When memory runs short, one pool serves requests of the other. Private pools have other
        // size limits.
        let pressed = stats.num_alloc_retries > 0 || model.was_reset;
        if !pressed && !had_pools && !reconfigured {
            prop_assert_eq!(allocated.small_pool.current, sum(Some(PoolKind::Small)));
            prop_assert_eq!(allocated.large_pool.current, sum(Some(PoolKind::Large)));
        }
        model.peak_allocated = model.peak_allocated.max(sum(None));
        prop_assert_eq!(allocated.all.peak, model.peak_allocated);
        let both = allocated.all.allocated - allocated.all.freed;
        prop_assert_eq!(both, allocated.all.current - model.base);
        prop_assert_eq!(stats.allocation.all.allocated, model.mallocs);
        prop_assert_eq!(stats.allocation.all.current, model.live.len() as i64);
        if !remaps
            && !config.expandable_segments
            && !reconfigured
            && !model.was_reset
            && capture.is_none()
        {
            let live = fake.world().live.len() as i64;
            prop_assert_eq!(stats.num_device_alloc - stats.num_device_free, live);
        }
    }
    // At the end, all memory returns to the backend.
    {
        let mut world = fake.world();
        (world.fail_record, world.fail_query, world.capturing) = (None, None, None);
    }
    model.live.clear();
    drop((capture, routes, pools));
    allocator.empty_cache();
    prop_assert_eq!(allocator.memory_stats().active.all.current, 0);
    prop_assert_eq!(fake.world().used(), 0);
    drop(allocator);
    prop_assert!(fake.world().ranges.is_empty() && fake.world().mappings.is_empty());
    prop_assert_eq!(fake.world().events_live, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_agree_with_the_model(
        options in options(),
        steps in proptest::collection::vec(step(), 1..150),
    ) {
        run(options, steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn blocks_in_pieces_agree_with_the_model(
        steps in proptest::collection::vec(step_in_pages(), 1..400),
    ) {
        run("policy:default", steps)?;
    }

    #[test]
    fn options_that_change_while_blocks_live_agree_with_the_model(
        options in options_of_pages(),
        steps in proptest::collection::vec(step_under_changing_options(), 1..400),
    ) {
        run(options, steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Runs programs long enough to split and merge blocks many times.
    #[test]
    #[ignore = "takes a while: a soak test"]
    fn soak_long_programs_agree_with_the_model(
        options in options(),
        steps in proptest::collection::vec(step(), 500..2000),
    ) {
        run(options, steps)?;
    }
}

/// PyTorch's fuzz test: blocks keep their contents during ten thousand operations.
#[test]
fn contents_survive_ten_thousand_operations() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    // Last writer of each unit of 512 bytes.
    let mut memory = std::collections::HashMap::new();
    let mut live: Vec<(Block<Fake>, u64)> = Vec::new();
    let units = |block: &Block<Fake>| {
        let from = block.address();
        (0..block.size() as u64 / 512).map(move |i| from + i * 512)
    };
    let mut random = Random(1);
    for step in 0..10_000u64 {
        let pick = random.below(usize::MAX);
        if !live.is_empty() && (pick.is_multiple_of(2) || live.len() > 100) {
            let (block, stamp) = live.swap_remove(pick / 2 % live.len());
            for unit in units(&block) {
                assert_eq!(memory.get(&unit), Some(&stamp));
            }
        } else {
            let bytes = 1 + pick % [600, 5000, 3 << 18][pick % 3];
            let block = allocator.malloc(bytes, &(pick as u64 / 7 % 3)).unwrap();
            memory.extend(units(&block).map(|unit| (unit, step)));
            live.push((block, step));
        }
        if step % 1000 == 999 {
            allocator.empty_cache();
            check_state(&allocator);
        }
    }
}
