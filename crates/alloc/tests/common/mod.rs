//! A backend in plain Rust with a settable capacity, work that completes on request, and injected
//! faults.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test binary uses its own part

mod check;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpline_alloc::{
    AllocatorConfig, Backend, Block, CachingAllocator, Handle, HostBackend, HostConfig,
    StreamBackend, VirtualMemory,
};

pub use check::{Owned, Physical, check_disjoint, check_state, physical};

pub const MIB: usize = 1 << 20;
/// Size of a page under the default policy, in bytes.
pub const PAGE: usize = 4 * MIB;

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
    /// Sizes of all allocations so far, in order.
    pub asked: Vec<usize>,
    /// Number of pages refused because memory was exhausted.
    pub refused: usize,
    pub frees: usize,
    next_address: u64,
    /// Number of operations enqueued on each stream.
    submitted: BTreeMap<u64, u64>,
    /// Number of completed operations of each stream.
    completed: BTreeMap<u64, u64>,
    pub events_made: usize,
    pub events_live: usize,
    pub queries: usize,
    pub syncs: usize,
    pub fail_alloc: Option<FakeError>,
    pub fail_record: Option<FakeError>,
    pub fail_query: Option<FakeError>,
    pub fail_map: Option<FakeError>,
    /// Maximum number of address ranges reserved at a time.
    pub max_ranges: usize,
    /// Whether the backend has virtual memory.
    pub has_pages: bool,
    /// Sizes of the existing pages, by page number.
    pub pages: BTreeMap<u64, usize>,
    /// Reserved ranges: size by address.
    pub ranges: BTreeMap<u64, usize>,
    /// Mapped addresses: size and page number, by address.
    pub mappings: BTreeMap<u64, (usize, u64)>,
    pub maps: usize,
    pub unmaps: usize,
    /// Waits enqueued so far: the waiting stream and the stream that it waits for.
    pub waits: Vec<(u64, u64)>,
    /// The stream being captured. During a capture, no event may be recorded on this stream, and on
    /// no stream may an event be queried or memory be freed.
    pub capturing: Option<u64>,
    /// Number of calls so far that can fail.
    pub calls: usize,
    /// Numbers of the calls that fail, and their error. After [`FakeError::Lost`] all calls fail.
    pub fail_calls: Option<(std::ops::Range<usize>, FakeError)>,
    /// Uses of memory by work that may be pending: stream, operation number, first address, end
    /// address.
    used: Vec<(u64, u64, u64, u64)>,
    /// Called once, after the host's next wait for an event.
    pub after_sync: Option<Act>,
    /// Percentage of releases to refuse, chosen at random.
    pub refuses: Option<(Random, usize)>,
    /// Number of refused releases.
    pub refusals: usize,
    /// Whether the backend can wait for the whole device.
    pub waits_for_device: bool,
    /// Number of waits for the device.
    pub device_waits: usize,
    pub fail_device_wait: Option<FakeError>,
    /// Streams on which no event can be recorded.
    pub foreign: Vec<u64>,
}

/// A function that is called once.
pub struct Act(pub Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

impl World {
    pub fn used(&self) -> usize {
        self.live.values().sum::<usize>() + self.pages.values().sum::<usize>()
    }

    /// Returns the page mapped at an address, and the offset in it.
    pub fn page_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &(size, page)) = self.mappings.range(..=address).next_back()?;
        (address < start + size as u64).then_some((page, address - start))
    }

    fn refuses(&mut self) -> bool {
        let share = self.refuses.as_mut().map(|(random, share)| (random.below(100), *share));
        let refused = share.is_some_and(|(at, share)| at < share);
        self.refusals += usize::from(refused);
        refused
    }

    fn assert_no_capture(&self, what: &str) {
        assert!(self.capturing.is_none(), "{what} during a capture");
    }

    fn call(&mut self) -> Result<(), FakeError> {
        let at = self.calls;
        self.calls += 1;
        match &self.fail_calls {
            Some((calls, error)) if calls.contains(&at) => Err(*error),
            _ if self.is_lost() => Err(FakeError::Lost),
            _ => Ok(()),
        }
    }

    pub fn is_lost(&self) -> bool {
        let lost = self.fail_calls.as_ref().filter(|(_, error)| *error == FakeError::Lost);
        lost.is_some_and(|(calls, _)| self.calls > calls.start)
    }

    fn is_done(&self, stream: u64, at: u64) -> bool {
        self.is_lost() || self.completed.get(&stream).copied().unwrap_or(0) >= at
    }
}

/// The backend. Clones share one [`World`].
#[derive(Clone, Debug)]
pub struct Fake(Arc<Mutex<World>>);

