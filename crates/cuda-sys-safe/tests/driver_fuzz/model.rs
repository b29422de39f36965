//! A model of the program so far: live objects, order of operations, and admissible calls. It
//! follows the results that a driver returned, and predicts none.

use std::collections::{BTreeMap, BTreeSet};

use crate::order::{Clock, ContentHistory, HOST, OpId, TIMELINES};
use crate::step::*;

/// Size of a page of virtual memory.
pub(crate) const PAGE: usize = 2 << 20;

#[derive(Clone, Debug)]
pub(crate) struct StreamState {
    pub(crate) device: usize,
    pub(crate) non_blocking: bool,
    pub(crate) legacy: bool,
    pub(crate) alive: bool,
    pub(crate) timeline: usize,
    pub(crate) clock: Clock,
    pub(crate) capture: Option<usize>,
    pub(crate) frontier: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct EventState {
    pub(crate) device: usize,
    pub(crate) interprocess: bool,
    pub(crate) alive: bool,
    pub(crate) recorded: Option<Clock>,
    pub(crate) captured: Option<(usize, BTreeSet<usize>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Alloc,
    Pool,
    Pinned,
    Pageable,
    Registered,
}

#[derive(Clone, Debug)]
pub(crate) struct Buf {
    pub(crate) kind: MemoryKind,
    pub(crate) device: usize,
    pub(crate) bytes: usize,
    pub(crate) content: usize,
    pub(crate) alive: bool,
    /// For pool memory: the point of the allocation, or of the free.
    pub(crate) since: Clock,
}

#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) id: usize,
    pub(crate) pages: usize,
    pub(crate) memory: Id,
    pub(crate) access: BTreeMap<usize, Access>,
}

#[derive(Clone, Debug)]
pub(crate) struct RangeState {
    pub(crate) device: usize,
    pub(crate) pages: usize,
    pub(crate) alive: bool,
    pub(crate) mappings: BTreeMap<usize, Mapping>,
}

#[derive(Clone, Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) pages: usize,
    pub(crate) alive: bool,
    pub(crate) contents: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct PoolState {
    pub(crate) device: usize,
    pub(crate) alive: bool,
    /// All buffers that were allocated from the pool.
    pub(crate) bufs: Vec<Id>,
}

/// The object that a region's addresses belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Buf(Id),
    Mapping(Id, usize),
}

/// The memory at a [`Place`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) origin: Origin,
    /// The owning device, or `None` for host memory.
    pub(crate) device: Option<usize>,
    pub(crate) kind: MemoryKind,
    pub(crate) content: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The memory accesses of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkAccess {
    pub(crate) device: usize,
    pub(crate) kernel: bool,
    pub(crate) reads: Option<Region>,
    pub(crate) writes: Region,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) work: Vec<WorkAccess>,
    pub(crate) after: BTreeSet<usize>,
    pub(crate) racy: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GraphState {
    pub(crate) alive: bool,
    pub(crate) work: Vec<WorkAccess>,
    pub(crate) racy: bool,
    /// For executable graphs: the latest launch.
    pub(crate) latest: Clock,
}

/// A host function on a stream.
#[derive(Clone, Debug)]
pub(crate) struct HostFn {
    pub(crate) step: usize,
    pub(crate) op: OpId,
    pub(crate) clock: Clock,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) devices: usize,
    pub(crate) streams: BTreeMap<Id, StreamState>,
    pub(crate) events: BTreeMap<Id, EventState>,
    pub(crate) bufs: BTreeMap<Id, Buf>,
    pub(crate) ranges: BTreeMap<Id, RangeState>,
    pub(crate) physical: BTreeMap<Id, Physical>,
    pub(crate) pools: BTreeMap<Id, PoolState>,
    pub(crate) graphs: BTreeMap<Id, GraphState>,
    pub(crate) execs: BTreeMap<Id, GraphState>,
    pub(crate) captures: Vec<Vec<Node>>,
    pub(crate) contents: Vec<ContentHistory>,
    pub(crate) host: Clock,
    /// Number of operations in each timeline.
    counts: [u32; TIMELINES],
    /// The operation that holds a stream back.
    pub(crate) gate: Option<OpId>,
    pub(crate) gated_device: usize,
    pub(crate) peers: BTreeSet<(usize, usize)>,
    pub(crate) host_fns: Vec<HostFn>,
    /// Whether a sticky fault was injected.
    pub(crate) lost: bool,
    next: usize,
}

