//! Tensors that a rule needs, as they were.

use std::sync::Arc;

use warpline_runtime::Version;

use super::meta::Meta;
use super::mode;
use super::node::{Edge, Node};
use crate::{Error, Result, Tensor};

/// A tensor that a backward pass needs.
pub(super) struct Saved {
    /// Of a result this is an alias that knows nothing of the graph, which would else keep itself alive.
    tensor: Tensor,
    output: Option<usize>,
    version: Version,
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
        let tensor = if output.is_some() { tensor.alias() } else { tensor.clone() };
        Ok(Self { tensor, output, version })
    }

    /// The tensor, if nobody has changed it since.
    pub(super) fn unpack(&self, node: &Arc<Node>) -> Result<Tensor> {
        let storage = self.tensor.storage();
        if !self.version.is_of(storage) && !storage.is_shared() {
            let what = if self.output.is_some() { "its result" } else { "an input" };
            let reason = format!(
                "one of the tensors needed for the gradient has been modified by an in-place operation: {what}, a \
                 {} tensor of shape {:?}",
                self.tensor.dtype(),
                self.tensor.size()
            );
            return Err(Error::gradient(node.name, reason).at(node.location));
        }
        match self.output {
            Some(output) if mode::is_grad_enabled() => {
                let tensor = self.tensor.alias();
                Meta::of(&tensor).set_edge(Edge { node: node.clone(), output });
                Ok(tensor)
            }
            _ => Ok(self.tensor.clone()),
        }
    }
}
