//! Records ops in the graph.
//!
//! An op computes its result and calls [`should_record`]. If it returns `true`, the op calls [`record`]
//! with its inputs and saved state. An op that consists of recorded ops saves nothing. An op without a
//! gradient calls [`refuse_gradient`], which fails if an input requires a gradient.
//!
//! Invariant: gradients never stop silently. An op with an input that requires a gradient is recorded,
//! or fails in the forward pass.
//!
//! An in-place op is checked before its launch and recorded after it. The changed tensor gets a new
//! node. If the tensor is a view, the base gets the node instead (`views.rs`).

use std::sync::Arc;

use warpline_stream::Stream;

use super::meta::AutogradMeta;
use super::node::{Edge, GradNode, NodeInput, TensorSpec};
use super::op_backward::{self, IncomingGrad, OpBackward, linear};
use super::{mode, views};
use crate::exec::Exec;
use crate::{Error, Result, Site, Tensor};

/// Returns whether an op on these inputs has to be recorded.
#[inline]
pub(crate) fn should_record(inputs: &[&Tensor]) -> bool {
    inputs.iter().any(|tensor| tensor.requires_grad()) && mode::is_grad_enabled()
}

/// Returns whether an op that changes `tensor` in place has to be recorded or refused. `others` are the op's
/// other operands.
#[inline]
pub(crate) fn should_record_in_place(tensor: &Tensor, others: &[&Tensor]) -> bool {
    let hidden = || tensor.is_unrecorded_view() && tensor.base().is_some_and(Tensor::requires_grad);
    let tracked = tensor.requires_grad() || others.iter().any(|t| t.requires_grad()) || hidden();
    tracked && mode::is_grad_enabled()
}

/// Fails if an input requires a gradient, because the op `op` has none.
#[track_caller]
pub(crate) fn refuse_gradient(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !should_record(inputs) {
        return Ok(());
    }
    let reason = "it has no gradient, but an input requires one; call it in `no_grad`, or on the result of `detach`";
    Err(Error::gradient(op, reason))
}

impl Tensor {
    /// Returns this thread's current stream on the tensor's device. `None` on the CPU.
    pub(super) fn current_stream(&self) -> Option<Stream> {
        match self.exec() {
            Ok(Exec::Cuda(_, _, stream)) => Some(stream.into_owned()),
            _ => None,
        }
    }
}

/// Creates the node of an op that computed `outputs` from `inputs`.
#[track_caller]
fn node<G: IncomingGrad + ?Sized + 'static>(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: impl OpBackward<G>,
) -> Result<Arc<GradNode>> {
    let grad_fn = op_backward::grad_fn(name, outputs, saved)?;
    let stream = outputs.first().and_then(|tensor| tensor.current_stream());
    let node_inputs =
        inputs.iter().map(|t| NodeInput { edge: t.edge(), spec: TensorSpec::of(t) }).collect();
    Ok(Arc::new(GradNode::new(
        name,
        Site::here(name).or_public(),
        stream,
        node_inputs,
        outputs.len(),
        grad_fn,
    )))
}

/// Records that `output` was computed from `inputs`. `saved` computes the gradients of `inputs` from the
/// gradient of `output`, and may contain `output`.
#[track_caller]
pub(crate) fn record(
    name: &'static str,
    output: Tensor,
    inputs: &[&Tensor],
    saved: impl OpBackward,
) -> Result<Tensor> {
    let node = node(name, &[&output], inputs, saved)?;
    attach(&output, Edge { node, output: 0 });
    Ok(output)
}

/// Records an op with several results, like [`record`]. Results that are not floating point have no gradient.
#[track_caller]
pub(crate) fn record_all(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: impl OpBackward<[Option<Tensor>]>,
) -> Result<()> {
    let node = node(name, outputs, inputs, saved)?;
    for (output, tensor) in outputs.iter().enumerate() {
        if tensor.dtype().is_float() {
            attach(tensor, Edge { node: node.clone(), output });
        }
    }
    Ok(())
}

/// Sets the destination of the tensor's gradient.
pub(super) fn attach(tensor: &Tensor, edge: Edge) {
    let meta = AutogradMeta::of(tensor);
    if let Some(base) = tensor.base() {
        meta.set_history(base.base_history());
    }
    meta.set_edge(edge);
}

/// Fails if an in-place op on `tensor` would lose a gradient. Call this function before the op writes
/// anything.
#[track_caller]
pub(crate) fn check_in_place(name: &'static str, tensor: &Tensor) -> Result<()> {
    let base = tensor.base().unwrap_or(tensor);
    // A leaf may be a view of a tensor that requires no gradient. An in-place op would lose the leaf's
    // gradient and the gradients of its views.
    let reason = if base.is_leaf() && (base.requires_grad() || tensor.requires_grad()) {
        if tensor.base().is_some() && !tensor.is_leaf() {
            "a view of a leaf that requires a gradient is being changed in place; do it in `no_grad`"
        } else {
            "a leaf that requires a gradient is being changed in place; do it in `no_grad`"
        }
    } else if tensor.is_unrecorded_view() && base.requires_grad() {
        "a view that was made in `no_grad` is being changed in place where gradients are recorded; make it there too"
    } else if tensor.is_inference() {
        "a tensor created in inference mode is being changed in place outside of that mode; use a copy of the tensor"
    } else {
        return Ok(());
    };
    Err(Error::gradient(name, reason))
}

/// Records that an op has changed `inputs[0]` in place. If the gradient reads the elements from before the
/// change, `saved` contains a copy of them. Call this function after the change.
#[track_caller]
pub(crate) fn record_in_place(
    name: &'static str,
    inputs: &[&Tensor],
    saved: impl OpBackward,
) -> Result<()> {
    let [tensor, ..] = inputs else { return Ok(()) };
    let node = node(name, &[tensor], inputs, saved)?;
    match tensor.base() {
        Some(base) => views::rebase(tensor, base, node),
        None => {
            let meta = AutogradMeta::of(tensor);
            meta.set_edge(Edge { node, output: 0 });
            meta.next_history();
            Ok(())
        }
    }
}

/// Records an in-place op that overwrites all elements, such as `fill_`. The former inputs of the tensor get
/// zeros as gradients, as in PyTorch.
#[track_caller]
pub(crate) fn record_overwritten(name: &'static str, tensor: &Tensor) -> Result<()> {
    record_in_place(name, &[tensor], linear(|grad, _| grad.zeros_like(())))
}
