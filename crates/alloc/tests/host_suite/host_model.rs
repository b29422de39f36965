//! Random programs over the cache of page-locked memory, against a simple model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use warpline_alloc::{AllocatorConfig, HostCache, PinnedBlock};

use crate::common::{Fake, FakeError, MIB};

const STREAMS: u64 = 3;
/// A stream whose work no step completes.
const STUCK: u64 = 2;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    Free(usize),
    Use(usize, u64),
    Complete(u64),
    Empty,
    /// Sets whether calls of the backend fail from now on.
    FailAlloc(bool),
    FailRecord(bool),
    FailQuery(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        0..4096usize,
        4096..MIB,
        MIB..20 * MIB,
        2 * MIB - 1024..2 * MIB + 1024,
        20 * MIB..600 * MIB,
    ];
    prop_oneof![
        8 => size.prop_map(Step::Alloc),
        6 => any::<usize>().prop_map(Step::Free),
        4 => (any::<usize>(), 0..STREAMS).prop_map(|(at, stream)| Step::Use(at, stream)),
        3 => (0..STUCK).prop_map(Step::Complete),
        1 => Just(Step::Empty),
        1 => prop::bool::weighted(0.2).prop_map(Step::FailAlloc),
        1 => prop::bool::weighted(0.2).prop_map(Step::FailRecord),
        1 => prop::bool::weighted(0.2).prop_map(Step::FailQuery),
    ]
}

/// A block in the model: its addresses, and the uses that must complete after its free.
struct ModelBlock {
    start: u64,
    end: u64,
    requested: usize,
    waits: Vec<(u64, u64)>,
}

struct Model {
    fake: Fake,
    cache: HostCache<Fake>,
    live: Vec<(PinnedBlock<Fake>, BTreeSet<u64>)>,
    /// Freed blocks whose uses may be pending.
    pending: Vec<ModelBlock>,
    launched: BTreeMap<u64, u64>,
    cap: Option<usize>,
    /// Whether no record or query failed, so that the model knows all completions.
    clean: bool,
}

fn model_block(block: &PinnedBlock<Fake>) -> ModelBlock {
    let start = block.memory().address + block.offset() as u64;
    let (end, requested) = (start + block.size() as u64, block.requested());
    ModelBlock { start, end, requested, waits: Vec::new() }
}

impl Model {
    fn new(options: &str, capacity: usize) -> Self {
        let fake = Fake::new(capacity);
        let config = AllocatorConfig::parse(options).unwrap().host;
        let cap = config.max_cached_size;
        let cache = HostCache::new(fake.clone(), config);
        let (live, pending, launched) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { fake, cache, live, pending, launched, cap, clean: true }
    }

    fn run(&mut self, step: Step) {
        let polls = matches!(step, Step::Alloc(_) | Step::Empty);
        self.clean &= !matches!(step, Step::FailRecord(true) | Step::FailQuery(true));
        match step {
            Step::Alloc(bytes) => {
                let block = self.cache.alloc(bytes);
                self.forget_done();
                if let Ok(block) = block {
                    self.check_new(&block, bytes);
                    self.live.push((block, BTreeSet::new()));
                }
            }
            Step::Free(at) if !self.live.is_empty() => {
                let (block, uses) = self.live.swap_remove(at % self.live.len());
                let mut held = model_block(&block);
                held.waits = uses.iter().map(|&s| (s, self.launched[&s])).collect();
                drop(block);
                self.pending.push(held);
            }
            Step::Use(at, stream) if !self.live.is_empty() => {
                let at = at % self.live.len();
                self.live[at].0.record_use(&stream);
                self.live[at].1.insert(stream);
                self.fake.launch(stream);
                *self.launched.entry(stream).or_default() += 1;
            }
            Step::Complete(stream) => self.fake.complete(stream),
            Step::Empty => self.cache.empty_cache(),
            Step::FailAlloc(fail) => {
                self.fake.world().fail_alloc = fail.then_some(FakeError::Fault);
            }
            Step::FailRecord(fail) => {
                self.fake.world().fail_record = fail.then_some(FakeError::Fault);
            }
            Step::FailQuery(fail) => {
                self.fake.world().fail_query = fail.then_some(FakeError::Fault);
            }
            _ => {}
        }
        self.forget_done();
        self.check(polls);
    }

    fn forget_done(&mut self) {
        let fake = self.fake.clone();
        self.pending.retain(|held| held.waits.iter().any(|&(s, at)| fake.completed(s) < at));
    }

