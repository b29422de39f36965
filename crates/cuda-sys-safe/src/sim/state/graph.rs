//! Graphs, and replays that are under way.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::work::{Label, Point, Work};
use crate::nccl::sim::Seat;

/// The nodes that the next captured work of a stream depends on.
pub(crate) type Frontier = BTreeSet<usize>;

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) device: usize,
    pub(crate) label: Label,
    pub(crate) work: Work,
    pub(crate) after: Frontier,
}

pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// For each node, those that come after it.
    pub(crate) followers: Vec<Vec<usize>>,
}

impl Graph {
    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        let mut followers = vec![Vec::new(); nodes.len()];
        for (number, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|&before| followers[before].push(number));
        }
        Self { nodes, followers }
    }
}

pub(crate) struct GraphExec {
    pub(crate) device: usize,
    pub(crate) graph: Arc<Graph>,
    /// The end of its latest replay: the next one, on whatever stream, comes after it. Nothing comes
    /// after the replay of an empty graph.
    pub(crate) latest: Option<Point>,
}

/// How far an operation has come that does not run in one go.
pub(crate) enum Begun {
    /// A group, by the number that its communicator gave it.
    Group(u64),
    Graph(Replay),
}

/// A replay under way. Each node and each dependency is looked at once.
pub(crate) struct Replay {
    /// For each node, the dependencies that have not ended.
    waits: Vec<usize>,
    /// Nodes that can begin.
    pub(crate) ready: Vec<usize>,
    /// Groups that have begun, by their nodes.
    pub(crate) begun: Vec<(usize, Arc<Seat>, u64)>,
    pub(crate) time: f64,
}

impl Replay {
    pub(crate) fn new(graph: &Graph) -> Self {
        let waits: Vec<usize> = graph.nodes.iter().map(|node| node.after.len()).collect();
        let ready = (0..waits.len()).filter(|&node| waits[node] == 0).collect();
        Self { waits, ready, begun: Vec::new(), time: 2.0 }
    }

    /// Enters that a node has ended. Returns the number of nodes that were looked at.
    pub(crate) fn end(&mut self, graph: &Graph, node: usize, time: f64) -> usize {
        self.time += time;
        for &next in &graph.followers[node] {
            self.waits[next] -= 1;
            if self.waits[next] == 0 {
                self.ready.push(next);
            }
        }
        1 + graph.followers[node].len()
    }
}