impl Fake {
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(World {
            capacity,
            live: BTreeMap::new(),
            asked: Vec::new(),
            refused: 0,
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
            fail_map: None,
            max_ranges: usize::MAX,
            has_pages: false,
            pages: BTreeMap::new(),
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
            maps: 0,
            unmaps: 0,
            waits: Vec::new(),
            capturing: None,
            calls: 0,
            fail_calls: None,
            used: Vec::new(),
            after_sync: None,
            refuses: None,
            refusals: 0,
            waits_for_device: false,
            device_waits: 0,
            fail_device_wait: None,
            foreign: Vec::new(),
        })))
    }

    /// Creates a backend with virtual memory.
    pub fn with_pages(capacity: usize) -> Self {
        let fake = Self::new(capacity);
        fake.world().has_pages = true;
        fake
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues work that completes at [`Fake::complete`] or when the host waits for it.
    pub fn launch(&self, stream: u64) {
        *self.world().submitted.entry(stream).or_default() += 1;
    }

    /// Enqueues work that uses the block until it completes.
    pub fn launch_on(&self, stream: u64, block: &Block<Fake>) {
        self.launch(stream);
        let mut world = self.world();
        let at = world.submitted[&stream];
        let open: Vec<_> = std::mem::take(&mut world.used)
            .into_iter()
            .filter(|&(stream, at, ..)| !world.is_done(stream, at))
            .collect();
        world.used = open;
        world.used.push((stream, at, block.address(), block.address() + block.size() as u64));
    }

    /// Completes all work enqueued on the stream.
    pub fn complete(&self, stream: u64) {
        let mut world = self.world();
        let submitted = world.submitted.get(&stream).copied().unwrap_or(0);
        world.completed.insert(stream, submitted);
    }

    /// Returns the number of completed operations of the stream.
    pub fn completed(&self, stream: u64) -> u64 {
        self.world().completed.get(&stream).copied().unwrap_or(0)
    }

    pub fn allocator(&self, options: &str) -> CachingAllocator<Fake> {
        CachingAllocator::new(self.clone(), AllocatorConfig::parse(options).unwrap())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory, FakeError> {
        let mut world = self.world();
        assert!(bytes > 0, "a request of no bytes reached the backend");
        world.call()?;
        if let Some(error) = world.fail_alloc {
            return Err(error);
        }
        if world.used().checked_add(bytes).is_none_or(|used| used > world.capacity) {
            return Err(FakeError::OutOfMemory);
        }
        let address = world.next_address;
        // Leaves a gap between segments, so that a merge across segments fails the checks.
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
        world.assert_no_capture("memory went");
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
        assert_ne!(world.capturing, Some(*stream), "an event was recorded during its capture");
        world.call()?;
        if world.foreign.contains(stream) {
            return Err(FakeError::Fault);
        }
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
            assert_ne!(world.capturing, Some(*stream), "recorded during its capture");
        }
        self.world().call()?;
        if self.world().foreign.contains(stream) {
            return Err(FakeError::Fault);
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
        world.assert_no_capture("an event was queried");
        world.call()?;
        world.queries += 1;
        match world.fail_query {
            Some(error) => Err(error),
            None => Ok(world.completed.get(&event.stream).copied().unwrap_or(0) >= event.at),
        }
    }

    fn synchronize(&self, event: &Event) -> Result<(), FakeError> {
        let mut world = self.world();
        world.assert_no_capture("an event was waited for");
        world.call()?;
        world.syncs += 1;
        if let Some(error) = world.fail_query {
            return Err(error);
        }
        let completed = world.completed.entry(event.stream).or_default();
        *completed = event.at.max(*completed);
        let act = world.after_sync.take();
        drop(world);
        if let Some(Act(act)) = act {
            act();
        }
        Ok(())
    }

    fn wait(&self, stream: &u64, event: &Event) -> Result<(), FakeError> {
        let mut world = self.world();
        world.call()?;
        world.waits.push((*stream, event.stream));
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

    fn free(memory: Memory) -> Result<(), Memory> {
        let mut world = memory.world.world();
        world.assert_no_capture("memory went");
        let refused = world.refuses();
        drop(world);
        if refused { Err(memory) } else { Ok(()) }
    }

    fn synchronize_device(&self) -> Result<bool, FakeError> {
        let mut world = self.world();
        if !world.waits_for_device {
            return Ok(false);
        }
        world.assert_no_capture("the device was waited for");
        world.call()?;
        if let Some(error) = world.fail_device_wait {
            return Err(error);
        }
        world.device_waits += 1;
        world.completed = world.submitted.clone();
        Ok(true)
    }

    fn address(memory: &Memory) -> u64 {
        memory.address
    }

    fn is_out_of_memory(&self, error: &FakeError) -> bool {
        *error == FakeError::OutOfMemory
    }

    fn mem_info(&self) -> Result<(usize, usize), FakeError> {
        let mut world = self.world();
        // The query itself needs no memory, so it ignores an injected lack of memory.
        world.call().or_else(|error| match error {
            FakeError::OutOfMemory => Ok(()),
            error => Err(error),
        })?;
        Ok((world.capacity - world.used(), world.capacity))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<FakeError>> {
        self.world().has_pages.then_some(self as &dyn VirtualMemory<FakeError>)
    }

    fn device(&self) -> String {
        String::from("fake:0")
    }
}

struct Range {
    address: u64,
    world: Fake,
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut world = self.world.world();
        let size = world.ranges.remove(&self.address).unwrap() as u64;
        let inside = world.mappings.range(self.address..self.address + size).next();
        assert!(inside.is_none(), "addresses were released while a mapping was there");
    }
}

struct Page {
    number: u64,
    world: Fake,
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut world = self.world.world();
        assert!(world.pages.remove(&self.number).is_some());
        world.frees += 1;
        let mapped = world.mappings.values().any(|&(_, page)| page == self.number);
        assert!(!mapped, "a page was released while it was mapped");
    }
}

/// A mapping, which keeps its page alive.
struct Mapping {
    address: u64,
    world: Fake,
    _page: Arc<Page>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut world = self.world.world();
        let (size, _) = world.mappings.remove(&self.address).unwrap();
        let end = self.address + size as u64;
        let mut uses = world.used.iter().filter(|used| used.2 < end && self.address < used.3);
        let open = uses.find(|used| !world.is_done(used.0, used.1));
        assert!(open.is_none(), "unmapped while work uses it: {open:x?}");
        world.unmaps += 1;
    }
}

