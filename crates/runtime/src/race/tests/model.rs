//! Random programs of streams, events, views, copies, frees and host code. The model has a graph of
//! operations and sets of bytes: two conflicting accesses race if no path connects them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_stream::{Event, Stream};

use super::program::{Arg, BYTES, EVENTS, PINNED, SLOTS, STREAMS, Step, layouts, op, step};
use crate::launch::enqueue;
use crate::race::{Touch, check_host};
use crate::{DType, Operand, Runtime, RuntimeConfig, Site, Storage, SyncPolicy, View};

/// An access by one argument of an op, in the model.
#[derive(Debug)]
struct Accessed {
    op: &'static str,
    argument: usize,
    node: usize,
    stream: usize,
    bytes: HashSet<u64>,
    writes: bool,
}

/// A freed block: the stream of its allocation, and the nodes ordered before the free on that
/// stream.
type Freed = (usize, Vec<usize>);

struct Model {
    runtime: Runtime,
    streams: Vec<Stream>,
    events: Vec<Event>,
    slots: Vec<(Storage, usize)>,
    allocator_streams: Vec<Vec<usize>>,
    /// The direct predecessors of each node.
    before: Vec<Vec<usize>>,
    host: Vec<usize>,
    last: Vec<Option<usize>>,
    recorded: Vec<Option<usize>>,
    accessed: Vec<Accessed>,
    freed: BTreeMap<u64, Freed>,
    ops: usize,
    races: usize,
    pairs: usize,
}

fn device_of(stream: usize) -> usize {
    usize::from(stream == STREAMS - 1)
}

fn alloc_stream_of(slot: usize, stream: usize) -> usize {
    if slot == 3 { STREAMS - 1 } else { stream.min(STREAMS - 2) }
}

impl Model {
    fn new() -> Self {
        let config = RuntimeConfig { sync_policy: SyncPolicy::Manual, ..RuntimeConfig::default() };
        let runtime = Runtime::new(Arc::new(NullDriver::new(2)), config).unwrap();
        let stream =
            |s| runtime.device(device_of(s)).unwrap().device().exclusive_stream(0).unwrap();
        let streams: Vec<Stream> = (0..STREAMS).map(stream).collect();
        let slots = (0..SLOTS).map(|slot| {
            if slot == PINNED {
                return (Storage::pinned(&runtime, BYTES).unwrap(), 0);
            }
            let alloc_stream = alloc_stream_of(slot, slot);
            (Storage::device(&runtime, BYTES, &streams[alloc_stream]).unwrap(), alloc_stream)
        });
        Self {
            slots: slots.collect(),
            runtime,
            streams,
            events: (0..EVENTS).map(|_| Event::default()).collect(),
            allocator_streams: vec![Vec::new(); SLOTS],
            before: Vec::new(),
            host: Vec::new(),
            last: vec![None; STREAMS],
            recorded: vec![None; EVENTS],
            accessed: Vec::new(),
            freed: BTreeMap::new(),
            ops: 0,
            races: 0,
            pairs: 0,
        }
    }

    fn node(&mut self, before: impl IntoIterator<Item = usize>) -> usize {
        self.before.push(before.into_iter().chain(self.host.iter().copied()).collect());
        self.before.len() - 1
    }

    fn reaches(&self, from: usize, to: impl IntoIterator<Item = usize>) -> bool {
        let mut open: Vec<usize> = to.into_iter().collect();
        let mut seen = vec![false; self.before.len()];
        while let Some(node) = open.pop() {
            if node == from {
                return true;
            }
            if !std::mem::replace(&mut seen[node], true) {
                open.extend(&self.before[node]);
            }
        }
        false
    }

    fn bytes(&self, arg: Arg) -> HashSet<u64> {
        let layout = &layouts()[arg.layout];
        let mut starts = vec![layout.offset() as isize];
        for (&size, &stride) in layout.sizes().iter().zip(layout.strides()) {
            let steps = 0..size as isize;
            starts =
                starts.iter().flat_map(|at| steps.clone().map(move |i| at + i * stride)).collect();
        }
        let base = self.slots[arg.slot].0.address();
        starts.into_iter().flat_map(|at| base + 4 * at as u64..base + 4 * (at as u64 + 1)).collect()
    }

