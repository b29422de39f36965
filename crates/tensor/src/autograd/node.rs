//! The graph: a node for each recorded op, with edges to the nodes of its inputs.
//!
//! Each input of a node has a [`TensorSpec`]: the sizes, dtype and device of its gradient. The engine
//! sums and converts gradients to match the spec, so ops need not. A node also stores the stream on
//! which its op ran, and the location of the call.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use smallvec::SmallVec;
use warpline_runtime::Sizes;
use warpline_stream::Stream;

use super::hooks::NodeHook;
use super::op_backward::{GradFn, NodeInputs};
use super::reclaim::{DeferredDrop, reclaim};
use crate::{DType, Device, Error, ErrorKind, Result, Site, Tensor};

/// Gradients of an op's inputs, in their order; `None` for an input without a gradient.
pub type Gradients = SmallVec<[Option<Tensor>; 2]>;

/// The kind of a node, with the gradient function or the leaf that takes the incoming gradients.
pub(super) enum NodeKind {
    /// A recorded op. `None` after a backward pass has freed the gradient function.
    Op(Mutex<Option<Arc<dyn GradFn>>>),
    /// The accumulator of a leaf. It adds each incoming gradient to the gradient of the leaf.
    Accumulator(Tensor),
}

impl NodeKind {
    pub(super) fn op(grad_fn: Arc<dyn GradFn>) -> Self {
        Self::Op(Mutex::new(Some(grad_fn)))
    }
}

/// The destination of a gradient: one of a node's results.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(super) node: Arc<GradNode>,
    pub(super) output: usize,
}

/// The sizes, dtype and device of a tensor.
#[derive(Clone, PartialEq)]
pub(super) struct TensorSpec {
    pub(super) sizes: Sizes,
    pub(super) dtype: DType,
    pub(super) device: Device,
}

impl TensorSpec {
    pub(super) fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.size().into(), dtype: tensor.dtype(), device: tensor.device() }
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a tensor of shape {:?}, {} on {}", &self.sizes[..], self.dtype, self.device)
    }
}

/// An input of a node.
pub(super) struct NodeInput {
    /// The destination of the input's gradient; `None` if it requires none.
    pub(super) edge: Option<Edge>,
    pub(super) spec: TensorSpec,
}

/// A recorded op, or the accumulator of a leaf.
pub(crate) struct GradNode {
    /// The thread that recorded the op, and the op's number among those that the thread recorded. `None` for an
    /// accumulator.
    pub(super) recorded: Option<(ThreadId, u64)>,
    /// The op's name without PyTorch's suffix: `mul` for `MulBackward0`.
    pub(super) name: &'static str,
    /// The public call that recorded the op.
    pub(super) call: Site,
    /// The current stream while the node runs: the stream of the forward op, or for an accumulator the
    /// stream that was current when the leaf was first used in the graph. `None` if the op's result is on
    /// the CPU.
    pub(super) stream: Option<Stream>,
    /// A twin in the body of a conditional node that contains the op. `None` outside of bodies.
    pub(super) body: Option<Stream>,
    pub(super) inputs: SmallVec<[NodeInput; 2]>,
    /// Number of results of the op.
    pub(super) outputs: usize,
    pub(super) kind: NodeKind,
    pub(super) hooks: Mutex<Vec<NodeHook>>,
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static THREAD: ThreadId = thread::current().id();
}

/// Returns the sequence number of this thread's next node.
fn next_sequence_nr() -> u64 {
    NEXT.replace(NEXT.get() + 1)
}

/// Returns the sequence number of the node that this thread creates next.
pub(crate) fn next_op() -> u64 {
    NEXT.get()
}

/// Returns the id of this thread, without the reference count that `thread::current` changes.
pub(super) fn current_thread() -> ThreadId {
    THREAD.with(|&id| id)
}

impl Default for NodeKind {
    fn default() -> Self {
        Self::Op(Mutex::new(None))
    }
}

impl GradNode {
    /// Creates the node of an op that `call` recorded, with the next sequence number of this thread.
    pub(super) fn new(
        name: &'static str,
        call: Site,
        stream: Option<Stream>,
        inputs: SmallVec<[NodeInput; 2]>,
        outputs: usize,
        grad_fn: Arc<dyn GradFn>,
    ) -> Self {
        let recorded = Some((current_thread(), next_sequence_nr()));
        let captured = stream.as_ref().and_then(Stream::captured);
        let body = captured.filter(|captured| captured.home().is_some());
        let body = body.map(|body| body.twin().clone());
        let (kind, hooks) = (NodeKind::op(grad_fn), Mutex::default());
        Self { recorded, name, call, stream, body, inputs, outputs, kind, hooks }
    }

    /// Fails if the op is in the body of a conditional node, and its gradient, which is about to run on `stream`, is
    /// not.
    pub(super) fn check_body(&self, stream: Option<&Stream>) -> Result<()> {
        let Some(body) = &self.body else { return Ok(()) };
        let captured = stream.and_then(Stream::captured);
        if captured.is_some_and(|captured| captured.twin().shares_capture(body)) {
            return Ok(());
        }
        let reason = "it was recorded in the body of `graph_if` or `graph_while`, which a replay may skip; call \
                      `backward` in this body, too, or detach the result";
        Err(self.error(reason))
    }

    /// Computes the gradients of the inputs.
    pub(super) fn run(
        self: &Arc<Self>,
        grads: &[Option<Tensor>],
        partial: bool,
    ) -> Result<Gradients> {
        let NodeKind::Op(grad_fn) = &self.kind else { return Ok(Gradients::new()) };
        let Some(grad_fn) = lock(grad_fn).clone() else {
            let reason = "its saved tensors were freed by an earlier backward pass; run that pass with `retain_graph`";
            return Err(self.error(reason));
        };
        grad_fn.run(grads, &NodeInputs { node: self, partial })
    }

    /// Returns an error of the call that recorded the op.
    pub(super) fn error(&self, reason: impl Into<String>) -> Error {
        Error::new(ErrorKind::Gradient { reason: reason.into() }, self.call)
    }

    /// Frees the saved tensors.
    pub(super) fn release(&self) {
        let NodeKind::Op(grad_fn) = &self.kind else { return };
        // Saved tensors may own user hooks, so they are dropped without the lock.
        let current = lock(grad_fn).clone();
        if current.is_some_and(|grad_fn| grad_fn.release()) {
            let freed = lock(grad_fn).take();
            drop(freed);
        }
    }

    /// Calls `f` on each tensor that the node saved and has not freed.
    pub(super) fn for_each_saved(&self, f: &mut dyn FnMut(&Tensor)) {
        let NodeKind::Op(grad_fn) = &self.kind else { return };
        let current = lock(grad_fn).clone();
        if let Some(grad_fn) = current {
            grad_fn.for_each_saved(f);
        }
    }

    /// Returns PyTorch's name of the node: `MulBackward0` for `mul`.
    pub(super) fn title(&self) -> String {
        if self.recorded.is_none() || self.name == "CopySlices" {
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

impl fmt::Debug for GradNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.title(), self.call.op, self.call.location)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fields of a node that may own other nodes or user values.
pub(super) type NodeParts = (SmallVec<[NodeInput; 2]>, NodeKind, Vec<NodeHook>);

impl Drop for GradNode {
    fn drop(&mut self) {
        reclaim(DeferredDrop::Node((
            mem::take(&mut self.inputs),
            mem::take(&mut self.kind),
            mem::take(self.hooks.get_mut().unwrap_or_else(PoisonError::into_inner)),
        )));
    }
}
