//! What a rule is given besides the gradients that come in.

use std::sync::Arc;

use super::node::{Node, Work};
use crate::{DType, Device, Error, Result, Tensor};

/// An op's inputs as a rule finds them in a backward pass.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) node: &'a Arc<Node>,
    /// Whether the pass is for certain gradients alone, and must change no leaf.
    pub(super) partial: bool,
}

impl Context<'_> {
    /// The tensor that was saved as number `index`.
    ///
    /// # Errors
    /// [`Error::Gradient`] if it was modified in place since, or if a backward pass without `retain_graph` has
    /// freed it.
    pub fn saved(&self, index: usize) -> Result<Tensor> {
        let saved = self.node.saved();
        let Some(all) = saved.as_ref() else {
            let reason = "its saved tensors have been freed, since backward went through the graph before; to go \
                          through it again, call that with `retain_graph`";
            return Err(Error::gradient(self.node.name, reason.into()).at(self.node.location));
        };
        match all.get(index) {
            Some(saved) => saved.unpack(self.node),
            None => {
                let reason = format!("saved no tensor number {index}, but {}", all.len());
                Err(Error::gradient(self.node.name, reason).at(self.node.location))
            }
        }
    }

    /// How many inputs there were.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.node.next.len()
    }

    /// Whether input `index` wants a gradient.
    #[must_use]
    pub fn needs(&self, index: usize) -> bool {
        self.node.next.get(index).is_some_and(|next| next.edge.is_some())
    }

    /// The sizes of input `index`.
    #[must_use]
    pub fn sizes(&self, index: usize) -> &[usize] {
        self.node.next.get(index).map_or(&[], |next| &next.like.sizes)
    }

    /// The dtype of input `index`.
    #[must_use]
    pub fn dtype(&self, index: usize) -> DType {
        self.node.next.get(index).map_or(DType::F32, |next| next.like.dtype)
    }

    /// The device of input `index`.
    #[must_use]
    pub fn device(&self, index: usize) -> Device {
        self.node.next.get(index).map_or(Device::Cpu, |next| next.like.device)
    }
}

impl Node {
    /// Runs the rule.
    pub(super) fn run(
        self: &Arc<Self>,
        grads: &[Option<Tensor>],
        partial: bool,
    ) -> Result<super::node::Gradients> {
        match &self.work {
            Work::Rule(rule) => rule(&Context { node: self, partial }, grads),
            Work::Accumulate(_) => Ok(super::node::Gradients::new()),
        }
    }
}