impl VirtualMemory<FakeError> for Fake {
    fn granularity(&self) -> usize {
        2 * MIB
    }

    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), FakeError> {
        assert!(bytes > 0 && bytes.is_multiple_of(2 * MIB));
        let mut world = self.world();
        world.call()?;
        if world.ranges.len() >= world.max_ranges {
            return Err(FakeError::OutOfMemory);
        }
        // Round start addresses make failures easier to read.
        let address = world.next_address.next_multiple_of(1 << 36);
        world.next_address = address + bytes as u64 + 2 * MIB as u64;
        world.ranges.insert(address, bytes);
        Ok((address, Box::new(Range { address, world: self.clone() })))
    }

    fn create(&self, bytes: usize) -> Result<Handle, FakeError> {
        assert!(bytes > 0 && bytes.is_multiple_of(2 * MIB));
        let mut world = self.world();
        world.call()?;
        if let Some(error) = world.fail_alloc {
            return Err(error);
        }
        if world.used().checked_add(bytes).is_none_or(|used| used > world.capacity) {
            world.refused += 1;
            return Err(FakeError::OutOfMemory);
        }
        let number = world.next_address;
        world.next_address += 2 * MIB as u64;
        world.pages.insert(number, bytes);
        world.asked.push(bytes);
        Ok(Box::new(Arc::new(Page { number, world: self.clone() })))
    }

    fn map(&self, range: &Handle, offset: usize, memory: &Handle) -> Result<Handle, FakeError> {
        let range = range.downcast_ref::<Range>().unwrap();
        let page = memory.downcast_ref::<Arc<Page>>().unwrap();
        let mut world = self.world();
        world.call()?;
        if let Some(error) = world.fail_map {
            return Err(error);
        }
        let size = world.pages[&page.number];
        assert!(offset + size <= world.ranges[&range.address], "a mapping lies in its range");
        let address = range.address + offset as u64;
        let before = world.mappings.range(..address + size as u64).next_back();
        assert!(before.is_none_or(|(at, (size, _))| at + *size as u64 <= address), "mapped twice");
        world.mappings.insert(address, (size, page.number));
        world.maps += 1;
        Ok(Box::new(Mapping { address, world: self.clone(), _page: Arc::clone(page) }))
    }

    fn release(&self, handle: Handle) -> Result<(), Handle> {
        let refused = self.world().refuses();
        if refused { Err(handle) } else { Ok(()) }
    }
}

impl HostBackend for Fake {
    type HostMemory = Memory;

    fn alloc_host(&self, bytes: usize, _: &HostConfig) -> Result<Memory, FakeError> {
        assert!(bytes.is_multiple_of(4096), "host memory of {bytes} bytes");
        self.allocate(bytes)
    }

    fn free_host(memory: Memory) -> Result<(), Memory> {
        <Self as Backend>::free(memory)
    }
}

/// A linear congruential generator.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    /// Returns a size: often a few KiB, sometimes many MiB.
    pub fn bytes(&mut self) -> usize {
        let most = [4 << 10, 4 << 10, 64 << 10, MIB, 3 * MIB, 24 * MIB][self.below(6)];
        1 + self.below(most)
    }
}
