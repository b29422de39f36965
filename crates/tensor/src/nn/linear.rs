//! An affine map.

use super::{Forward, Module};
use crate::{Result, Tensor, TensorOptions, empty};

/// `x @ weightᵀ + bias` (`torch.nn.Linear`): `[.., in]` to `[.., out]`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Parameters drawn uniformly from ±1/√`inputs`, as PyTorch draws them.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let bound = if inputs == 0 { 0.0 } else { 1.0 / (inputs as f64).sqrt() };
        let weight = empty([outputs, inputs], &options)?;
        weight.uniform_(-bound, bound)?;
        let bias = empty([outputs], &options)?;
        bias.uniform_(-bound, bound)?;
        Ok(Self { weight, bias })
    }

    /// The weight, `[out, in]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Applies the map.
    ///
    /// # Errors
    /// When `x` is on another device or its last size is not `in`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weight.t()?)?.add(&self.bias)
    }
}

impl Module for Linear {
    #[track_caller]
    fn visit_parameters(
        &mut self,
        visit: &mut dyn FnMut(&str, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        visit("weight", &mut self.weight)?;
        visit("bias", &mut self.bias)
    }
}

impl Forward<Tensor> for Linear {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.forward(&x)
    }
}
