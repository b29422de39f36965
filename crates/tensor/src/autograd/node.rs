//! The graph: a node for each recorded op, with edges to the nodes of its inputs.
//!
//! An edge holds the sizes, dtype and device that a gradient has to have there. The engine sums and
//! converts gradients to fit, so the rules of ops need not. A node also keeps the stream that its
//! op ran on, and the line of the call.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use warpline_runtime::Sizes;
use warpline_stream::Stream;

use super::backward::{Inputs, Rule};
use super::hooks::Hook;
use super::reclaim::{Owned, reclaim};
use crate::{DType, Device, Error, Result, Tensor};

/// Gradients of an op's inputs, in their order; `None` for an input without a gradient.
pub type Gradients = SmallVec<[Option<Tensor>; 2]>;

/// The work of a node on the incoming gradients.
pub(super) enum Work {
    /// Computes the gradients of the inputs. `None` after a backward pass has freed the rule.
    Rule(Mutex<Option<Arc<dyn Rule>>>),
    /// Adds the gradient to that of a leaf.
    Accumulate(Tensor),
}

impl Work {
    pub(super) fn rule(rule: Arc<dyn Rule>) -> Self {
        Self::Rule(Mutex::new(Some(rule)))
    }
}

/// The destination of a gradient: one of a node's results.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(super) node: Arc<Node>,
    pub(super) output: usize,
}

/// The sizes, dtype and device of a gradient.
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

/// An input of a node.
pub(super) struct Next {
    /// The destination of the input's gradient; `None` if it requires none.
    pub(super) edge: Option<Edge>,
    pub(super) like: Like,
}

/// A recorded op, or the accumulator of a leaf.
pub(crate) struct Node {
    /// Position in the order of a backward pass: of two ready nodes, the one with the higher number runs first.
    pub(super) sequence_nr: u64,
    pub(super) name: &'static str,
    pub(super) location: &'static Location<'static>,
    /// The stream on which the forward op ran.
    pub(super) stream: Option<Stream>,
    pub(super) next: SmallVec<[Next; 2]>,
    /// Number of results of the op.
    pub(super) outputs: usize,
    pub(super) work: Work,
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
        Self::Rule(Mutex::new(None))
    }
}

impl Node {
    /// Makes the node of an op with the next sequence number of this thread.
    pub(super) fn new(
        name: &'static str,
        location: &'static Location<'static>,
        stream: Option<Stream>,
        next: SmallVec<[Next; 2]>,
        outputs: usize,
        rule: Arc<dyn Rule>,
    ) -> Self {
        let (sequence_nr, work) = (next_sequence_nr(), Work::rule(rule));
        Self { sequence_nr, name, location, stream, next, outputs, work, hooks: Mutex::default() }
    }

    /// Computes the gradients of the inputs.
    pub(super) fn run(
        self: &Arc<Self>,
        grads: &[Option<Tensor>],
        partial: bool,
    ) -> Result<Gradients> {
        let Work::Rule(rule) = &self.work else { return Ok(Gradients::new()) };
        let Some(rule) = lock(rule).clone() else {
            let reason = "its saved tensors have been freed, since backward went through the graph before; to go \
                          through it again, call that with `retain_graph`";
            return Err(Error::gradient(self.name, reason).at(self.location));
        };
        rule.run(grads, &Inputs { node: self, partial })
    }

    /// Frees the saved tensors.
    pub(super) fn release(&self) {
        let Work::Rule(rule) = &self.work else { return };
        // Released and dropped without the lock: saved tensors may own hooks of the program.
        let current = lock(rule).clone();
        if current.is_some_and(|rule| rule.release()) {
            let freed = lock(rule).take();
            drop(freed);
        }
    }

    /// Returns PyTorch's name of the node: `MulBackward0` for `mul`.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fields of a node that may own more of the graph.
pub(super) type Parts = (SmallVec<[Next; 2]>, Work, Vec<Hook>);

impl Drop for Node {
    fn drop(&mut self) {
        reclaim(Owned::Node((
            mem::take(&mut self.next),
            mem::take(&mut self.work),
            mem::take(self.hooks.get_mut().unwrap_or_else(PoisonError::into_inner)),
        )));
    }
}
