//! Records ops in the graph.
//!
//! An op computes its result and asks [`wanted`]. If a gradient is wanted, the op calls [`record`]
//! with its inputs and its saved state. An op that consists of other ops saves nothing. An op
//! without a gradient calls [`refuse`], which fails if a gradient is wanted.
//!
//! Invariant: no silent stop. An op whose input wants a gradient is recorded, or fails in the
//! forward pass.
//!
//! An in-place change is checked before it is launched, and recorded after it. The changed tensor
//! gets another node; if the tensor is a view, its base gets one (`views.rs`).

use std::panic::Location;
use std::sync::Arc;

use warpline_stream::Stream;

use super::backward::{self, Backward, Incoming, linear};
use super::meta::Meta;
use super::node::{Edge, Like, Next, Node};
use super::{mode, views};
use crate::exec::Exec;
use crate::{Error, Result, Tensor};

/// Returns whether an op on these inputs is to be recorded.
#[inline]
pub(crate) fn wanted(inputs: &[&Tensor]) -> bool {
    inputs.iter().any(|tensor| tensor.requires_grad()) && mode::is_grad_enabled()
}

/// Returns whether an op that changes `tensor` in place has to be recorded or refused. `others` are its other
/// operands.
#[inline]
pub(crate) fn wanted_in_place(tensor: &Tensor, others: &[&Tensor]) -> bool {
    let hidden = || tensor.is_unrecorded_view() && tensor.base().is_some_and(Tensor::requires_grad);
    let tracked = tensor.requires_grad() || others.iter().any(|t| t.requires_grad()) || hidden();
    tracked && mode::is_grad_enabled()
}

/// Refuses an op without a rule if a gradient is wanted.
#[track_caller]
pub(crate) fn refuse(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !wanted(inputs) {
        return Ok(());
    }
    let reason = "it has no gradient, but an input wants one; call it in `no_grad`, or on what `detach` returns";
    Err(Error::gradient(op, reason))
}

impl Tensor {
    /// Returns the stream of ops on this tensor; `None` on the CPU.
    pub(super) fn stream(&self) -> Option<Stream> {
        match self.exec() {
            Ok(Exec::Cuda(_, _, stream)) => Some(stream),
            _ => None,
        }
    }
}

/// Makes the node of an op that computed `outputs` from `inputs`.
#[track_caller]
fn node<G: Incoming + ?Sized + 'static>(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: impl Backward<G>,
) -> Result<Arc<Node>> {
    let rule = backward::rule(name, outputs, saved)?;
    let stream = outputs.first().and_then(|tensor| tensor.stream());
    let next = inputs.iter().map(|t| Next { edge: t.edge(), like: Like::of(t) }).collect();
    Ok(Arc::new(Node::new(name, Location::caller(), stream, next, outputs.len(), rule)))
}

/// Records that `output` was computed from `inputs`. `saved` computes the gradients of the inputs from that of
/// the result, and may contain the result.
#[track_caller]
pub(crate) fn record(
    name: &'static str,
    output: Tensor,
    inputs: &[&Tensor],
    saved: impl Backward,
) -> Result<Tensor> {
    let node = node(name, &[&output], inputs, saved)?;
    attach(&output, Edge { node, output: 0 });
    Ok(output)
}

/// [`record`] for an op with several results. Results that are not floats have no gradient.
#[track_caller]
pub(crate) fn record_all(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: impl Backward<[Option<Tensor>]>,
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
    let meta = Meta::of(tensor);
    if let Some(base) = tensor.base() {
        meta.set_history(base.base_history());
    }
    meta.set_edge(edge);
}

/// Refuses an in-place op that would lose a gradient. Call it before anything is written.
#[track_caller]
pub(crate) fn check_in_place(name: &'static str, tensor: &Tensor) -> Result<()> {
    let base = tensor.base().unwrap_or(tensor);
    // A leaf may be a view of a tensor that requires no gradient. Its own gradient and those of its views would
    // be lost.
    let reason = if base.is_leaf() && (base.requires_grad() || tensor.requires_grad()) {
        if tensor.base().is_some() && !tensor.is_leaf() {
            "a view of a leaf that wants a gradient is being changed in place; do it in `no_grad`"
        } else {
            "a leaf that wants a gradient is being changed in place; do it in `no_grad`"
        }
    } else if tensor.is_unrecorded_view() && base.requires_grad() {
        "a view that was made in `no_grad` is being changed in place where gradients are recorded; make it there too"
    } else if tensor.is_inference() {
        "a tensor that was made in inference mode is being changed in place outside of it; use a copy of it"
    } else {
        return Ok(());
    };
    Err(Error::gradient(name, reason))
}

/// Records that an op has changed `inputs[0]` in place. If the gradient reads the former elements, `saved` has
/// a copy of them. Call it after the change.
#[track_caller]
pub(crate) fn record_in_place(
    name: &'static str,
    inputs: &[&Tensor],
    saved: impl Backward,
) -> Result<()> {
    let [tensor, ..] = inputs else { return Ok(()) };
    let node = node(name, &[tensor], inputs, saved)?;
    match tensor.base() {
        Some(base) => views::rebase(tensor, base, node),
        None => {
            let meta = Meta::of(tensor);
            meta.set_edge(Edge { node, output: 0 });
            meta.next_history();
            Ok(())
        }
    }
}

/// Records an in-place op, such as `fill_`, after which the tensor depends on none of its former inputs. As in
/// PyTorch, these get gradients of zeros, not none.
#[track_caller]
pub(crate) fn record_overwritten(name: &'static str, tensor: &Tensor) -> Result<()> {
    record_in_place(name, &[tensor], linear(|grad, _| grad.zeros_like(())))
}
