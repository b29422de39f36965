//! A second, simple implementation of PyTorch's rules, compared step by step with the policy
//! `torch`: all addresses, sizes and counts must agree.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use warpline_alloc::{AllocatorConfig, Block};

use crate::common::{Fake, MIB};

/// A free or live piece of a segment, by address.
#[derive(Clone, Copy, Debug)]
struct Piece {
    size: usize,
    segment: u64,
    stream: u64,
    small: bool,
    free: bool,
    idle_since: u64,
}

struct Oracle {
    config: AllocatorConfig,
    capacity: usize,
    next_address: u64,
    pieces: BTreeMap<u64, Piece>,
    /// Sizes of the segments, by address.
    segments: BTreeMap<u64, usize>,
    /// Pending events by stream: the operation's number, and the address of the piece.
    pending: BTreeMap<u64, Vec<(u64, u64)>>,
    /// Number of pending events of each freed piece.
    waits: BTreeMap<u64, usize>,
    searches: u64,
    allocs: i64,
    frees: i64,
    retries: i64,
}

impl Oracle {
    fn reserved(&self) -> usize {
        self.segments.values().sum()
    }

    fn limit(&self) -> usize {
        let fraction = self.config.memory_fraction.unwrap_or(1.0);
        (fraction * self.capacity as f64) as usize
    }

    fn max_split(&self) -> usize {
        self.config.max_split_size.unwrap_or(usize::MAX)
    }

    fn round(&self, bytes: usize) -> usize {
        let steps = self.config.roundup_power2_divisions[0];
        if bytes >= 512 && steps > 1 && bytes > 512 * steps && !bytes.is_power_of_two() {
            let floor = 1 << bytes.ilog2();
            return bytes.next_multiple_of(floor / steps);
        }
        bytes.max(1).next_multiple_of(512)
    }

    fn search(&mut self, size: usize, stream: u64, counts: bool) -> Option<u64> {
        let small = size <= MIB;
        self.searches += u64::from(counts && !small);
        let fits = self.pieces.iter().filter(|(_, piece)| {
            piece.free && piece.small == small && piece.stream == stream && piece.size >= size
        });
        let (&address, piece) = fits.min_by_key(|(address, piece)| (piece.size, **address))?;
        let max_split = self.max_split();
        let refused = if size < max_split {
            piece.size >= max_split
        } else {
            piece.size >= size.saturating_add(self.config.max_non_split_rounding)
        };
        (!refused).then_some(address)
    }

    fn grow(&mut self, size: usize, stream: u64) -> Option<u64> {
        let bytes = match size {
            0..=MIB => 2 * MIB,
            _ if size < 10 * MIB && size <= self.config.large_segment_size => {
                self.config.large_segment_size
            }
            _ => size.next_multiple_of(2 * MIB),
        };
        if self.reserved() + bytes > self.limit() {
            return None;
        }
        let address = self.next_address;
        self.next_address += bytes.next_multiple_of(2 * MIB) as u64 + 2 * MIB as u64;
        self.segments.insert(address, bytes);
        self.allocs += 1;
        let small = size <= MIB;
        let piece =
            Piece { size: bytes, segment: address, stream, small, free: true, idle_since: 0 };
        self.pieces.insert(address, piece);
        Some(address)
    }

    fn is_whole(&self, address: u64) -> bool {
        let piece = &self.pieces[&address];
        piece.free && self.segments.get(&address) == Some(&piece.size)
    }

    fn release(&mut self, address: u64) -> usize {
        self.frees += 1;
        self.pieces.remove(&address);
        self.segments.remove(&address).unwrap()
    }

    fn collect(&mut self) {
        let Some(share) = self.config.garbage_collection_threshold else { return };
        let threshold = (share * self.limit() as f64) as usize;
        let target = self.reserved().saturating_sub(threshold);
        let mut reclaimed = 0;
        while reclaimed < target {
            let all = self.pieces.iter().filter(|(at, piece)| !piece.small && self.is_whole(**at));
            let ages: Vec<(u64, u64)> =
                all.map(|(at, piece)| (*at, self.searches - piece.idle_since)).collect();
            if ages.is_empty() {
                return;
            }
            let mean = ages.iter().map(|(_, age)| age).sum::<u64>() as f64 / ages.len() as f64;
            for (at, _) in ages.into_iter().filter(|(_, age)| *age as f64 >= mean) {
                reclaimed += self.release(at);
            }
        }
    }

