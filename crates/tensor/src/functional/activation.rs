//! Activations as functions. Most of them call the tensor method of the same name.

use warpline_kernels::elementwise::SILU_MUL;

use crate::amp::autocast_operands;
use crate::functional::options::{from_number, options};
use crate::methods::{apply_elementwise_in, common_dtype};
use crate::{CallScope, Error, ErrorKind, Integer, IntoOptions, Result, Scalar, Tensor};

macro_rules! activations {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($name), "`] as a function (`torch.nn.functional.", stringify!($name), "`).")]
        ///
        /// # Errors
        #[doc = concat!("The same as [`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(input: &Tensor, $($parameter: $ty),*) -> Result<Tensor> {
            input.$name($($parameter),*)
        }
    )*};
}

activations! {
    celu(options: impl IntoOptions<CELUOptions>);
    elu(options: impl IntoOptions<ELUOptions>);
    hardshrink(options: impl IntoOptions<HardshrinkOptions>);
    hardsigmoid();
    hardswish();
    hardtanh(options: impl IntoOptions<HardtanhOptions>);
    leaky_relu(options: impl IntoOptions<LeakyReLUOptions>);
    log_softmax(dim: impl Integer);
    logsigmoid();
    mish();
    relu();
    relu6();
    selu();
    sigmoid();
    silu();
    softmax(dim: impl Integer);
    softplus(options: impl IntoOptions<SoftplusOptions>);
    softshrink(options: impl IntoOptions<SoftshrinkOptions>);
    softsign();
    tanh();
    tanhshrink();
    threshold(threshold: impl Into<Scalar>, value: impl Into<Scalar>);
}

/// `x` where it is positive, and elsewhere `x` times the weight (`torch.nn.functional.prelu`). `weight` has one element,
/// or one for each channel, which is dimension 1 of the input.
///
/// ```
/// # use warpline::{functional::prelu, tensor};
/// let (x, weight) = (tensor([[-2f32, 4.0], [1.0, -8.0]], ())?, tensor([0.5f32, 0.25], ())?);
/// assert_eq!(prelu(&x, &weight)?.to_vec::<f32>()?, [-1.0, 4.0, 1.0, -2.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::OperandDTypes`] if the dtypes differ. [`ErrorKind::ShapeMismatch`] if `weight` has more than one
/// dimension, or neither one element nor one for each channel. Errors of [`Tensor::relu`] and [`Tensor::mul`].
#[track_caller]
pub fn prelu(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let op = "prelu";
    let _call = CallScope::enter(op);
    autocast_operands!(Low, Low, [input, weight] => prelu(input, weight));
    let (first, second) = (input.dtype(), weight.dtype());
    if first != second {
        return Err(ErrorKind::OperandDTypes { operands: "input and weight", first, second }.of(op));
    }
    let channels = if input.dim() > 1 { input.size()[1] } else { 1 };
    if weight.dim() > 1 || ![1, channels].contains(&weight.numel()) {
        let reason = format!("a weight of {:?} for an input of {channels} channels", weight.size());
        return Err(Error::shape(op, reason));
    }
    let mut sizes = vec![1; input.dim()];
    if weight.numel() > 1 {
        sizes[1] = channels;
    }
    // At zero, `clamp_max` passes the gradient on and `relu` does not, so the gradient is the slope, as in PyTorch.
    input.relu()?.add(&input.clamp_max(0.0)?.mul(&weight.reshape(sizes)?)?)
}

macro_rules! in_place {
    ($($name:ident($($parameter:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($name), "`] as a function (`torch.nn.functional.", stringify!($name), "`).")]
        ///
        /// # Errors
        #[doc = concat!("The same as [`Tensor::", stringify!($name), "`].")]
        #[track_caller]
        pub fn $name(input: &Tensor, $($parameter: $ty),*) -> Result<&Tensor> {
            input.$name($($parameter),*)
        }
    )*};
}

in_place! {
    celu_(options: impl IntoOptions<CELUOptions>);
    elu_(options: impl IntoOptions<ELUOptions>);
    hardtanh_(options: impl IntoOptions<HardtanhOptions>);
    leaky_relu_(options: impl IntoOptions<LeakyReLUOptions>);
    relu_();
    selu_();
    threshold_(threshold: impl Into<Scalar>, value: impl Into<Scalar>);
}

options! {
    /// Options of [`leaky_relu`], [`leaky_relu_`] and the module `LeakyReLU`.
    #[derive(Clone, Copy, Debug)]
    LeakyReLUOptions [] [] {
        /// Sets the slope of negative elements. Default: 0.01.
        negative_slope: f64 = 0.01, f64;
    }
}

options! {
    /// Options of [`elu`], [`elu_`] and the module `ELU`.
    #[derive(Clone, Copy, Debug)]
    ELUOptions [] [] {
        /// Sets the factor of negative elements. Default: 1.
        alpha: f64 = 1.0, f64;
    }
}

options! {
    /// Options of [`celu`], [`celu_`] and the module `CELU`.
    #[derive(Clone, Copy, Debug)]
    CELUOptions [] [] {
        /// Sets the factor and the scale of negative elements. Default: 1.
        alpha: f64 = 1.0, f64;
    }
}

