//! Graphs, and their running replays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::work::{DeviceWork, Label, Point};
use crate::ConditionalKind;
use crate::nccl::sim::Participant;

/// The nodes that the next captured work of a stream depends on.
pub(crate) type Frontier = BTreeSet<usize>;

#[derive(Clone)]
pub(crate) struct GraphNode {
    pub(crate) device: usize,
    pub(crate) label: Label,
    pub(crate) work: DeviceWork,
    pub(crate) after: Frontier,
}

pub(crate) struct GraphNodes {
    pub(crate) nodes: Vec<GraphNode>,
    /// For each node, the nodes that depend on it.
    pub(crate) followers: Vec<Vec<usize>>,
}

impl GraphNodes {
    pub(crate) fn new(nodes: Vec<GraphNode>) -> Self {
        let mut followers = vec![Vec::new(); nodes.len()];
        for (number, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|&before| followers[before].push(number));
        }
        Self { nodes, followers }
    }
}

/// The nodes of a conditional node's body. Empty until the capture of the body has ended.
pub(crate) type BodyNodes = Arc<OnceLock<Arc<GraphNodes>>>;

/// A conditional node.
pub(crate) struct ConditionalWork {
    /// The handle of the condition.
    pub(crate) condition: u64,
    pub(crate) kind: ConditionalKind,
    pub(crate) body: BodyNodes,
}

/// The values of a running replay's conditions, by handle. A condition without an entry is 0.
pub(crate) type ConditionValues = BTreeMap<u64, u32>;

pub(crate) struct GraphExecState {
    pub(crate) device: usize,
    pub(crate) graph: Arc<GraphNodes>,
    /// The end of the latest replay. The next replay, on any stream, runs after it. An empty graph
    /// keeps `None`, because nothing waits for its replays.
    pub(crate) latest: Option<Point>,
}

/// The progress of an operation that runs in several steps.
pub(crate) enum OpProgress {
    /// A group, with the number that its communicator gave it.
    Group(u64),
    Graph(RunningReplay),
}

/// A running replay. Visits each node and each dependency once.
pub(crate) struct RunningReplay {
    /// For each node, the number of dependencies that have not ended.
    waits: Vec<usize>,
    /// Nodes that can begin.
    pub(crate) ready: Vec<usize>,
    /// Groups that have begun, by their nodes.
    pub(crate) begun: Vec<(usize, Arc<Participant>, u64)>,
    /// Virtual time at which each node can begin, in microseconds after the begin of the replay.
    pub(crate) starts: Vec<f64>,
    /// Virtual time at which the last ended node ended.
    pub(crate) time: f64,
    pub(crate) conditions: ConditionValues,
}

/// Virtual time between the begin of a replay and its first nodes, in microseconds.
const REPLAY_TIME: f64 = 2.0;

impl RunningReplay {
    pub(crate) fn new(graph: &GraphNodes) -> Self {
        let waits: Vec<usize> = graph.nodes.iter().map(|node| node.after.len()).collect();
        let ready = (0..waits.len()).filter(|&node| waits[node] == 0).collect();
        let (starts, time) = (vec![REPLAY_TIME; waits.len()], REPLAY_TIME);
        Self { waits, ready, begun: Vec::new(), starts, time, conditions: ConditionValues::new() }
    }

    /// Records the end of a node. Returns the number of steps: one for the node, and one for each
    /// edge to a later node.
    pub(crate) fn end(&mut self, graph: &GraphNodes, node: usize, time: f64) -> usize {
        let end = self.starts[node] + time;
        self.time = self.time.max(end);
        for &next in &graph.followers[node] {
            self.starts[next] = self.starts[next].max(end);
            self.waits[next] -= 1;
            if self.waits[next] == 0 {
                self.ready.push(next);
            }
        }
        1 + graph.followers[node].len()
    }
}