    fn check_new(&self, block: &PinnedBlock<Fake>, bytes: usize) {
        let new = model_block(block);
        assert_eq!(block.requested(), bytes);
        assert!(block.size() >= bytes && block.size() - bytes <= 512);
        assert_eq!(block.offset() % 512, 0);
        assert!(block.offset() + block.size() <= block.memory().bytes);
        let live = self.live.iter().map(|(block, _)| model_block(block));
        for (what, old) in live
            .map(|old| ("live", old))
            .map(|(what, old)| (what, (old.start, old.end)))
            .chain(self.pending.iter().map(|old| ("pending", (old.start, old.end))))
        {
            assert!(new.end <= old.0 || old.1 <= new.start, "a {what} block was handed out again");
        }
    }

    fn check(&self, polled: bool) {
        let stats = self.cache.stats();
        let world = self.fake.world();
        assert_eq!(stats.allocated_bytes.current, world.used() as i64, "reserved");
        assert_eq!(stats.allocations.current, world.live.len() as i64);
        assert_eq!(stats.num_host_alloc as usize, world.asked.len());
        assert_eq!(stats.num_host_free as usize, world.frees);
        // The cache notices completions only at the next call.
        let of = |blocks: &mut dyn Iterator<Item = (u64, usize)>| {
            blocks.fold((0, 0, 0), |sum, (size, bytes)| {
                (sum.0 + 1, sum.1 + size as i64, sum.2 + bytes as i64)
            })
        };
        let live = of(&mut self.live.iter().map(|(b, _)| (b.size() as u64, b.requested())));
        let now = (
            stats.active_requests.current,
            stats.active_bytes.current,
            stats.requested_bytes.current,
        );
        let waiting = of(&mut self.pending.iter().map(|h| (h.end - h.start, h.requested)));
        assert!(now.0 >= live.0 + waiting.0 && now.1 >= live.1 + waiting.1);
        assert!(now.2 >= live.2 + waiting.2);
        if polled && self.clean {
            assert_eq!(now.1, live.1 + waiting.1, "completed blocks are not free");
        }
        if let Some(cap) = self.cap {
            let busy: BTreeSet<u64> =
                self.live.iter().map(|(block, _)| block.memory().address).collect();
            let waited = |start: u64, bytes: usize| {
                let end = start + bytes as u64;
                self.pending.iter().any(|held| start <= held.start && held.end <= end)
            };
            let idle: usize = world
                .live
                .iter()
                .filter(|&(&start, &bytes)| !busy.contains(&start) && !waited(start, bytes))
                .map(|(_, &bytes)| bytes)
                .sum();
            // Blocks whose completion the cache has not noticed do not count as idle.
            let unseen = (now.0 - live.0 - waiting.0) > 0;
            assert!(unseen || idle <= cap, "{idle} idle bytes over the cap of {cap}");
        }
    }

    fn end(mut self) {
        {
            let mut world = self.fake.world();
            (world.fail_alloc, world.fail_record, world.fail_query) = (None, None, None);
        }
        (0..STREAMS).for_each(|stream| self.fake.complete(stream));
        self.cache.empty_cache();
        self.forget_done();
        assert!(self.pending.is_empty());
        let stats = self.cache.stats();
        let live: i64 = self.live.iter().map(|(block, _)| block.size() as i64).sum();
        assert_eq!(stats.active_bytes.current, live, "a freed block is still active");
        self.live.clear();
        self.cache.empty_cache();
        assert_eq!(self.fake.world().used(), 0);
        let stats = self.cache.stats();
        for stat in [
            stats.allocations,
            stats.allocated_bytes,
            stats.active_requests,
            stats.active_bytes,
            stats.requested_bytes,
        ] {
            assert_eq!((stat.current, stat.allocated), (0, stat.freed));
        }
        drop(self.cache);
        assert_eq!(self.fake.world().events_live, 0);
    }
}

fn options() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just("pinned_max_cached_size_mb:0"), Just("pinned_max_cached_size_mb:64"),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_programs_keep_to_the_model(
        options in options(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(options, 1 << 45);
        steps.into_iter().for_each(|step| model.run(step));
        model.end();
    }

    /// If memory is short, the cache waits for streams, and some requests fail.
    #[test]
    fn the_model_holds_in_little_memory_too(
        options in options(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(options, 700 * MIB);
        steps.into_iter().for_each(|step| model.run(step));
        model.end();
    }
}