impl Model {
    pub(crate) fn new(devices: usize) -> Self {
        let legacy = |device: usize| StreamState {
            device,
            non_blocking: false,
            legacy: true,
            alive: true,
            timeline: device,
            clock: Clock::default(),
            capture: None,
            frontier: BTreeSet::new(),
        };
        Self {
            devices,
            streams: (0..devices).map(|d| (d as Id, legacy(d))).collect(),
            events: BTreeMap::new(),
            bufs: BTreeMap::new(),
            ranges: BTreeMap::new(),
            physical: BTreeMap::new(),
            pools: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            captures: Vec::new(),
            contents: Vec::new(),
            host: Clock::default(),
            counts: [0; TIMELINES],
            gate: None,
            gated_device: 0,
            peers: BTreeSet::new(),
            host_fns: Vec::new(),
            lost: false,
            next: 0,
        }
    }

    /// Returns a number that was not used before.
    pub(crate) fn fresh(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    pub(crate) fn content(&mut self, bytes: usize, determined: bool) -> usize {
        self.contents.push(ContentHistory::new(bytes, determined));
        self.contents.len() - 1
    }

    pub(crate) fn stream(&self, id: Id) -> Option<&StreamState> {
        self.streams.get(&id).filter(|s| s.alive)
    }

    pub(crate) fn event(&self, id: Id) -> Option<&EventState> {
        self.events.get(&id).filter(|e| e.alive)
    }

    pub(crate) fn buf(&self, id: Id) -> Option<&Buf> {
        self.bufs.get(&id).filter(|b| b.alive)
    }

    /// Returns `true` if a stream is in a capture, valid or not.
    pub(crate) fn capturing(&self) -> bool {
        self.streams.values().any(|s| s.alive && s.capture.is_some())
    }

    /// Returns all operations before the next operation of a stream.
    pub(crate) fn before(&self, stream: &StreamState) -> Clock {
        let mut clock = stream.clock;
        clock.join(&self.host);
        for other in self.streams.values().filter(|o| o.device == stream.device) {
            let implicit = (stream.legacy && !other.non_blocking)
                || (other.legacy && !stream.non_blocking && !stream.legacy);
            if implicit && other.capture.is_none() {
                clock.join(&other.clock);
            }
        }
        clock
    }

    /// Adds an operation to a stream. Returns the operation, and the clock that includes it and all
    /// operations before it.
    pub(crate) fn advance(&mut self, id: Id) -> (OpId, Clock) {
        let stream = &self.streams[&id];
        let mut clock = self.before(stream);
        let timeline = stream.timeline;
        self.counts[timeline] += 1;
        let op = OpId { timeline, number: self.counts[timeline] };
        clock.0[timeline] = op.number;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.clock = clock;
        }
        (op, clock)
    }

    /// Adds an operation that may ignore the implicit order of the default stream. Returns its
    /// clock.
    pub(crate) fn advance_alone(&mut self, id: Id) -> Clock {
        let (host, streams) = (self.host, &mut self.streams);
        let Some(stream) = streams.get_mut(&id) else { return host };
        self.counts[stream.timeline] += 1;
        stream.clock.join(&host);
        stream.clock.0[stream.timeline] = self.counts[stream.timeline];
        stream.clock
    }

    /// Adds an operation of the host.
    pub(crate) fn advance_host(&mut self) -> (OpId, Clock) {
        self.counts[HOST] += 1;
        let op = OpId { timeline: HOST, number: self.counts[HOST] };
        self.host.0[HOST] = op.number;
        (op, self.host)
    }

    /// Returns `true` if operations after `clock` are held back.
    pub(crate) fn behind_gate(&self, clock: &Clock) -> bool {
        self.gate.is_some_and(|gate| clock.has(gate))
    }

    /// Returns `true` if a call may wait for `clock` now: no stream is held back, or the work of
    /// `clock` is behind the gate, or this work is done. In other cases, streams may share hardware
    /// queues and hold each other back.
    pub(crate) fn may_wait_for(&self, clock: &Clock) -> bool {
        self.gate.is_none() || self.behind_gate(clock) || self.host.covers(clock)
    }

