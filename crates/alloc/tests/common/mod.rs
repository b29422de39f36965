//! A backend in plain Rust: a settable capacity, events that come when told to, faults on demand.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use warpline_alloc::{
    AllocatorConfig, Backend, Block, CachingAllocator, HostBackend, HostConfig, StreamBackend,
};

pub const MIB: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeError {
    OutOfMemory,
    Fault,
    Lost,
}

impl fmt::Display for FakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for FakeError {}

#[derive(Debug)]
pub struct World {
    pub capacity: usize,
    /// Live allocations: size by address.
    pub live: BTreeMap<u64, usize>,
    /// Sizes asked for, in order.
    pub asked: Vec<usize>,
    pub frees: usize,
    next_address: u64,
    /// Work given to each stream and work done.
    submitted: BTreeMap<u64, u64>,
    completed: BTreeMap<u64, u64>,
    pub events_made: usize,
    pub events_live: usize,
    pub queries: usize,
    pub syncs: usize,
    pub fail_alloc: Option<FakeError>,
    pub fail_record: Option<FakeError>,
    pub fail_query: Option<FakeError>,
}

impl World {
    pub fn used(&self) -> usize {
        self.live.values().sum()
    }
}

/// Clones share one world.
#[derive(Clone, Debug)]
pub struct Fake(Arc<Mutex<World>>);

impl Fake {
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(World {
            capacity,
            live: BTreeMap::new(),
            asked: Vec::new(),
            frees: 0,
            next_address: 1 << 40,
            submitted: BTreeMap::new(),
            completed: BTreeMap::new(),
            events_made: 0,
            events_live: 0,
            queries: 0,
            syncs: 0,
            fail_alloc: None,
            fail_record: None,
            fail_query: None,
        })))
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Gives the stream work that is done only at [`Fake::complete`].
    pub fn launch(&self, stream: u64) {
        *self.world().submitted.entry(stream).or_default() += 1;
    }

    /// Does all work the stream was given.
    pub fn complete(&self, stream: u64) {
        let mut world = self.world();
        let submitted = world.submitted.get(&stream).copied().unwrap_or(0);
        world.completed.insert(stream, submitted);
    }

    /// How much of the stream's work is done.
    pub fn completed(&self, stream: u64) -> u64 {
        self.world().completed.get(&stream).copied().unwrap_or(0)
    }

    pub fn allocator(&self, options: &str) -> CachingAllocator<Fake> {
        CachingAllocator::new(self.clone(), AllocatorConfig::parse(options).unwrap())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory, FakeError> {
        let mut world = self.world();
        assert!(bytes > 0, "a request of no bytes reached the backend");
        if let Some(error) = world.fail_alloc {
            return Err(error);
        }
        if world.used().checked_add(bytes).is_none_or(|used| used > world.capacity) {
            return Err(FakeError::OutOfMemory);
        }
        let address = world.next_address;
        // Segments do not touch, so that merging across them would show.
        world.next_address += bytes.next_multiple_of(2 * MIB) as u64 + 2 * MIB as u64;
        world.live.insert(address, bytes);
        world.asked.push(bytes);
        Ok(Memory { address, bytes, world: self.clone() })
    }
}

#[derive(Debug)]
pub struct Memory {
    pub address: u64,
    pub bytes: usize,
    world: Fake,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut world = self.world.world();
        assert_eq!(world.live.remove(&self.address), Some(self.bytes));
        world.frees += 1;
    }
}

#[derive(Debug)]
pub struct Event {
    stream: u64,
    at: u64,
    world: Fake,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.world.world().events_live -= 1;
    }
}

impl StreamBackend for Fake {
    type Stream = u64;
    type Event = Event;
    type Error = FakeError;

    fn stream_id(stream: &u64) -> u64 {
        *stream
    }

    fn record(&self, stream: &u64) -> Result<Event, FakeError> {
        let mut world = self.world();
        if let Some(error) = world.fail_record {
            return Err(error);
        }
        world.events_made += 1;
        world.events_live += 1;
        let at = world.submitted.get(stream).copied().unwrap_or(0);
        Ok(Event { stream: *stream, at, world: self.clone() })
    }

