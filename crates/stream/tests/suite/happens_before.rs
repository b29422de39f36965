//! Compares the known order of operations with paths in a graph, for random programs.

use std::sync::Arc;

use proptest::prelude::*;
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_stream::{Devices, Error, Event, OpNumber, Stream};

const STREAMS: usize = 5;
const EVENTS: usize = 3;

#[derive(Clone, Debug)]
enum ProgramStep {
    Work(usize),
    Record(usize, usize),
    Wait(usize, usize),
    WaitStream(usize, usize),
    Renew(usize),
    SyncStream(usize),
    QueryStream(usize),
    SyncEvent(usize),
    QueryEvent(usize),
    SyncDevice(usize),
    /// Replaces the stream by a new stream.
    Replace(usize),
}

fn step() -> impl Strategy<Value = ProgramStep> {
    let (s, e) = (0..STREAMS, 0..EVENTS);
    prop_oneof![
        8 => s.clone().prop_map(ProgramStep::Work),
        4 => (e.clone(), s.clone()).prop_map(|(e, s)| ProgramStep::Record(e, s)),
        4 => (s.clone(), e.clone()).prop_map(|(s, e)| ProgramStep::Wait(s, e)),
        2 => (s.clone(), s.clone()).prop_map(|(s, t)| ProgramStep::WaitStream(s, t)),
        1 => e.clone().prop_map(ProgramStep::Renew),
        1 => s.clone().prop_map(ProgramStep::SyncStream),
        1 => s.clone().prop_map(ProgramStep::QueryStream),
        1 => e.clone().prop_map(ProgramStep::SyncEvent),
        1 => e.prop_map(ProgramStep::QueryEvent),
        1 => (0..2usize).prop_map(ProgramStep::SyncDevice),
        1 => s.prop_map(ProgramStep::Replace),
    ]
}

/// The happens-before graph.
#[derive(Debug, Default)]
struct OrderGraph {
    /// The direct predecessors of each node.
    before: Vec<Vec<usize>>,
    /// Nodes that the host has seen complete.
    host: Vec<usize>,
}

impl OrderGraph {
    fn node(&mut self, before: impl IntoIterator<Item = usize>) -> usize {
        self.before.push(before.into_iter().chain(self.host.iter().copied()).collect());
        self.before.len() - 1
    }

    /// Returns whether a path leads from a node to any node of `to`.
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
}

fn work(stream: &Stream) -> OpNumber {
    stream.submit(crate::support::TOKEN, |_| Ok::<(), Error>(())).unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn order_is_exact(steps in prop::collection::vec(step(), 1..60)) {
        let devices = Devices::new(Arc::new(NullDriver::new(2))).unwrap();
        // The last stream is on another device.
        let device_of = |s: usize| usize::from(s == STREAMS - 1);
        let fresh = |s| devices.get(device_of(s)).unwrap().exclusive_stream(0).unwrap();
        let mut streams: Vec<Stream> = (0..STREAMS).map(fresh).collect();
        let mut events: Vec<Event> = (0..EVENTS).map(|_| Event::default()).collect();
        let mut graph = OrderGraph::default();
        let mut last: Vec<Option<usize>> = vec![None; STREAMS];
        let mut recorded: Vec<Option<usize>> = vec![None; EVENTS];
        let mut replaced: Vec<(usize, usize)> = Vec::new();
        let mut ops: Vec<(Stream, OpNumber, usize)> = Vec::new();
        for step in steps {
            match step {
                ProgramStep::Work(s) => {
                    let op = work(&streams[s]);
                    last[s] = Some(graph.node(last[s]));
                    ops.push((streams[s].clone(), op, last[s].unwrap()));
                }
                ProgramStep::Record(e, s) => {
                    // Fails if the event was first recorded on another device.
                    if events[e].record(&streams[s]).is_ok() {
                        recorded[e] = Some(graph.node(last[s]));
                    }
                }
                ProgramStep::Wait(s, e) => {
                    events[e].wait(&streams[s]).unwrap();
                    last[s] = Some(graph.node(last[s].into_iter().chain(recorded[e])));
                }
                ProgramStep::WaitStream(s, t) => {
                    streams[s].wait_stream(&streams[t]).unwrap();
                    last[s] = Some(graph.node(last[s].into_iter().chain(last[t])));
                }
                ProgramStep::Renew(e) => {
                    events[e] = Event::default();
                    recorded[e] = None;
                }
                ProgramStep::SyncStream(s) => {
                    streams[s].synchronize().unwrap();
                    graph.host.extend(last[s]);
                }
                ProgramStep::QueryStream(s) => {
                    prop_assert!(streams[s].query().unwrap());
                    graph.host.extend(last[s]);
                }
                ProgramStep::SyncEvent(e) => {
                    events[e].synchronize().unwrap();
                    graph.host.extend(recorded[e]);
                }
                ProgramStep::QueryEvent(e) => {
                    prop_assert!(events[e].query().unwrap());
                    graph.host.extend(recorded[e]);
                }
                ProgramStep::SyncDevice(d) => {
                    devices.get(d).unwrap().synchronize().unwrap();
                    graph.host.extend(replaced.iter().filter(|(of, _)| *of == d).map(|r| r.1));
                    let all = (0..STREAMS).filter(|&s| device_of(s) == d);
                    graph.host.extend(all.filter_map(|s| last[s]));
                }
                ProgramStep::Replace(s) => {
                    // `ops` keeps the old stream alive if it has operations. The device's
                    // `synchronize` then still covers it.
                    if ops.iter().any(|(stream, ..)| *stream == streams[s]) {
                        replaced.extend(last[s].map(|node| (device_of(s), node)));
                    }
                    last[s] = None;
                    streams[s] = fresh(s);
                }
            }
            for (s, stream) in streams.iter().enumerate() {
                let before = stream.before();
                for (other, op, node) in &ops {
                    let found = stream.is_ordered_after(other, *op).unwrap();
                    prop_assert_eq!(before.covers(other, *op), found);
                    let known = last[s].into_iter().chain(graph.host.iter().copied());
                    let expected = graph.reaches(*node, known);
                    prop_assert_eq!(found, expected, "{} after operation {} of {}", stream, op, other);
                }
            }
        }
    }
}
