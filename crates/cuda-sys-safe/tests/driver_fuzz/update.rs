//! Updates the model with the result of a step.

use std::collections::{BTreeMap, BTreeSet};

use crate::admit::StepEffect;
use crate::model::*;
use crate::order::{Clock, OpId, TIMELINES};
use crate::step::*;

impl Model {
    /// Updates the model. `fine` tells whether the step was accepted, and `waited` whether the step
    /// waited and thereby opened the gate. `status` has a letter per stream with the stream's
    /// capture status, or is empty if the status was not queried.
    pub(crate) fn update(
        &mut self,
        index: usize,
        step: &Step,
        plan: &StepEffect,
        fine: bool,
        waited: bool,
        status: &str,
    ) {
        if waited {
            self.gate = None;
        }
        if fine {
            self.done(index, step, plan);
        }
        self.follow(status);
    }

    fn done(&mut self, index: usize, step: &Step, plan: &StepEffect) {
        use Step::*;
        match *step {
            StreamCreate { stream, device, non_blocking, .. } => {
                let timeline = (self.devices + self.streams.len()).min(TIMELINES - 2);
                let clock = Clock::default();
                let state = StreamState {
                    device,
                    non_blocking,
                    legacy: false,
                    alive: true,
                    timeline,
                    clock,
                    capture: None,
                    frontier: BTreeSet::new(),
                };
                self.streams.insert(stream, state);
            }
            StreamDestroy { stream } => {
                if let Some(s) = self.streams.get_mut(&stream) {
                    (s.alive, s.capture) = (false, None);
                }
            }
            StreamSynchronize { stream } => {
                let clock = self.streams[&stream].clock;
                self.host.join(&clock);
            }
            EventCreate { event, device, interprocess, .. } => {
                let (recorded, captured) = (None, None);
                let state = EventState { device, interprocess, alive: true, recorded, captured };
                self.events.insert(event, state);
            }
            EventDestroy { event } => {
                if let Some(e) = self.events.get_mut(&event) {
                    e.alive = false;
                }
            }
            EventRecord { event, stream } => {
                let s = &self.streams[&stream];
                let captured = s.capture.map(|id| (id, s.frontier.clone()));
                let legacy = s.legacy;
                let recorded = captured.is_none().then(|| match legacy {
                    true => self.advance(stream).1,
                    false => self.advance_alone(stream),
                });
                if let Some(e) = self.events.get_mut(&event) {
                    e.captured = captured;
                    e.recorded = recorded.or(e.recorded);
                }
            }
            EventWait { stream, event } => self.wait(stream, event),
            EventSynchronize { event } => {
                let clock = self.events[&event].recorded.unwrap_or_default();
                self.host.join(&clock);
            }
            Synchronize { device } => {
                let clock = self.device_clock(device);
                self.host.join(&clock);
            }
            MemAlloc { buf, device, bytes } => {
                self.add_buf(buf, MemoryKind::Alloc, device, bytes, false);
            }
            MemFree { buf, .. } | HostFree { buf, .. } | FreeAsync { buf, .. } => {
                if let Some(b) = self.bufs.get_mut(&buf) {
                    b.alive = false;
                }
                if let FreeAsync { stream, .. } = *step {
                    let since = self.advance_alone(stream);
                    if let Some(b) = self.bufs.get_mut(&buf) {
                        b.since = since;
                    }
                }
            }
            HostAlloc { buf, device, bytes } => {
                self.add_buf(buf, MemoryKind::Pinned, device, bytes, false);
            }
            Pageable { buf, bytes } => self.add_buf(buf, MemoryKind::Pageable, 0, bytes, true),
            HostRegister { buf, .. } => self.set_kind(buf, MemoryKind::Registered),
            HostUnregister { buf, .. } => self.set_kind(buf, MemoryKind::Pageable),
            HostWrite { buf, .. } => {
                let (content, len) = (self.bufs[&buf].content, self.bufs[&buf].bytes);
                let (op, clock) = self.advance_host();
                self.contents[content].write(0, len, op, &clock, true);
            }
            Copy { by, .. } => self.copied(by, plan),
            Memset { stream, .. } | Launch { stream, .. } => {
                if let Some(work) = &plan.work {
                    self.enqueued(stream, vec![*work], false);
                }
            }
            HostFunction { stream, .. } => {
                let (op, clock) = self.advance(stream);
                self.host_fns.push(HostFn { step: index, op, clock });
            }
            Gate { stream } => {
                let (op, _) = self.advance(stream);
                self.gate = Some(op);
                self.gated_device = self.streams[&stream].device;
            }
            OpenGate => self.gate = None,
            BeginCapture { stream, .. } => {
                self.captures.push(Vec::new());
                let id = self.captures.len() - 1;
                if let Some(s) = self.streams.get_mut(&stream) {
                    (s.capture, s.frontier) = (Some(id), BTreeSet::new());
                }
            }
            EndCapture { stream, graph } => {
                let id = self.streams[&stream].capture;
                let nodes = id.map(|id| std::mem::take(&mut self.captures[id]));
                let state = graph_of(&nodes.unwrap_or_default());
                self.graphs.insert(graph, state);
            }
            Instantiate { graph, exec } => {
                let state = self.graphs[&graph].clone();
                self.execs.insert(exec, state);
            }
            GraphLaunch { exec, stream } => {
                let x = self.execs[&exec].clone();
                if x.work.is_empty() {
                    // Replays of an empty graph are not ordered.
                    match self.streams[&stream].capture {
                        Some(_) => _ = self.enqueued(stream, Vec::new(), false),
                        None => _ = self.advance_alone(stream),
                    }
                    return;
                }
                if self.streams[&stream].capture.is_none()
                    && let Some(s) = self.streams.get_mut(&stream)
                {
                    s.clock.join(&x.latest);
                }
                let latest = self.enqueued(stream, x.work, x.racy);
                if let (Some(latest), Some(x)) = (latest, self.execs.get_mut(&exec)) {
                    x.latest = latest;
                }
            }
            GraphDestroy { graph } => {
                if let Some(g) = self.graphs.get_mut(&graph) {
                    g.alive = false;
                }
            }
            ExecDestroy { exec } => {
                if let Some(x) = self.execs.get_mut(&exec) {
                    x.alive = false;
                }
            }
            Reserve { range, device, pages, .. } => {
                let mappings = BTreeMap::new();
                let state = RangeState { device, pages, alive: true, mappings };
                self.ranges.insert(range, state);
            }
            AddressFree { range, .. } => {
                if let Some(r) = self.ranges.get_mut(&range) {
                    r.alive = false;
                }
            }
            Create { memory, device, pages, .. } => {
                let contents = (0..pages).map(|_| self.content(PAGE, false)).collect();
                self.physical.insert(memory, Physical { device, pages, alive: true, contents });
            }
            Release { memory } => {
                if let Some(p) = self.physical.get_mut(&memory) {
                    p.alive = false;
                }
            }
            Map { range, page, pages, memory, .. } => {
                let mapping = Mapping { id: self.fresh(), pages, memory, access: BTreeMap::new() };
                if let Some(r) = self.ranges.get_mut(&range) {
                    r.mappings.insert(page, mapping);
                }
            }
            SetAccess { range, page, pages, device, access } => {
                if let Some(r) = self.ranges.get_mut(&range) {
                    for (_, mapping) in r.mappings.range_mut(page..page + pages) {
                        mapping.access.insert(device, access);
                    }
                }
            }
            Unmap { range, page, pages, .. } => {
                if let Some(r) = self.ranges.get_mut(&range) {
                    r.mappings.retain(|&at, _| at < page || at >= page + pages);
                }
            }
            PoolCreate { pool, device } => {
                self.pools.insert(pool, PoolState { device, alive: true, bufs: Vec::new() });
            }
            PoolDestroy { pool } => {
                if let Some(p) = self.pools.get_mut(&pool) {
                    p.alive = false;
                }
            }
            AllocAsync { buf, pool, bytes, stream } => {
                let (device, since) = (self.pools[&pool].device, self.advance_alone(stream));
                self.add_buf(buf, MemoryKind::Pool, device, bytes, false);
                if let Some(b) = self.bufs.get_mut(&buf) {
                    b.since = since;
                }
                if let Some(p) = self.pools.get_mut(&pool) {
                    p.bufs.push(buf);
                }
            }
            PeerEnable { device, peer } => {
                self.peers.insert((device, peer));
            }
            PeerDisable { device, peer } => {
                self.peers.remove(&(device, peer));
            }
            Fail { .. } => self.lost = true,
            StreamQuery { .. } | StreamPriority { .. } | EventQuery { .. } => {}
            EventElapsed { .. } | HostRead { .. } | LaunchRefused { .. } => {}
            CaptureStatus { .. } | ThreadMode { .. } | PoolThreshold { .. } => {}
            PoolTrim { .. } | PeerCan { .. } | PointerKind { .. } | Module { .. } => {}
            IpcMemory { .. } | IpcEvent { .. } | Ask { .. } => {}
        }
    }

