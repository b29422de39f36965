//! Tensors that a rule needs, as they were.

use std::sync::Arc;

use warpline_runtime::Version;

use super::meta::Meta;
use super::mode;
use super::node::{Edge, Node};
use crate::{Error, Result, Tensor};

/// A tensor that a backward pass needs.
///
/// Never owns the autograd state of a tensor that an op made, nor its base: an in-place op may later give that state a
/// node which leads back to the one that saves the tensor, and neither would ever be freed.
pub(super) struct Saved {
    tensor: Tensor,
    source: Source,
    version: Version,
}

/// Where the gradient of a saved tensor goes in a recorded pass.
enum Source {
    /// To the saved tensor, which is the leaf itself.
    Leaf,
    /// To a result of the op that saved it.
    Output(usize),
    /// To another op's node; nowhere if `None`.
    Other(Option<Edge>),
}

impl Saved {
    /// Saves `tensor`; `output` if it is one of the op's own results, and which.
    #[track_caller]
    pub(super) fn new(op: &'static str, tensor: &Tensor, output: Option<usize>) -> Result<Self> {
        if tensor.is_inference() {
            let reason = "a tensor that was made in inference mode cannot be saved for a gradient; use a copy of it";
            return Err(Error::gradient(op, reason.into()));
        }
        let version = tensor.storage().version();
        let (tensor, source) = match output {
            Some(output) => (tensor.alias(), Source::Output(output)),
            None if !tensor.requires_grad() => (tensor.alias(), Source::Other(None)),
            None if tensor.is_leaf() => (tensor.clone(), Source::Leaf),
            None => (tensor.alias(), Source::Other(tensor.edge())),
        };
        Ok(Self { tensor, source, version })
    }

    /// The tensor, if nobody has changed it since.
    pub(super) fn unpack(&self, node: &Arc<Node>) -> Result<Tensor> {
        let storage = self.tensor.storage();
        if !self.version.is_of(storage) && !storage.is_shared() {
            let what = match self.source {
                Source::Output(_) => "its result",
                Source::Leaf | Source::Other(_) => "an input",
            };
            let reason = format!(
                "one of the tensors needed for the gradient has been modified by an in-place operation: {what}, a \
                 {} tensor of shape {:?}",
                self.tensor.dtype(),
                self.tensor.size()
            );
            return Err(Error::gradient(node.name, reason).at(node.location));
        }
        let edge = match &self.source {
            _ if !mode::is_grad_enabled() => None,
            Source::Leaf | Source::Other(None) => None,
            Source::Output(output) => Some(Edge { node: node.clone(), output: *output }),
            Source::Other(Some(edge)) => Some(edge.clone()),
        };
        let Some(edge) = edge else { return Ok(self.tensor.clone()) };
        let tensor = self.tensor.alias();
        Meta::of(&tensor).set_edge(edge);
        Ok(tensor)
    }
}