    fn release_oversize(&mut self, size: usize, stream: u64) -> bool {
        let Some(max_split) = self.config.max_split_size else { return false };
        let wanted = size.max(max_split);
        let small = size <= MIB;
        let mut all: BTreeSet<(usize, u64)> = BTreeSet::new();
        let of = |p: &Piece| p.free && p.small == small && p.stream == stream;
        all.extend(self.pieces.iter().filter(|(_, p)| of(p)).map(|(at, p)| (p.size, *at)));
        if let Some(&(_, at)) = all.range((wanted, 0)..).next() {
            self.release(at);
            return true;
        }
        let mut released = 0;
        for (size, at) in all.into_iter().rev() {
            if released >= wanted || size < max_split {
                break;
            }
            released += self.release(at);
        }
        released >= wanted
    }

    fn release_all(&mut self) {
        let whole: Vec<u64> = self.pieces.keys().copied().filter(|at| self.is_whole(*at)).collect();
        whole.into_iter().for_each(|at| {
            self.release(at);
        });
    }

    /// Returns the address and size of a block. `None` if PyTorch runs out of memory.
    fn malloc(&mut self, bytes: usize, stream: u64, completed: &[u64; 4]) -> Option<(u64, usize)> {
        self.poll(completed, Some(stream));
        let size = self.round(bytes);
        let found = self.search(size, stream, true).or_else(|| {
            self.poll(completed, None);
            self.collect();
            self.grow(size, stream)
        });
        let found = found.or_else(|| {
            let enough = self.release_oversize(size, stream);
            enough.then(|| self.grow(size, stream)).flatten()
        });
        let found = found.or_else(|| {
            self.poll(&[u64::MAX; 4], None);
            // PyTorch skips this search.
            self.search(size, stream, false).or_else(|| {
                self.release_all();
                self.retries += 1;
                self.grow(size, stream)
            })
        });
        let address = found?;
        let piece = self.pieces[&address];
        let rest = piece.size - size;
        let splits = if piece.small { rest >= 512 } else { size < self.max_split() && rest > MIB };
        let size = if splits { size } else { piece.size };
        if splits {
            let idle_since = self.searches;
            let behind = Piece { size: rest, idle_since, ..piece };
            self.pieces.insert(address + size as u64, behind);
        }
        self.pieces.insert(address, Piece { size, free: false, ..piece });
        Some((address, size))
    }

    /// Frees a piece. `uses` maps other streams to the numbers of their last operations.
    fn free(&mut self, address: u64, uses: &BTreeMap<u64, u64>) {
        for (&stream, &work) in uses {
            self.pending.entry(stream).or_default().push((work, address));
        }
        match uses.len() {
            0 => self.make_free(address),
            events => drop(self.waits.insert(address, events)),
        }
    }

    /// Frees the pieces whose events have completed: only pieces of the stream `of`, or, as PyTorch
    /// always does, all pieces. Pieces of other streams matter only for a miss.
    fn poll(&mut self, completed: &[u64; 4], of: Option<u64>) {
        let mut done = Vec::new();
        for (&stream, events) in &mut self.pending {
            events.retain(|&(work, address)| {
                let asked = of.is_none_or(|of| self.pieces[&address].stream == of);
                let come = asked && work <= completed[stream as usize];
                done.extend(come.then_some(address));
                !come
            });
        }
        for address in done {
            let left = self.waits.get_mut(&address).unwrap();
            *left -= 1;
            if *left == 0 {
                self.waits.remove(&address);
                self.make_free(address);
            }
        }
    }

    fn make_free(&mut self, mut address: u64) {
        let mut piece = self.pieces.remove(&address).unwrap();
        let same = |other: &Piece| other.free && other.segment == piece.segment;
        let before = self.pieces.range(..address).next_back().map(|(at, piece)| (*at, *piece));
        if let Some((at, other)) = before
            && same(&other)
        {
            self.pieces.remove(&at);
            (address, piece.size) = (at, piece.size + other.size);
        }
        let behind = self.pieces.range(address..).next().map(|(at, piece)| (*at, *piece));
        if let Some((at, other)) = behind
            && other.free
            && other.segment == piece.segment
        {
            self.pieces.remove(&at);
            piece.size += other.size;
        }
        (piece.free, piece.idle_since) = (true, self.searches);
        self.pieces.insert(address, piece);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Malloc(usize, u64),
    Free(usize),
    Use(usize, u64),
    Complete(u64),
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        3 => 1usize..9000,
        2 => 9000usize..(2 * MIB),
        3 => MIB..(12 * MIB),
        2 => (10 * MIB)..(60 * MIB),
    ];
    prop_oneof![
        12 => (bytes, 0u64..2).prop_map(|(bytes, stream)| Step::Malloc(bytes, stream)),
        10 => (0usize..1 << 20).prop_map(Step::Free),
        3 => (0usize..1 << 20, 0u64..4).prop_map(|(block, stream)| Step::Use(block, stream)),
        2 => (0u64..4).prop_map(Step::Complete),
        1 => Just(Step::EmptyCache),
    ]
}