    fn add_buf(
        &mut self,
        buf: Id,
        kind: MemoryKind,
        device: usize,
        bytes: usize,
        determined: bool,
    ) {
        let content = self.content(bytes, determined);
        let since = Clock::default();
        self.bufs.insert(buf, Buf { kind, device, bytes, content, alive: true, since });
    }

    fn set_kind(&mut self, buf: Id, kind: MemoryKind) {
        if let Some(b) = self.bufs.get_mut(&buf) {
            b.kind = kind;
        }
    }

    fn wait(&mut self, stream: Id, event: Id) {
        let event = self.events[&event].clone();
        match event.captured {
            Some((id, frontier)) if self.streams.values().any(|s| s.capture == Some(id)) => {
                if let Some(s) = self.streams.get_mut(&stream) {
                    if s.capture != Some(id) {
                        s.frontier.clear();
                    }
                    s.capture = Some(id);
                    s.frontier.extend(frontier);
                }
            }
            Some(_) => {}
            None => {
                if let Some(s) = self.streams.get_mut(&stream)
                    && s.capture.is_none()
                {
                    s.clock.join(&event.recorded.unwrap_or_default());
                }
            }
        }
    }

    /// Adds work to a stream, or to the stream's capture. Returns the clock of work that runs.
    fn enqueued(&mut self, stream: Id, work: Vec<WorkAccess>, racy: bool) -> Option<Clock> {
        if let Some(id) = self.streams[&stream].capture {
            let after = self.streams[&stream].frontier.clone();
            self.captures[id].push(Node { work, after, racy });
            let node = self.captures[id].len() - 1;
            if let Some(s) = self.streams.get_mut(&stream) {
                s.frontier = BTreeSet::from([node]);
            }
            return None;
        }
        let (op, clock) = self.advance(stream);
        for work in &work {
            self.run(work, op, &clock);
        }
        for w in work.iter().map(|work| work.writes).filter(|_| racy) {
            self.contents[w.content].make_undetermined(w.at, w.len);
        }
        Some(clock)
    }