    /// Returns the pairs of an earlier access and an argument that would race if an op with these
    /// arguments ran now, after these nodes.
    fn racing(&self, args: &[Arg], after: &[usize]) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        for (argument, arg) in args.iter().enumerate() {
            let bytes = self.bytes(*arg);
            for (index, old) in self.accessed.iter().enumerate() {
                if (old.writes || arg.access.writes())
                    && !old.bytes.is_disjoint(&bytes)
                    && !self.reaches(old.node, after.iter().chain(&self.host).copied())
                {
                    pairs.push((index, argument));
                }
            }
        }
        pairs
    }

    /// Compares the reported races with the pairs of the model. Each reported race must be a pair
    /// of the model. Each pair of the model must be reported, unless a later access to the same
    /// bytes has replaced the first access: then the pair with the later access must be reported.
    fn compare(&mut self, pairs: &[(usize, usize)], op: &str) -> Result<(), TestCaseError> {
        let races = self.runtime.take_races();
        prop_assert!(self.runtime.take_possible_races().is_empty());
        self.races += races.len();
        self.pairs += pairs.len();
        let mut reported = Vec::new();
        for race in &races {
            prop_assert_eq!(race.second.op, op);
            let first = (race.first.op, race.first.argument);
            let index = self.accessed.iter().position(|a| (a.op, a.argument) == first);
            let pair = (index.expect("an access"), race.second.argument);
            prop_assert!(pairs.contains(&pair), "no race in the model: {:#}", race);
            reported.push(pair);
        }
        for &(index, argument) in pairs {
            let old = &self.accessed[index];
            let covered = reported.iter().any(|&(other, a)| {
                let other = &self.accessed[other];
                a == argument
                    && self.reaches(old.node, [other.node])
                    && (other.op == old.op || other.bytes.is_superset(&old.bytes))
            });
            prop_assert!(covered, "missed: {:?} and argument {} of {}", old, argument, op);
        }
        Ok(())
    }

    fn site(&mut self) -> Site {
        self.ops += 1;
        let op = format!("op{}", self.ops).leak();
        Site::here(op)
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Op(s, ref args) => {
                let site = self.site();
                let after: Vec<usize> = self.last[s].into_iter().collect();
                let pairs = self.racing(args, &after);
                let layouts = layouts();
                let operands: Vec<Operand<'_>> = args
                    .iter()
                    .map(|arg| {
                        let storage = &self.slots[arg.slot].0;
                        let layout = &layouts[arg.layout];
                        let view = View { storage, layout, dtype: DType::F32 };
                        Operand { view, access: arg.access }
                    })
                    .collect();
                enqueue(&self.streams[s], operands.into_iter(), site, |_| Ok(())).unwrap();
                self.compare(&pairs, site.op)?;
                let node = self.node(after);
                self.last[s] = Some(node);
                for (argument, arg) in args.iter().enumerate() {
                    let (bytes, writes) = (self.bytes(*arg), arg.access.writes());
                    let op = site.op;
                    self.accessed.push(Accessed { op, argument, node, stream: s, bytes, writes });
                }
            }
            Step::Host(layout, access) => {
                let site = self.site();
                let pairs = self.racing(&[Arg { slot: PINNED, layout, access }], &[]);
                let storage = &self.slots[PINNED].0;
                let view = View { storage, layout: &layouts()[layout], dtype: DType::F32 };
                check_host(&Touch::from(Operand { view, access }), 0, site).unwrap();
                // The race detector must not count this wait as an order.
                storage.wait_for_host(access.writes()).unwrap();
                self.compare(&pairs, site.op)?;
            }
            Step::Record(e, s) => {
                if self.events[e].record(&self.streams[s]).is_ok() {
                    self.recorded[e] = Some(self.node(self.last[s]));
                }
            }
            Step::Wait(s, e) => {
                self.events[e].wait(&self.streams[s]).unwrap();
                let node = self.node(self.last[s].into_iter().chain(self.recorded[e]));
                self.last[s] = Some(node);
            }
            Step::WaitStream(s, t) => {
                self.streams[s].wait_stream(&self.streams[t]).unwrap();
                let node = self.node(self.last[s].into_iter().chain(self.last[t]));
                self.last[s] = Some(node);
            }
            Step::Renew(e) => {
                self.events[e] = Event::default();
                self.recorded[e] = None;
            }
            Step::SyncStream(s) => {
                self.streams[s].synchronize().unwrap();
                self.host.extend(self.last[s]);
            }
            Step::SyncEvent(e) => {
                self.events[e].synchronize().unwrap();
                self.host.extend(self.recorded[e]);
            }
            Step::QueryEvent(e) => {
                prop_assert!(self.events[e].query().unwrap());
                self.host.extend(self.recorded[e]);
            }
            Step::SyncDevice(d) => {
                self.runtime.device(d).unwrap().device().synchronize().unwrap();
                let on_device = (0..STREAMS).filter(|&s| device_of(s) == d);
                self.host.extend(on_device.filter_map(|s| self.last[s]));
            }
            Step::RecordStream(slot, s) => {
                self.slots[slot].0.record_stream(&self.streams[s]).unwrap();
                self.allocator_streams[slot].push(s);
            }
            Step::Realloc(slot, s) => self.realloc(slot, alloc_stream_of(slot, s)),
        }
        Ok(())
    }

    fn realloc(&mut self, slot: usize, alloc_stream: usize) {
        let (old, old_stream) = (&self.slots[slot].0, self.slots[slot].1);
        let range = |base: u64| base..base + BYTES as u64;
        // The allocator reuses the memory after these streams have completed their work so far.
        let allocator_streams = std::mem::take(&mut self.allocator_streams[slot]);
        let tails =
            allocator_streams.into_iter().filter(|&s| s != old_stream).filter_map(|s| self.last[s]);
        let tails: Vec<usize> = tails.chain(self.host.iter().copied()).collect();
        let address = old.address();
        self.forget(range(address), &tails);
        self.freed.insert(address, (old_stream, self.last[old_stream].into_iter().collect()));
        let placeholder = Storage::pageable(&self.runtime, 1).unwrap();
        drop(std::mem::replace(&mut self.slots[slot], (placeholder, alloc_stream)));
        let new = Storage::device(&self.runtime, BYTES, &self.streams[alloc_stream]).unwrap();
        if let Some((freed_on, tail)) = self.freed.remove(&new.address())
            && freed_on != alloc_stream
        {
            self.forget(range(new.address()), &tail);
        }
        self.slots[slot] = (new, alloc_stream);
    }

    /// Removes a range of bytes from the accesses that are ordered before the nodes in `tails`.
    fn forget(&mut self, range: std::ops::Range<u64>, tails: &[usize]) {
        for index in 0..self.accessed.len() {
            if self.reaches(self.accessed[index].node, tails.iter().copied()) {
                self.accessed[index].bytes.retain(|byte| !range.contains(byte));
            }
        }
    }
}

