//! Linear and bilinear maps.

use warpline::__Called as _;
use warpline::functional::{bilinear, linear};
use warpline::{CallScope, IntoOptions, Result, Tensor, TensorOptions, empty};

use super::options::parameter_options;
use super::repr::{boolean, size};
use crate::init::{Nonlinearity, kaiming_uniform_, uniform_};
use crate::{Forward, Module, Parameter, input_device};

/// The linear map `x @ weightᵀ + bias` (`torch.nn.Linear`), from `[.., in]` to `[.., out]`.
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Linear {
    /// The weight, `[out, in]`.
    pub weight: Parameter,
    /// The bias, `[out]`.
    pub bias: Option<Parameter>,
}

parameter_options! {
    /// Options of [`Linear`] and [`Bilinear`].
    LinearOptions [] [] {
        /// Sets whether the map adds a bias. Default: `true`.
        bias: bool = true, bool;
    }
}

impl Linear {
    /// Creates a map of `inputs` to `outputs` features. Parameters are drawn uniformly from ±1/√`inputs`, with
    /// PyTorch's values for a seed.
    ///
    /// ```
    /// use warpline::DType;
    /// use warpline_nn::{Linear, LinearOptions};
    ///
    /// let plain = Linear::new(4, 8, ())?;
    /// assert_eq!(plain.weight.size(), [8, 4]);
    /// let double = Linear::new(4, 8, LinearOptions::new().bias(false).dtype(DType::F64))?;
    /// assert!(double.bias.is_none());
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`empty`] and [`Tensor::uniform_`].
    #[track_caller]
    pub fn new(
        inputs: usize,
        outputs: usize,
        options: impl IntoOptions<LinearOptions>,
    ) -> Result<Self> {
        let LinearOptions { bias, tensor: options } = options.into_options();
        let op = "Linear";
        let weight = empty([outputs, inputs], &options).of(op)?;
        // With this slope the bound is 1/√in, as in PyTorch.
        kaiming_uniform_(&weight, Nonlinearity::LeakyReLU(5f64.sqrt())).of(op)?;
        let bias = bias.then(|| uniform([outputs], 1.0 / (inputs as f64).sqrt(), &options));
        Ok(Self { weight: Parameter::new(weight).of(op)?, bias: bias.transpose().of(op)? })
    }

    /// Applies the map to `x`, `[.., in]`.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `x` is on a device that cannot access
    /// `weight`; errors of [`linear()`], such as [`ErrorKind::ShapeMismatch`](warpline::ErrorKind::ShapeMismatch) if
    /// the last size of `x` is not `in`.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        input_device::check("Linear", x, "weight", &self.weight)?;
        linear(x, &self.weight, self.bias.as_deref())
    }
}

impl Linear {
    fn describe(&self) -> String {
        let [outputs, inputs] = [0, 1].map(|dim| size(&self.weight, dim));
        let bias = boolean(self.bias.is_some());
        format!("in_features={inputs}, out_features={outputs}, bias={bias}")
    }
}

/// Creates a parameter drawn uniformly from ±`bound`, or zeros if `bound` is not finite because there are no inputs.
#[track_caller]
pub(super) fn uniform<const N: usize>(
    sizes: [usize; N],
    bound: f64,
    options: &TensorOptions,
) -> Result<Parameter> {
    let tensor = empty(sizes, options)?;
    let bound = if bound.is_finite() { bound } else { 0.0 };
    uniform_(&tensor, (-bound, bound))?;
    Parameter::new(tensor)
}

/// The bilinear map `x1ᵀ A x2 + bias`, with one matrix `A` per output feature (`torch.nn.Bilinear`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct Bilinear {
    /// The matrices, `[out, in1, in2]`.
    pub weight: Parameter,
    /// The bias, `[out]`.
    pub bias: Option<Parameter>,
}

impl Bilinear {
    /// Creates a map of `in1` and `in2` to `outputs` features. Parameters are drawn uniformly from ±1/√`in1`.
    ///
    /// # Errors
    /// Errors of [`empty`] and [`Tensor::uniform_`].
    #[track_caller]
    pub fn new(
        in1: usize,
        in2: usize,
        outputs: usize,
        options: impl IntoOptions<LinearOptions>,
    ) -> Result<Self> {
        let LinearOptions { bias, tensor: options } = options.into_options();
        let bound = 1.0 / (in1 as f64).sqrt();
        let weight = uniform([outputs, in1, in2], bound, &options).of("Bilinear")?;
        let bias = bias.then(|| uniform([outputs], bound, &options)).transpose().of("Bilinear")?;
        Ok(Self { weight, bias })
    }

    /// Applies the map to `[.., in1]` and `[.., in2]`, whose leading sizes must be equal. Returns `[.., out]`.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if an input is on a device that cannot access
    /// `weight`; errors of [`bilinear`].
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        let _call = CallScope::enter("Bilinear");
        input_device::check("Bilinear", x1, "weight", &self.weight)?;
        input_device::check("Bilinear", x2, "weight", &self.weight)?;
        bilinear(x1, x2, &self.weight, self.bias.as_deref())
    }

    fn describe(&self) -> String {
        let [outputs, in1, in2] = [0, 1, 2].map(|dim| size(&self.weight, dim));
        let bias = boolean(self.bias.is_some());
        format!("in1_features={in1}, in2_features={in2}, out_features={outputs}, bias={bias}")
    }
}

impl Forward<Tensor> for Linear {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.forward(&x)
    }
}

impl Forward<(Tensor, Tensor)> for Bilinear {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, (x1, x2): (Tensor, Tensor)) -> Result<Tensor> {
        self.forward(&x1, &x2)
    }
}