fn run(options: &str, capacity: usize, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let fake = Fake::new(capacity);
    let config = AllocatorConfig::parse(options).unwrap();
    let allocator = fake.allocator(options);
    let mut oracle = Oracle {
        config,
        capacity,
        next_address: 1 << 40,
        pieces: BTreeMap::new(),
        segments: BTreeMap::new(),
        pending: BTreeMap::new(),
        waits: BTreeMap::new(),
        searches: 0,
        allocs: 0,
        frees: 0,
        retries: 0,
    };
    let mut live: Vec<(Block<Fake>, BTreeSet<u64>)> = Vec::new();
    let (mut submitted, mut peak) = ([0; 4], 0);
    for step in steps {
        match step {
            Step::Malloc(bytes, stream) => {
                let completed = std::array::from_fn(|stream| fake.completed(stream as u64));
                let expected = oracle.malloc(bytes, stream, &completed);
                let got = allocator.malloc(bytes, &stream);
                // If PyTorch fails, this allocator may still take memory from other streams.
                let Some(expected) = expected else { return Ok(()) };
                let block = got.unwrap();
                prop_assert_eq!((block.address(), block.size()), expected);
                live.push((block, BTreeSet::new()));
            }
            Step::Free(at) if !live.is_empty() => {
                let (block, uses) = live.swap_remove(at % live.len());
                let uses = uses.into_iter().map(|stream| (stream, submitted[stream as usize]));
                oracle.free(block.address(), &uses.collect());
            }
            Step::Use(at, stream) if !live.is_empty() => {
                let at = at % live.len();
                fake.launch(stream);
                submitted[stream as usize] += 1;
                live[at].0.record_stream(&stream);
                if stream != live[at].0.stream_id() {
                    live[at].1.insert(stream);
                }
            }
            Step::Complete(stream) => fake.complete(stream),
            Step::EmptyCache => {
                allocator.empty_cache();
                oracle.poll(&[u64::MAX; 4], None);
                oracle.release_all();
            }
            _ => {}
        }
        peak = oracle.reserved().max(peak);
        let stats = allocator.memory_stats();
        let split = oracle.pieces.iter().filter(|(at, p)| p.free && !oracle.is_whole(**at));
        prop_assert_eq!(stats.reserved_bytes.all.current, oracle.reserved() as i64);
        prop_assert_eq!(stats.segment.all.current, oracle.segments.len() as i64);
        prop_assert_eq!(stats.num_device_alloc, oracle.allocs);
        prop_assert_eq!(stats.num_device_free, oracle.frees);
        prop_assert_eq!(stats.num_alloc_retries, oracle.retries);
        prop_assert_eq!(stats.inactive_split.all.current, split.count() as i64);
        let active = oracle.pieces.values().filter(|piece| !piece.free).map(|piece| piece.size);
        prop_assert_eq!(stats.active_bytes.all.current, active.sum::<usize>() as i64);
        // The true peak may be higher than `peak`, because segments can come and go within one
        // request.
        prop_assert!(stats.reserved_bytes.all.peak >= peak as i64);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    #[test]
    fn the_torch_policy_follows_pytorchs_rules(
        options in prop::sample::select(vec![
            "",
            "max_split_size_mb:20",
            "max_split_size_mb:32,max_non_split_rounding_mb:40",
            "max_split_size_mb:40,large_segment_size_mb:40",
            "roundup_power2_divisions:4",
            "roundup_power2_divisions:8,max_split_size_mb:25",
            "large_segment_size_mb:32",
            "large_segment_size_mb:4",
            "garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
            "garbage_collection_threshold:0.2,per_process_memory_fraction:0.9,max_split_size_mb:30",
        ]),
        capacity in prop::sample::select(vec![200 * MIB, 400 * MIB, 1 << 40]),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let options = format!("policy:torch,{options}");
        run(&options, capacity, steps)?;
    }
}
