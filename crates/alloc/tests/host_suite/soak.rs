//! Runs ten million operations with faults, and checks that all memory is released at the end.

use std::collections::VecDeque;
use std::thread;

use warpline_alloc::{Block, CachingAllocator, MemPool, PoolOptions, PoolRoute};

use crate::common::{Fake, FakeError, MIB, Random, check_state};

const OPERATIONS: usize = 10_000_000;
const STREAMS: usize = 4;
const OPTIONS: [&str; 6] = [
    "policy:torch",
    "max_split_size_mb:20",
    "policy:torch,garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
    "expandable_segments:True",
    "policy:default",
    "policy:default,per_process_memory_fraction:0.5",
];

struct Soak {
    fake: Fake,
    allocator: CachingAllocator<Fake>,
    random: Random,
    live: Vec<Block<Fake>>,
    pools: VecDeque<MemPool<Fake>>,
    routes: VecDeque<PoolRoute<Fake>>,
    capture: Option<PoolRoute<Fake>>,
}

impl Soak {
    fn stream(&mut self) -> u64 {
        self.random.below(STREAMS) as u64
    }

    fn free_one(&mut self) {
        if !self.live.is_empty() {
            let at = self.random.below(self.live.len());
            drop(self.live.swap_remove(at));
        }
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..=449 => {
                let (bytes, stream) = (self.random.bytes(), self.stream());
                self.live.extend(self.allocator.malloc(bytes, &stream));
                if self.live.len() > 300 {
                    self.free_one();
                }
            }
            450..=899 => self.free_one(),
            900..=939 if !self.live.is_empty() => {
                let (at, stream) = (self.random.below(self.live.len()), self.stream());
                let block = &self.live[at];
                block.record_stream(&stream);
                self.fake.launch_on(stream, block);
            }
            940..=979 => {
                let stream = self.stream();
                self.fake.complete(stream);
            }
            980..=981 => self.allocator.empty_cache(),
            982 => self.fault(),
            983..=987 => {
                let mut world = self.fake.world();
                (world.fail_alloc, world.fail_map) = (None, None);
                (world.fail_record, world.fail_query) = (None, None);
            }
            988 => {
                let capacity = (100 + self.random.below(900)) * MIB;
                let mut world = self.fake.world();
                world.capacity = capacity.max(world.used());
            }
            989..=992 => self.change_pools(),
            993 => self.change_capture(true),
            994..=999 => self.change_capture(false),
            _ => {}
        }
    }

    fn fault(&mut self) {
        let kind = self.random.below(5);
        let mut world = self.fake.world();
        match kind {
            0 => world.fail_alloc = Some(FakeError::OutOfMemory),
            1 => world.fail_alloc = Some(FakeError::Fault),
            2 => world.fail_map = Some(FakeError::Fault),
            3 => world.fail_record = Some(FakeError::Fault),
            _ => world.fail_query = Some(FakeError::Fault),
        }
    }

    fn change_pools(&mut self) {
        match self.random.below(4) {
            0 => {
                let use_on_oom = self.random.below(2) == 0;
                let no_split = self.random.below(4) == 0;
                self.pools.push_back(self.allocator.new_pool(PoolOptions { use_on_oom, no_split }));
                if self.pools.len() > 4 {
                    self.pools.pop_front();
                }
            }
            1 => drop(self.pools.pop_front()),
            2 => drop(self.routes.pop_front()),
            _ => {
                let (stream, any) = (self.stream(), self.random.below(8) == 0);
                if let Some(pool) = self.pools.back() {
                    self.routes.push_back(match any {
                        true => self.allocator.use_pool(pool),
                        false => self.allocator.use_pool_for(pool, &stream),
                    });
                }
                if self.routes.len() > 3 {
                    self.routes.pop_front();
                }
            }
        }
    }

    fn change_capture(&mut self, begin: bool) {
        let stream = self.stream();
        match (self.capture.take(), self.pools.front().filter(|_| begin)) {
            (Some(capture), _) => {
                self.fake.world().capturing = None;
                drop(capture);
            }
            (None, Some(pool)) => {
                self.capture = Some(self.allocator.capture_to(pool, &stream));
                self.fake.world().capturing = Some(stream);
            }
            (None, None) => {}
        }
    }

    fn check(&self) {
        // During a capture, the backend still has the memory of released segments.
        if self.capture.is_none() {
            check_state(&self.allocator);
            assert_eq!(self.allocator.memory_reserved(), self.fake.world().used());
        }
        let allocated: usize = self.live.iter().map(Block::size).sum();
        assert_eq!(self.allocator.memory_allocated(), allocated);
        self.fake.world().waits.clear();
    }
}

fn soak(options: &str, operations: usize, seed: u64) {
    let fake = Fake::with_pages(700 * MIB);
    let mut soak = Soak {
        allocator: fake.allocator(options),
        fake: fake.clone(),
        random: Random(seed),
        live: Vec::new(),
        pools: VecDeque::new(),
        routes: VecDeque::new(),
        capture: None,
    };
    for operation in 0..operations {
        soak.step();
        if operation % 4096 == 0 {
            soak.check();
        }
    }
    let stats = soak.allocator.memory_stats();
    // Enough requests succeeded in spite of the faults.
    assert!(stats.allocation.all.allocated as usize > operations / 4);
    assert!(stats.num_device_free > 0 && stats.num_alloc_retries > 0 && stats.num_ooms > 0);
    assert_eq!(stats.num_remaps > 0, options.contains("default"));
    {
        let mut world = fake.world();
        (world.fail_alloc, world.fail_map) = (None, None);
        (world.fail_record, world.fail_query) = (None, None);
        world.capturing = None;
    }
    let Soak { allocator, live, pools, routes, capture, .. } = soak;
    drop((live, capture, routes, pools));
    allocator.empty_cache();
    check_state(&allocator);
    assert_eq!((allocator.memory_reserved(), fake.world().used()), (0, 0));
    assert_eq!(allocator.memory_stats().active.all.current, 0);
    drop(allocator);
    let world = fake.world();
    assert!(world.live.is_empty() && world.pages.is_empty());
    assert!(world.mappings.is_empty() && world.ranges.is_empty());
    assert_eq!(world.events_live, 0);
}

fn all(operations: usize) {
    thread::scope(|scope| {
        for (seed, options) in OPTIONS.into_iter().enumerate() {
            scope.spawn(move || soak(options, operations / OPTIONS.len(), seed as u64));
        }
    });
}

#[test]
fn a_short_run_leaves_nothing() {
    all(60_000);
}

#[test]
#[ignore = "takes a while: a soak test"]
fn soak_ten_million_operations_leave_nothing() {
    all(OPERATIONS);
}
