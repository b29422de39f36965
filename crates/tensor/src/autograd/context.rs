//! The inputs and saved tensors of a function of the program.

use super::backward::Inputs;
use crate::{DType, Device, Error, Result, Tensor};

/// The inputs of a [`Function`](super::Function) and the tensors that it saved, in a backward pass.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) saved: &'a [Tensor],
}

impl Context<'_> {
    /// The tensor that was saved as number `index`.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if there is none. A backward pass fails before it calls the function if a saved tensor was modified
    /// in place since, or if a pass without `retain_graph` has freed them.
    pub fn saved(&self, index: usize) -> Result<Tensor> {
        self.saved.get(index).cloned().ok_or_else(|| {
            let reason = format!("saved no tensor number {index}, but {}", self.saved.len());
            let node = self.inputs.node;
            Error::gradient(node.name, reason).at(node.location)
        })
    }

    /// How many inputs there were.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Whether input `index` wants a gradient.
    #[must_use]
    pub fn needs(&self, index: usize) -> bool {
        self.inputs.needs(index)
    }

    /// The sizes of input `index`.
    #[must_use]
    pub fn sizes(&self, index: usize) -> &[usize] {
        self.inputs.sizes(index)
    }

    /// The dtype of input `index`.
    #[must_use]
    pub fn dtype(&self, index: usize) -> DType {
        self.inputs.dtype(index)
    }

    /// The device of input `index`.
    #[must_use]
    pub fn device(&self, index: usize) -> Device {
        self.inputs.device(index)
    }
}
