//! Makes each call of the backend fail, alone, together with the next two calls, and together with
//! all later calls, in a program that makes every kind of call.

use std::ops::Range;

use warpline_alloc::{Block, CachingAllocator, PoolOptions};

use crate::common::{Fake, FakeError, MIB, Owned, check_disjoint, check_state};

const OPTIONS: [&str; 6] = [
    "policy:torch",
    "policy:torch,max_split_size_mb:20",
    "policy:torch,garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "expandable_segments:True",
    "policy:default",
    "policy:default,per_process_memory_fraction:0.8",
];

struct Program {
    fake: Fake,
    allocator: CachingAllocator<Fake>,
    live: Vec<Block<Fake>>,
    owned: Owned,
    refused: usize,
}

impl Program {
    fn malloc(&mut self, bytes: usize, stream: u64) {
        match self.allocator.malloc(bytes, &stream) {
            Ok(block) => {
                self.owned.take(&self.fake, &block);
                self.live.push(block);
            }
            Err(error) => {
                let short = matches!(
                    self.fake.world().fail_calls,
                    None | Some((_, FakeError::OutOfMemory))
                );
                assert!(!short || error.is_out_of_memory(), "{error}");
                self.refused += 1;
            }
        }
        self.check();
    }

    /// Frees a live block, if there is one.
    fn free(&mut self, at: usize) {
        if !self.live.is_empty() {
            let block = self.live.swap_remove(at % self.live.len());
            self.owned.free(&self.fake, block);
        }
        self.check();
    }

    fn use_on(&mut self, at: usize, stream: u64) {
        if !self.live.is_empty() {
            let block = &self.live[at % self.live.len()];
            block.record_stream(&stream);
            self.fake.launch_on(stream, block);
        }
    }

    fn check(&self) {
        check_disjoint(&self.live);
        if self.fake.world().capturing.is_none() {
            check_state(&self.allocator);
        }
        assert_eq!(
            self.allocator.memory_allocated(),
            self.live.iter().map(Block::size).sum::<usize>()
        );
    }

    /// Covers growth, reuse, other streams, remaps, lack of memory, pools, and a capture.
    fn run(&mut self) {
        for size in [1, 3 * MIB, 30 * MIB, 5 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB] {
            self.malloc(size, 0);
        }
        self.malloc(12 * MIB, 1);
        self.use_on(2, 1);
        self.use_on(3, 2);
        self.use_on(8, 0);
        for at in [2, 3, 1, 4, 0] {
            self.free(at);
        }
        self.malloc(40 * MIB, 1);
        self.malloc(25 * MIB, 0);
        self.fake.complete(1);
        self.malloc(512, 0);
        // These requests exceed the remaining memory: the allocator waits for pending events and
        // releases the cache.
        self.use_on(0, 2);
        self.free(0);
        self.free(1);
        self.malloc(70 * MIB, 2);
        self.malloc(60 * MIB, 0);
        self.malloc(90 * MIB, 1);
        self.malloc(300 * MIB, 0);
        self.fake.complete(2);
        let pool = self.allocator.new_pool(PoolOptions { use_on_oom: true, no_split: false });
        {
            let _route = self.allocator.use_pool(&pool);
            self.malloc(8 * MIB, 1);
            self.malloc(1, 2);
            let at = self.live.len().saturating_sub(1);
            self.use_on(at, 0);
            self.free(at);
        }
        self.allocator.empty_cache();
        self.check();
        let capture = self.allocator.capture_to(&pool, &0);
        self.fake.world().capturing = Some(0);
        self.malloc(6 * MIB, 0);
        let at = self.live.len().saturating_sub(1);
        self.use_on(at, 1);
        self.free(at);
        self.malloc(200 * MIB, 0);
        self.fake.world().capturing = None;
        drop(capture);
        self.check();
        drop(pool);
        while !self.live.is_empty() {
            self.free(1);
        }
        self.malloc(100 * MIB, 1);
        self.free(0);
        for stream in 0..3 {
            self.fake.complete(stream);
        }
    }
}

/// Returns the number of backend calls and the number of failed requests.
fn run(options: &str, pages: bool, fail: Option<(Range<usize>, FakeError)>) -> (usize, usize) {
    let fake = if pages { Fake::with_pages(160 * MIB) } else { Fake::new(160 * MIB) };
    let case = format!("{options}, {fail:?}, pages: {pages}");
    fake.world().fail_calls = fail;
    let mut program = Program {
        allocator: fake.allocator(options),
        fake: fake.clone(),
        live: Vec::new(),
        owned: Owned::default(),
        refused: 0,
    };
    program.run();
    if !fake.world().is_lost() {
        fake.world().fail_calls = None;
    }
    program.allocator.empty_cache();
    if !fake.world().is_lost() {
        let left = (program.allocator.memory_reserved(), fake.world().used());
        assert_eq!(left, (0, 0), "{case}");
    }
    assert_eq!(program.allocator.memory_stats().active.all.current, 0, "{case}");
    let refused = program.refused;
    drop(program);
    let world = fake.world();
    assert_eq!(world.used(), 0, "{case}");
    assert!(world.ranges.is_empty() && world.mappings.is_empty(), "{case}");
    assert_eq!(world.events_live, 0, "{case}");
    (world.calls, refused)
}

#[test]
fn if_any_call_fails_no_memory_is_lost_or_allocated_twice() {
    for options in OPTIONS {
        for pages in [false, true] {
            let (calls, refused) = run(options, pages, None);
            assert!(calls > 20 && refused >= 2, "{calls} calls, {refused} refused");
            let mut more = 0;
            for error in [FakeError::Fault, FakeError::OutOfMemory, FakeError::Lost] {
                for at in 0..calls {
                    for end in [at + 1, at + 3, usize::MAX] {
                        let (_, now) = run(options, pages, Some((at..end, error)));
                        more += usize::from(now > refused);
                    }
                }
            }
            assert!(more > 10, "too few faults made requests fail");
        }
    }
}