    fn copied(&mut self, by: By, plan: &StepEffect) {
        let stream = match by {
            By::Stream(stream) => stream,
            By::Device(device) => device as Id,
        };
        let Some(mut work) = plan.work else { return };
        let Some(from) = work.reads else { return };
        let early = self.may_be_read_early(stream, &work);
        let captured = self.streams[&stream].capture.is_some();
        if captured || from.kind != MemoryKind::Pageable || work.writes.device.is_none() {
            if let Some(clock) = self.enqueued(stream, vec![work], early) {
                let pageable = |kind| kind == MemoryKind::Pageable;
                let host = from.device.is_none() || work.writes.device.is_none();
                let waited = pageable(work.writes.kind)
                    || (from.device.is_none() && work.writes.device.is_none())
                    || (matches!(by, By::Device(_)) && host);
                if waited {
                    self.host.join(&clock);
                }
            }
            return;
        }
        // The driver reads a pageable source before the call returns.
        let (op, clock) = self.advance_host();
        let known = self.contents[from.content].read(from.at, from.len, op, &clock);
        work.reads = None;
        self.enqueued(stream, vec![work], !known);
    }

    /// Returns `true` if the driver may read the source too early, because only the rule of the
    /// default stream orders the write of the source before the copy. An early read was seen for a
    /// few bytes of page-locked memory.
    fn may_be_read_early(&self, stream: Id, work: &WorkAccess) -> bool {
        let s = &self.streams[&stream];
        let takes_part = s.legacy || !s.non_blocking;
        let Some(from) = work.reads.filter(|from| takes_part && from.device.is_none()) else {
            return false;
        };
        let mut alone = s.clock;
        alone.join(&self.host);
        let op = OpId { timeline: s.timeline, number: 0 };
        !self.contents[from.content].clone().read(from.at, from.len, op, &alone)
    }

    /// Updates the capture of each stream. `status` has one letter per stream that the program
    /// created, in the order of ids.
    fn follow(&mut self, status: &str) {
        let letters: Vec<char> = status.chars().collect();
        let alive = self.streams.values_mut().filter(|s| s.alive && !s.legacy);
        let mut strays = Vec::new();
        for (s, letter) in alive.zip(letters) {
            match (letter, s.capture) {
                ('-', _) => (s.capture, s.frontier) = (None, BTreeSet::new()),
                (_, None) => strays.push(s),
                _ => {}
            }
        }
        // The model does not know the rule by which these streams joined a capture, so their work
        // belongs to no known graph.
        for s in strays {
            self.captures.push(Vec::new());
            s.capture = Some(self.captures.len() - 1);
        }
    }
}

/// Returns the graph of a capture. The graph is racy if unordered nodes conflict over memory, or a
/// node is racy.
fn graph_of(nodes: &[Node]) -> GraphState {
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    let mut racy = nodes.iter().any(|n| n.racy);
    for (index, node) in nodes.iter().enumerate() {
        let mut all = node.after.clone();
        for &n in &node.after {
            all.extend(before[n].iter().copied());
        }
        for other in (0..index).filter(|other| !all.contains(other)) {
            racy |= nodes[other].work.iter().any(|a| node.work.iter().any(|b| conflict(a, b)));
        }
        before.push(all);
    }
    let work = nodes.iter().flat_map(|n| n.work.clone()).collect();
    GraphState { alive: true, work, racy, latest: Clock::default() }
}

fn conflict(a: &WorkAccess, b: &WorkAccess) -> bool {
    let meet = |x: &Region, y: &Region| {
        x.content == y.content && x.at < y.at + y.len && y.at < x.at + x.len
    };
    let touches = |w: &Region, other: &WorkAccess| {
        meet(w, &other.writes) || other.reads.is_some_and(|r| meet(w, &r))
    };
    touches(&a.writes, b) || touches(&b.writes, a)
}
