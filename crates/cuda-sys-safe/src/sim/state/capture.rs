//! A capture in progress.

use std::collections::BTreeMap;
use std::thread::ThreadId;

use super::graph::{BodyNodes, Frontier, GraphNode};
use super::work::StreamKey;
use crate::CaptureMode;

pub(crate) struct CaptureState {
    pub(crate) origin: StreamKey,
    pub(crate) device: usize,
    pub(crate) mode: CaptureMode,
    pub(crate) thread: u64,
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) frontiers: BTreeMap<StreamKey, Frontier>,
    /// The last node of each communicator.
    pub(crate) last_nodes: BTreeMap<u64, usize>,
    pub(crate) invalid: bool,
    /// The body that the nodes are for, with its handle. `None` if the capture makes a graph.
    pub(crate) body: Option<(u64, BodyNodes)>,
}

impl CaptureState {
    /// Returns `true` if the origin stream depends on all captured work.
    pub(crate) fn joined(&self) -> bool {
        let mut covered = vec![false; self.nodes.len()];
        let mut open: Vec<usize> =
            self.frontiers.get(&self.origin).into_iter().flatten().copied().collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut covered[node], true) {
                open.extend(&self.nodes[node].after);
            }
        }
        covered.into_iter().all(|c| c)
    }
}

/// Returns a number for the current thread, because `ThreadId` has no order.
pub(crate) fn thread_number() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let id: ThreadId = std::thread::current().id();
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