    fn record_again(&self, mut event: Event, stream: &u64) -> Result<Event, FakeError> {
        {
            let world = self.world();
            let done = world.completed.get(&event.stream).copied().unwrap_or(0);
            assert!(done >= event.at, "an event was used again before its work was done");
        }
        if let Some(error) = self.world().fail_record {
            return Err(error);
        }
        event.stream = *stream;
        event.at = self.world().submitted.get(stream).copied().unwrap_or(0);
        Ok(event)
    }

    fn query(&self, event: &Event) -> Result<bool, FakeError> {
        let mut world = self.world();
        world.queries += 1;
        match world.fail_query {
            Some(error) => Err(error),
            None => Ok(world.completed.get(&event.stream).copied().unwrap_or(0) >= event.at),
        }
    }

    fn synchronize(&self, event: &Event) -> Result<(), FakeError> {
        let mut world = self.world();
        world.syncs += 1;
        if let Some(error) = world.fail_query {
            return Err(error);
        }
        let completed = world.completed.entry(event.stream).or_default();
        *completed = event.at.max(*completed);
        Ok(())
    }

    fn is_lost(&self, error: &FakeError) -> bool {
        *error == FakeError::Lost
    }
}

impl Backend for Fake {
    type Memory = Memory;

    fn alloc(&self, bytes: usize) -> Result<Memory, FakeError> {
        self.allocate(bytes)
    }

    fn address(memory: &Memory) -> u64 {
        memory.address
    }

    fn is_out_of_memory(&self, error: &FakeError) -> bool {
        *error == FakeError::OutOfMemory
    }

    fn mem_info(&self) -> Result<(usize, usize), FakeError> {
        let world = self.world();
        Ok((world.capacity - world.used(), world.capacity))
    }

    fn device(&self) -> String {
        String::from("fake:0")
    }
}

impl HostBackend for Fake {
    type HostMemory = Memory;

    fn alloc_host(&self, bytes: usize, _: &HostConfig) -> Result<Memory, FakeError> {
        self.allocate(bytes)
    }
}

/// Checks that the snapshot, the statistics and the backend agree.
pub fn check_books(allocator: &CachingAllocator<Fake>) {
    use warpline_alloc::{BlockState, PoolKind};
    let stats = allocator.memory_stats();
    let snapshot = allocator.snapshot();
    let world = allocator.backend().world();
    let held: BTreeMap<u64, usize> =
        snapshot.iter().map(|segment| (segment.address, segment.total_size)).collect();
    assert_eq!(held, world.live, "segments are what the backend gave");
    for (kind, pick) in [(PoolKind::Small, 0), (PoolKind::Large, 1)] {
        let mut sums = [0i64; 9];
        for segment in snapshot.iter().filter(|segment| segment.segment_type == kind) {
            sums[0] += 1;
            sums[1] += segment.total_size as i64;
            sums[2] += segment.allocated_size as i64;
            sums[3] += segment.active_size as i64;
            sums[4] += segment.requested_size as i64;
            let mut at = segment.address;
            let mut last_free = false;
            for block in &segment.blocks {
                assert_eq!(block.address, at, "blocks cover their segment");
                at += block.size as u64;
                let free = block.state == BlockState::Free;
                assert!(!(free && last_free), "free neighbours are merged");
                last_free = free;
                if free && segment.blocks.len() > 1 {
                    sums[7] += 1;
                    sums[8] += block.size as i64;
                }
                sums[5] += i64::from(block.state == BlockState::Allocated);
                sums[6] += i64::from(!free);
            }
            assert_eq!(at, segment.address + segment.total_size as u64);
        }
        let counted = [
            stats.segment,
            stats.reserved_bytes,
            stats.allocated_bytes,
            stats.active_bytes,
            stats.requested_bytes,
            stats.allocation,
            stats.active,
            stats.inactive_split,
            stats.inactive_split_bytes,
        ]
        .map(|pools| [pools.small_pool, pools.large_pool][pick].current);
        assert_eq!(sums, counted, "{kind:?} pool");
    }
}

/// Live blocks must not overlap.
pub fn check_disjoint<'a>(blocks: impl IntoIterator<Item = &'a Block<Fake>>) {
    let mut ranges: Vec<(u64, u64)> = blocks
        .into_iter()
        .filter(|block| block.size() > 0)
        .map(|block| (block.address(), block.address() + block.size() as u64))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "blocks overlap: {pair:x?}");
    }
}