options! {
    /// Options of [`softplus`] and of the module `Softplus`.
    #[derive(Clone, Copy, Debug)]
    SoftplusOptions [] [] {
        /// Sets the scale. Default: 1.
        beta: f64 = 1.0, f64;
        /// Sets the value of `beta` · x above which the result is x. Default: 20.
        threshold: f64 = 20.0, f64;
    }
}

options! {
    /// Options of [`softshrink`] and of the module `Softshrink`.
    #[derive(Clone, Copy, Debug)]
    SoftshrinkOptions [] [] {
        /// Sets the distance by which elements move towards zero. Default: 0.5.
        lambd: f64 = 0.5, f64;
    }
}

options! {
    /// Options of [`hardshrink`] and of the module `Hardshrink`.
    #[derive(Clone, Copy, Debug)]
    HardshrinkOptions [] [] {
        /// Sets the magnitude up to which elements become 0. Default: 0.5.
        lambd: f64 = 0.5, f64;
    }
}

options! {
    /// Options of [`hardtanh`], [`hardtanh_`] and the module `Hardtanh`.
    #[derive(Clone, Copy, Debug)]
    HardtanhOptions [] [] {
        /// Sets the smallest result. Default: -1.
        min_val: f64 = -1.0, f64;
        /// Sets the largest result. Default: 1.
        max_val: f64 = 1.0, f64;
    }
}

from_number! {
    LeakyReLUOptions negative_slope;
    ELUOptions alpha;
    CELUOptions alpha;
    SoftshrinkOptions lambd;
    HardshrinkOptions lambd;
}

/// The formula of [`gelu`] (`approximate`). `()` stands for the exact formula.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approximate {
    /// The exact formula (`"none"`).
    #[default]
    None,
    /// An approximation by a hyperbolic tangent (`"tanh"`).
    Tanh,
}

impl From<()> for Approximate {
    fn from((): ()) -> Self {
        Self::None
    }
}

/// [`Tensor::gelu`] or [`Tensor::gelu_tanh`] as a function (`torch.nn.functional.gelu`).
///
/// ```
/// # use warpline::functional::{Approximate, gelu};
/// # use warpline::tensor;
/// let x = tensor([1f32], ())?;
/// assert!((gelu(&x, ())?.item::<f32>()? - 0.8413).abs() < 1e-4);
/// assert!((gelu(&x, Approximate::Tanh)?.item::<f32>()? - 0.8412).abs() < 1e-4);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`Tensor::gelu`].
#[track_caller]
pub fn gelu(input: &Tensor, approximate: impl IntoOptions<Approximate>) -> Result<Tensor> {
    let _call = CallScope::enter("gelu");
    match approximate.into_options() {
        Approximate::None => input.gelu(),
        Approximate::Tanh => input.gelu_tanh(),
    }
}

options! {
    /// Options of [`glu`] and of the module `GLU`. An integer converts into options with that `dim`.
    #[derive(Clone, Copy, Debug)]
    GLUOptions [] [] {
        /// Sets the dimension. Negative: counted from the end. Default: -1.
        dim: isize = -1, impl Integer => Integer::into_isize;
    }
}

impl<I: Integer> From<I> for GLUOptions {
    fn from(dim: I) -> Self {
        Self::new().dim(dim)
    }
}

/// The first half of a dimension times the sigmoid of the second half (`torch.nn.functional.glu`).
///
/// # Errors
/// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if the
/// dimension's size is odd. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn glu(input: &Tensor, options: impl IntoOptions<GLUOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("glu");
    let GLUOptions { dim } = options.into_options();
    let op = "glu";
    let d = input.layout().dim(dim)?;
    let size = input.size().get(d).copied().unwrap_or(1);
    if !size.is_multiple_of(2) {
        let reason = format!("dimension {d} must have an even size, not {size}");
        return Err(Error::invalid(op, reason));
    }
    let half = size / 2;
    let gate = input.narrow(dim, half as isize, half)?.sigmoid()?;
    input.narrow(dim, 0, half)?.mul(&gate)
}

/// `silu(gate) * up` in one launch: the gate of a feed-forward layer of Llama. `gate` and `up` broadcast, and are
/// promoted to a common dtype. Half-width floats are computed in `f32` and rounded once. PyTorch has no such function;
/// its counterpart is `torch.nn.functional.silu(gate) * up`.
///
/// ```
/// # use warpline::functional::{silu, silu_mul};
/// # use warpline::{IsCloseOptions, tensor};
/// let (gate, up) = (tensor([-1f32, 0.0, 2.0], ())?, tensor([3f32, 4.0, 5.0], ())?);
/// let expected = silu(&gate)?.mul(&up)?;
/// assert!(silu_mul(&gate, &up)?.allclose(&expected, IsCloseOptions::new().rtol(1e-6).atol(0.0))?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::BroadcastMismatch`] if the shapes do not broadcast. [`ErrorKind::UnsupportedDType`] if the common dtype
/// is not floating point. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let operands = [gate.into(), up.into()];
    apply_elementwise_in(&SILU_MUL, &operands, common_dtype(&operands))
}

/// [`Tensor::softmax`] of the negated input (`torch.nn.functional.softmin`).
///
/// # Errors
/// The same as [`Tensor::softmax`].
#[track_caller]
pub fn softmin(input: &Tensor, dim: impl Integer) -> Result<Tensor> {
    let _call = CallScope::enter("softmin");
    let dim = dim.into_isize();
    input.neg()?.softmax(dim)
}
