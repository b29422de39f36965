//! Activations.

use super::{Forward, Module};
use crate::{Result, Tensor};

/// The larger of each element and zero (`torch.nn.ReLU`). It has no parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU;

impl Module for ReLU {
    #[track_caller]
    fn visit_parameters(
        &mut self,
        _visit: &mut dyn FnMut(&str, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

impl Forward<Tensor> for ReLU {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        x.relu()
    }
}
