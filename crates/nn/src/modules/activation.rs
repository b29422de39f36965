//! Activations.

use warpline::{Result, Tensor};

use crate::{Forward, Module};

/// The larger of each element and zero (`torch.nn.ReLU`). It has no parameters.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct ReLU;

impl Forward<Tensor> for ReLU {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        x.relu()
    }
}
