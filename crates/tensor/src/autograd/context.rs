//! Inputs and saved tensors of a custom function.

use super::op_backward::NodeInputs;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{DType, Device, Result, Tensor};

/// The inputs and saved tensors of a [`Function`](super::Function), in its backward pass.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) inputs: NodeInputs<'a>,
    pub(super) saved: &'a [Tensor],
}

impl Context<'_> {
    /// Returns the saved tensor number `index`, counted from 0 in the order of
    /// [`ToSave::tensor`](super::ToSave::tensor).
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if there is no such tensor. The backward pass fails before it calls the function
    /// if a saved tensor was changed in place, or freed by a pass without `retain_graph`.
    pub fn saved(&self, index: usize) -> Result<Tensor> {
        self.saved.get(index).cloned().ok_or_else(|| {
            let reason = format!(
                "there is no saved tensor with index {index}, because {} tensors were saved",
                self.saved.len()
            );
            let node = self.inputs.node;
            node.error(reason)
        })
    }

    /// Returns the number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns whether input `index` requires a gradient.
    #[must_use]
    pub fn needs(&self, index: usize) -> bool {
        self.inputs.needs(index)
    }

    /// Returns the sizes of input `index`.
    #[must_use]
    pub fn sizes(&self, index: usize) -> &[usize] {
        self.inputs.sizes(index)
    }

    /// Returns the dtype of input `index`.
    #[must_use]
    pub fn dtype(&self, index: usize) -> DType {
        self.inputs.dtype(index)
    }

    /// Returns the device of input `index`.
    #[must_use]
    pub fn device(&self, index: usize) -> Device {
        self.inputs.device(index)
    }
}
