//! An affine map.

use warpline::{Result, Tensor, TensorOptions, empty};

use crate::{Forward, Module, Parameter};

/// `x @ weightᵀ + bias` (`torch.nn.Linear`): `[.., in]` to `[.., out]`.
#[derive(Clone, Debug, Module)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
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
        Ok(Self { weight: Parameter::new(weight)?, bias: Some(Parameter::new(bias)?) })
    }

    /// Applies the map.
    ///
    /// # Errors
    /// When `x` is on another device or its last size is not `in`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => y.add(&**bias),
            None => Ok(y),
        }
    }
}

impl Forward<Tensor> for Linear {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.forward(&x)
    }
}