    /// Finds the memory of `len` bytes at a place, if all of it is alive.
    pub(crate) fn find(&self, place: Place, len: usize) -> Option<Region> {
        match place {
            Place::Buf { buf, at } => {
                let b = self.buf(buf)?;
                let fits = at.checked_add(len)? <= b.bytes;
                let host = matches!(
                    b.kind,
                    MemoryKind::Pinned | MemoryKind::Pageable | MemoryKind::Registered
                );
                fits.then_some(Region {
                    origin: Origin::Buf(buf),
                    device: (!host).then_some(b.device),
                    kind: b.kind,
                    content: b.content,
                    at,
                    len,
                })
            }
            Place::Page { range, page, at } => {
                let r = self.ranges.get(&range).filter(|r| r.alive)?;
                let (&first, mapping) = r.mappings.range(..=page).next_back()?;
                let memory = &self.physical[&mapping.memory];
                let fits = page < first + mapping.pages && at + len <= crate::order::TRACKED;
                fits.then(|| Region {
                    origin: Origin::Mapping(range, mapping.id),
                    device: Some(memory.device),
                    kind: MemoryKind::Alloc,
                    content: memory.contents[page - first],
                    at,
                    len,
                })
            }
        }
    }

    /// Returns the mapping of a region, if it has not been replaced.
    pub(crate) fn mapping(&self, range: Id, id: usize) -> Option<&Mapping> {
        let range = self.ranges.get(&range).filter(|r| r.alive)?;
        range.mappings.values().find(|m| m.id == id)
    }

    /// Returns `true` if a region still exists and work on `device` may access it.
    pub(crate) fn reachable(&self, region: &Region, device: usize, kernel: bool) -> bool {
        match region.origin {
            Origin::Buf(buf) => {
                let Some(b) = self.buf(buf) else { return false };
                match b.kind {
                    MemoryKind::Pinned => true,
                    MemoryKind::Pageable | MemoryKind::Registered => !kernel,
                    MemoryKind::Alloc => {
                        !kernel || b.device == device || self.peers.contains(&(device, b.device))
                    }
                    MemoryKind::Pool => b.device == device,
                }
            }
            Origin::Mapping(range, id) => self.mapping(range, id).is_some_and(|mapping| {
                let open = |d: &usize| mapping.access.get(d) == Some(&Access::ReadWrite);
                open(&device) && region.device.as_ref().is_some_and(open)
            }),
        }
    }

    /// Returns `true` if work may run after `clock`: all its memory is accessible, and no unordered
    /// earlier read could see the bytes that it writes.
    pub(crate) fn safe(&self, work: &WorkAccess, clock: &Clock) -> bool {
        let regions = work.reads.iter().chain([&work.writes]);
        let there = |r: &Region| {
            self.reachable(r, work.device, work.kernel)
                && match r.origin {
                    Origin::Buf(buf) => clock.covers(&self.bufs[&buf].since),
                    Origin::Mapping(..) => true,
                }
        };
        let writes = &work.writes;
        regions.into_iter().all(there)
            && !self.contents[writes.content].read_by_others(writes.at, writes.len, clock)
    }

    /// Records work as part of the operation `op`.
    pub(crate) fn run(&mut self, work: &WorkAccess, op: OpId, clock: &Clock) {
        let known =
            work.reads.is_none_or(|r| self.contents[r.content].read(r.at, r.len, op, clock));
        let w = work.writes;
        self.contents[w.content].write(w.at, w.len, op, clock, known);
    }

    /// Returns, for each byte of a buffer, whether the order of operations determines the value
    /// that the host reads.
    pub(crate) fn known(&self, buf: &Buf) -> Vec<bool> {
        self.contents[buf.content].seen(&self.host, buf.bytes)
    }

    /// Returns `true` if all uses of a [`ContentHistory`] are known to be done.
    pub(crate) fn idle(&self, content: usize) -> bool {
        self.contents[content].untouched_since(&self.host)
    }

    /// Returns `true` if all pending uses of a [`ContentHistory`] run on `device`.
    pub(crate) fn used_only_on(&self, content: usize, device: usize) -> bool {
        let pending = self.contents[content].pending(&self.host);
        let of = |timeline: usize| {
            self.streams.values().find(|s| s.timeline == timeline).map(|s| s.device)
        };
        pending.into_iter().all(|timeline| of(timeline) == Some(device))
    }

    /// Returns the clock of all work that is enqueued on a device.
    pub(crate) fn device_clock(&self, device: usize) -> Clock {
        let mut clock = Clock::default();
        for stream in self.streams.values().filter(|s| s.device == device) {
            clock.join(&stream.clock);
        }
        clock
    }
}
