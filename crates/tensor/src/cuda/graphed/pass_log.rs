//! The order of the replays in a pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{CudaGraph, Graphs, SavedTensor};
use crate::Result;

/// The last replay of each pass of callables in a pool, by the position of the capture.
#[derive(Debug, Default)]
pub(super) struct PassLog {
    /// Number of replays.
    replays: u64,
    /// The number of the last replay at each position.
    last: Vec<u64>,
    /// Callables with a recorded call whose backward pass has not run.
    pending: Vec<Weak<Graphs>>,
}

impl PassLog {
    /// Returns the first of `passes` new positions.
    pub(super) fn reserve(&mut self, passes: usize) -> usize {
        let first = self.last.len();
        self.last.resize(first + passes, 0);
        first
    }

    /// Replays the graph of the pass at `position`, and returns the number of the replay. Records the versions of pending
    /// results again, because the replay counts as a write of them.
    pub(super) fn replay(&mut self, position: usize, graph: &CudaGraph) -> Result<u64> {
        let mut unchanged = Vec::new();
        for graphs in self.pending.iter().filter_map(Weak::upgrade) {
            let versions = graphs.versions();
            for (i, (saved, version)) in graphs.saved.iter().zip(&*versions).enumerate() {
                if saved.in_pool && saved.has(version) {
                    unchanged.push((Arc::clone(&graphs), i));
                }
            }
        }
        graph.replay()?;
        for (graphs, i) in unchanged {
            graphs.versions()[i] = graphs.saved[i].version();
        }
        self.replays += 1;
        self.last[position] = self.replays;
        Ok(self.replays)
    }

    /// Sets whether a recorded call of `graphs` waits for its backward pass.
    pub(super) fn set_pending(&mut self, graphs: &Arc<Graphs>, is_pending: bool) {
        let address = Arc::as_ptr(graphs);
        self.pending.retain(|other| other.strong_count() > 0 && other.as_ptr() != address);
        if is_pending {
            *graphs.versions() = graphs.saved.iter().map(SavedTensor::version).collect();
            self.pending.push(Arc::downgrade(graphs));
        }
    }

    /// Returns whether a later replay may have overwritten the intermediate results of forward replay `number`. Passes
    /// that were captured between the forward and the backward pass leave these results alone.
    pub(super) fn overwrote(&self, [forward, backward]: [usize; 2], number: u64) -> bool {
        let between = |position: usize| forward < position && position < backward;
        self.last.iter().enumerate().any(|(at, last)| *last > number && !between(at))
    }
}

pub(super) fn lock(passes: &Mutex<PassLog>) -> MutexGuard<'_, PassLog> {
    passes.lock().unwrap_or_else(PoisonError::into_inner)
}
