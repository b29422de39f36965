//! How an op enters the graph.

use std::panic::Location;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use warpline_stream::Stream;

use super::meta::Meta;
use super::node::{Edge, Gradients, Like, Next, Node, Rule, Work, next_sequence_nr};
use super::saved::Saved;
use super::{Context, mode, views};
use crate::exec::Exec;
use crate::{Error, Result, Tensor};

/// Whether an op on these is to be recorded.
#[inline]
pub(crate) fn wanted(inputs: &[&Tensor]) -> bool {
    inputs.iter().any(|tensor| tensor.requires_grad()) && mode::is_grad_enabled()
}

/// Whether an op that changes `tensor` in place is to be recorded, or refused, `others` being what it is changed
/// with.
#[inline]
pub(crate) fn wanted_in_place(tensor: &Tensor, others: &[&Tensor]) -> bool {
    let hidden = || tensor.is_unrecorded_view() && tensor.base().is_some_and(Tensor::requires_grad);
    let tracked = tensor.requires_grad() || others.iter().any(|t| t.requires_grad()) || hidden();
    tracked && mode::is_grad_enabled()
}

/// Refuses an op that has no rule where a gradient is wanted.
#[track_caller]
pub(crate) fn refuse(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !wanted(inputs) {
        return Ok(());
    }
    let reason = "it has no gradient, but an input wants one; call it in `no_grad`, or on what `detach` returns";
    Err(Error::gradient(op, reason.into()))
}

impl Tensor {
    /// The stream that ops on it run on.
    pub(super) fn stream(&self) -> Option<Stream> {
        match self.exec() {
            Ok(Exec::Cuda(_, _, stream)) => Some(stream),
            _ => None,
        }
    }
}

/// The node of an op that made `outputs` of `inputs`.
#[track_caller]
pub(super) fn node(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: &[&Tensor],
    rule: Rule,
) -> Result<Node> {
    let keep = |tensor: &&Tensor| {
        let output = outputs.iter().position(|output| output.is_same(tensor));
        Saved::new(name, tensor, output)
    };
    let saved = saved.iter().map(keep).collect::<Result<_>>()?;
    Ok(Node {
        sequence_nr: next_sequence_nr(),
        name,
        location: Location::caller(),
        stream: outputs.first().and_then(|tensor| tensor.stream()),
        next: inputs.iter().map(|t| Next { edge: t.edge(), like: Like::of(t) }).collect(),
        outputs: outputs.len(),
        saved: Mutex::new(Some(saved)),
        work: Work::Rule(rule),
        inner: None,
        hooks: Mutex::default(),
    })
}

/// Records that `output` was made of `inputs`. `rule` returns their gradients for the one that comes in; it
/// gets at `saved`, of which `output` may be one, through its context.
#[track_caller]
pub(crate) fn record(
    name: &'static str,
    output: Tensor,
    inputs: &[&Tensor],
    saved: &[&Tensor],
    rule: impl Fn(&Context<'_>, &Tensor) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    let rule: Rule = Box::new(move |context, grads| match grads {
        [Some(grad)] => rule(context, grad),
        _ => Ok(Gradients::new()),
    });
    let node = Arc::new(node(name, &[&output], inputs, saved, rule)?);
    attach(&output, Edge { node, output: 0 });
    Ok(output)
}

/// [`record`] of an op with several results. Those that are not of floats have no gradient.
#[track_caller]
pub(crate) fn record_all(
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    saved: &[&Tensor],
    rule: impl Fn(&Context<'_>, &[Option<Tensor>]) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<()> {
    let node = Arc::new(node(name, outputs, inputs, saved, Box::new(rule))?);
    for (output, tensor) in outputs.iter().enumerate() {
        if tensor.dtype().is_float() {
            attach(tensor, Edge { node: node.clone(), output });
        }
    }
    Ok(())
}

/// Makes `edge` where the tensor's gradient goes.
pub(super) fn attach(tensor: &Tensor, edge: Edge) {
    let meta = Meta::of(tensor);
    if let Some(base) = tensor.base() {
        meta.set_history(base.base_history());
    }
    meta.set_edge(edge);
}

/// Refuses an in-place op that would lose a gradient. To be asked before anything is written.
#[track_caller]
pub(crate) fn check_in_place(name: &'static str, tensor: &Tensor) -> Result<()> {
    let base = tensor.base().unwrap_or(tensor);
    // A leaf may itself be a view of what wants no gradient; its own would be lost, and that of views of it.
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
    Err(Error::gradient(name, reason.into()))
}

/// Records that an op has changed `inputs[0]` in place. A gradient that the rule needs of it as it was is
/// that of a copy. Called once it is written.
#[track_caller]
pub(crate) fn record_in_place(
    name: &'static str,
    inputs: &[&Tensor],
    saved: &[&Tensor],
    rule: impl Fn(&Context<'_>, &Tensor) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<()> {
    let [tensor, ..] = inputs else { return Ok(()) };
    let rule: Rule = Box::new(move |context, grads| match grads {
        [Some(grad)] => rule(context, grad),
        _ => Ok(Gradients::new()),
    });
    let node = node(name, &[tensor], inputs, saved, rule)?;
    match tensor.base() {
        Some(base) => views::rebase(tensor, base, Arc::new(node)),
        None => {
            let meta = Meta::of(tensor);
            meta.set_edge(Edge { node: Arc::new(node), output: 0 });
            meta.next_history();
            Ok(())
        }
    }
}

/// Records an in-place op after which the tensor depends on nothing that it did before, such as `fill_`: as in PyTorch
/// what it depended on has a gradient of zeros, and not none.
#[track_caller]
pub(crate) fn record_overwritten(name: &'static str, tensor: &Tensor) -> Result<()> {
    record_in_place(name, &[tensor], &[], |_, grad| {
        Ok(SmallVec::from_iter([Some(grad.zeros_like(())?)]))
    })
}
