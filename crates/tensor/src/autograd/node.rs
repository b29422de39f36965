//! The graph: a node for each op that was recorded, whose edges lead to where its inputs came from.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use warpline_runtime::Sizes;
use warpline_stream::Stream;

use super::Context;
use super::hooks::Hook;
use super::reclaim::{Owned, reclaim};
use super::saved::Saved;
use crate::{DType, Device, Result, Tensor};

/// Gradients of an op's inputs, in their order; `None` where there is none.
pub type Gradients = SmallVec<[Option<Tensor>; 2]>;

/// From the gradients of an op's results to those of its inputs.
pub(super) type Rule =
    Box<dyn Fn(&Context<'_>, &[Option<Tensor>]) -> Result<Gradients> + Send + Sync>;

/// What a node does with the gradients that come in.
pub(super) enum Work {
    /// Passes them on to where the inputs came from.
    Rule(Rule),
    /// Adds them to a leaf's.
    Accumulate(Tensor),
}

/// A place where a gradient goes: one of a node's results.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(super) node: Arc<Node>,
    pub(super) output: usize,
}

/// What a gradient has to look like.
#[derive(Clone, PartialEq)]
pub(super) struct Like {
    pub(super) sizes: Sizes,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

impl Like {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.size().into(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a tensor of shape {:?}, {} on {}", &self.sizes[..], self.dtype, self.device)
    }
}

/// One of a node's inputs.
pub(super) struct Next {
    /// `None` if it wants no gradient.
    pub(super) edge: Option<Edge>,
    pub(super) like: Like,
}

/// An op that was recorded, or a leaf's accumulator.
pub(crate) struct Node {
    /// Place in the order of a backward pass: of two nodes that are ready, the higher number runs first.
    pub(super) sequence_nr: u64,
    pub(super) name: &'static str,
    pub(super) location: &'static Location<'static>,
    /// The stream that its forward op ran on.
    pub(super) stream: Option<Stream>,
    pub(super) next: SmallVec<[Next; 2]>,
    /// How many results it had.
    pub(super) outputs: usize,
    /// `None` once a backward pass has freed it.
    pub(super) saved: Mutex<Option<SmallVec<[Saved; 2]>>>,
    pub(super) work: Work,
    /// The node of an in-place op on a view, which this one wraps.
    pub(super) inner: Option<Arc<Node>>,
    pub(super) hooks: Mutex<Vec<Hook>>,
}

/// Sequence number of every leaf's accumulator, so that a gradient is added to its leaf as early as possible.
pub(super) const ACCUMULATOR: u64 = u64::MAX;

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// Returns the sequence number of this thread's next node. Each thread counts its own nodes, so that the order of a
/// backward pass does not depend on the timing of other threads.
pub(super) fn next_sequence_nr() -> u64 {
    NEXT.replace(NEXT.get() + 1)
}

impl Default for Work {
    fn default() -> Self {
        Self::Rule(Box::new(|_, _| Ok(Gradients::new())))
    }
}

impl Node {
    pub(super) fn saved(&self) -> MutexGuard<'_, Option<SmallVec<[Saved; 2]>>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what was saved.
    pub(super) fn release(&self) {
        // Dropped without the lock: saved tensors may own hooks of the program.
        let saved = self.saved().take();
        drop(saved);
        if let Some(inner) = &self.inner {
            inner.release();
        }
    }

    /// PyTorch's name of it: `MulBackward0` of `mul`.
    pub(super) fn title(&self) -> String {
        if matches!(self.work, Work::Accumulate(_)) || self.name == "CopySlices" {
            return self.name.to_string();
        }
        let mut title = String::new();
        for word in self.name.trim_end_matches('_').split('_') {
            let mut letters = word.chars();
            title.extend(letters.next().map(|c| c.to_ascii_uppercase()));
            title.push_str(letters.as_str());
        }
        title + "Backward0"
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.title(), self.name, self.location)
    }
}

/// Everything of a node that may own more of the graph.
pub(super) type Parts =
    (SmallVec<[Next; 2]>, Option<SmallVec<[Saved; 2]>>, Work, Option<Arc<Node>>, Vec<Hook>);

impl Drop for Node {
    fn drop(&mut self) {
        reclaim(Owned::Node((
            mem::take(&mut self.next),
            self.saved.get_mut().unwrap_or_else(PoisonError::into_inner).take(),
            mem::take(&mut self.work),
            self.inner.take(),
            mem::take(self.hooks.get_mut().unwrap_or_else(PoisonError::into_inner)),
        )));
    }
}