/// Runs a program. Returns the numbers of reported races and of racing pairs in the model.
fn run(steps: &[Step]) -> Result<(usize, usize), TestCaseError> {
    let mut model = Model::new();
    for step in steps {
        model.step(step)?;
    }
    Ok((model.races, model.pairs))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn reported_races_are_those_of_the_model(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(&steps)?;
    }

    /// Runs each program with the waits that it needs, and again without each single wait.
    #[test]
    fn a_missing_wait_is_a_race(
        ops in prop::collection::vec(op(), 2..16),
    ) {
        let mut model = Model::new();
        let mut steps = Vec::new();
        let mut waits = Vec::new();
        for (s, args) in ops {
            loop {
                let after: Vec<usize> = model.last[s].into_iter().collect();
                let Some(&(first, _)) = model.racing(&args, &after).first() else { break };
                let wait = Step::WaitStream(s, model.accessed[first].stream);
                model.step(&wait)?;
                waits.push(steps.len());
                steps.push(wait);
            }
            let op = Step::Op(s, args);
            model.step(&op)?;
            steps.push(op);
        }
        prop_assert_eq!(run(&steps)?, (0, 0));
        for wait in waits {
            let mut without = steps.clone();
            without.remove(wait);
            let (races, pairs) = run(&without)?;
            // If several waits precede an op, the last wait may imply an earlier wait.
            let needed = matches!(steps[wait + 1], Step::Op(..));
            prop_assert!(!needed || pairs > 0, "{:?} was not needed", steps[wait]);
            prop_assert_eq!(races > 0, pairs > 0, "without {:?}", steps[wait]);
        }
    }
}
