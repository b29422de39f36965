//! Activation functions as modules.

use warpline::functional::{glu, softmin};
use warpline::{IntoOptions, Result, Tensor};

use super::options::parameter_options;
use super::repr::{float, size};
use crate::called::Called;
use crate::{Forward, Module, Parameter};

macro_rules! forward {
    ($name:ident, $self:ident, $x:ident => $body:expr) => {
        impl $name {
            /// Applies the module to an input.
            ///
            /// # Errors
            /// Errors of the op that the module applies;
            /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if the module has a parameter that
            /// the input's device cannot access.
            #[track_caller]
            pub fn forward(&self, $x: &Tensor) -> Result<Tensor> {
                let $self = self;
                let _ = $self;
                $body
            }
        }

        impl Forward<Tensor> for $name {
            type Output = Tensor;

            #[track_caller]
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                self.forward(&x)
            }
        }
    };
}

pub(super) use forward;

macro_rules! activations {
    ($($doc:literal $name:ident $op:ident;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $name;

        forward!($name, _this, x => x.$op());
    )*};
}

activations! {
    "max(x, 0)" ReLU relu;
    "min(max(x, 0), 6)" ReLU6 relu6;
    "1 / (1 + exp(-x))" Sigmoid sigmoid;
    "The hyperbolic tangent" Tanh tanh;
    "x · sigmoid(x)" SiLU silu;
    "x · tanh(softplus(x))" Mish mish;
    "The scaled exponential unit" SELU selu;
    "x / (1 + |x|)" Softsign softsign;
    "The logarithm of the sigmoid" LogSigmoid logsigmoid;
    "The piecewise linear sigmoid, min(max(x / 6 + 1 / 2, 0), 1)" Hardsigmoid hardsigmoid;
    "x · hardsigmoid(x)" Hardswish hardswish;
    "x - tanh(x)" Tanhshrink tanhshrink;
}

/// Defines activations that have options, and their options. A number converts into options with one setter.
macro_rules! with_options {
    ($($doc:literal $name:ident $options:ident {
        $($(#[$field_doc:meta])* $field:ident = $default:expr;)*
    } $repr:literal |$this:ident, $x:ident| $body:expr;)*) => {$(
        warpline::__options! {
            #[doc = concat!("Options of [`", stringify!($name), "`].")]
            #[derive(Clone, Copy, Debug)]
            $options [] [] { $($(#[$field_doc])* $field: f64 = $default, f64;)* }
        }

        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            #[module(skip)]
            options: $options,
        }

        impl $name {
            /// Creates the activation.
            #[must_use]
            pub fn new(options: impl IntoOptions<$options>) -> Self {
                Self { options: options.into_options() }
            }

            fn describe(&self) -> String {
                $(let $field = float(self.options.$field);)*
                format!($repr)
            }
        }

        forward!($name, this, $x => {
            let $this = this.options;
            $body
        });
    )*};
}

with_options! {
    "x if x > 0, otherwise `negative_slope` · x" LeakyReLU LeakyReLUOptions {
        /// Sets the slope of negative elements. Default: 0.01.
        negative_slope = 0.01;
    } "negative_slope={negative_slope}" |s, x| x.leaky_relu(s.negative_slope);
    "The exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x) - 1)" ELU ELUOptions {
        /// Sets the factor of negative elements. Default: 1.
        alpha = 1.0;
    } "alpha={alpha}" |s, x| x.elu(s.alpha);
    "The continuously differentiable exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x / `alpha`) - 1)"
    CELU CELUOptions {
        /// Sets the factor and the scale of negative elements. Default: 1.
        alpha = 1.0;
    } "alpha={alpha}" |s, x| x.celu(s.alpha);
    "log(1 + exp(`beta` · x)) / `beta`, and x where `beta` · x > `threshold`" Softplus SoftplusOptions {
        /// Sets the scale. Default: 1.
        beta = 1.0;
        /// Sets the value of `beta` · x above which the result is x. Default: 20.
        threshold = 20.0;
    } "beta={beta}, threshold={threshold}" |s, x| x.softplus(s.beta, s.threshold);
    "x moved towards zero by `lambd`, and 0 where |x| ≤ `lambd`" Softshrink SoftshrinkOptions {
        /// Sets the distance by which elements move towards zero. Default: 0.5.
        lambd = 0.5;
    } "{lambd}" |s, x| x.softshrink(s.lambd);
    "x, and 0 where |x| ≤ `lambd`" Hardshrink HardshrinkOptions {
        /// Sets the magnitude up to which elements become 0. Default: 0.5.
        lambd = 0.5;
    } "{lambd}" |s, x| x.hardshrink(s.lambd);
    "x clamped to `min_val` and `max_val`" Hardtanh HardtanhOptions {
        /// Sets the smallest result. Default: -1.
        min_val = -1.0;
        /// Sets the largest result. Default: 1.
        max_val = 1.0;
    } "min_val={min_val}, max_val={max_val}" |s, x| x.hardtanh(s.min_val, s.max_val);
}

/// Implements the conversion of a number into options with one setter.
macro_rules! from_number {
    ($($options:ident $field:ident;)*) => {$(
        impl From<f64> for $options {
            fn from($field: f64) -> Self {
                Self::new().$field($field)
            }
        }
    )*};
}

from_number! {
    LeakyReLUOptions negative_slope;
    ELUOptions alpha;
    CELUOptions alpha;
    SoftshrinkOptions lambd;
    HardshrinkOptions lambd;
}

/// The formula of [`GELU`] (`approximate`). `()` stands for the exact formula.
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

/// The Gaussian error linear unit (`torch.nn.GELU`).
#[derive(Clone, Copy, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct GELU {
    #[module(skip)]
    approximate: Approximate,
}

impl GELU {
    /// Creates the activation.
    #[must_use]
    pub fn new(approximate: impl IntoOptions<Approximate>) -> Self {
        Self { approximate: approximate.into_options() }
    }

    fn describe(&self) -> String {
        let approximate = match self.approximate {
            Approximate::None => "none",
            Approximate::Tanh => "tanh",
        };
        format!("approximate='{approximate}'")
    }
}

forward!(GELU, this, x => match this.approximate {
    Approximate::None => x.gelu(),
    Approximate::Tanh => x.gelu_tanh(),
});

/// Defines functions along a dimension.
macro_rules! along_dimension {
    ($($doc:literal $name:ident |$x:ident, $dim:ident| $body:expr;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`).")]
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr = Self::describe)]
        pub struct $name {
            dim: isize,
        }

        impl $name {
            /// Creates the function along dimension `dim`, counted from the end if negative.
            #[must_use]
            pub fn new(dim: isize) -> Self {
                Self { dim }
            }

            fn describe(&self) -> String {
                format!("dim={}", self.dim)
            }
        }

        forward!($name, this, $x => {
            let $dim = this.dim;
            $body
        });
    )*};
}

along_dimension! {
    "The softmax along a dimension" Softmax |x, dim| x.softmax(dim);
    "The softmax of -x along a dimension" Softmin |x, dim| softmin(x, dim);
    "The logarithm of the softmax along a dimension" LogSoftmax |x, dim| x.log_softmax(dim);
    "The gated linear unit: the first half of a dimension times the sigmoid of the second half"
    GLU |x, dim| glu(x, dim);
}

parameter_options! {
    /// Options of [`PReLU`].
    PReLUOptions [] [] {
        /// Sets the number of slopes: the number of channels, or 1 for all channels. Default: 1.
        num_parameters: usize = 1, usize;
        /// Sets the initial slope. Default: 0.25.
        init: f64 = 0.25, f64;
    }
}

/// The leaky ReLU with a learned negative slope (`torch.nn.PReLU`).
#[derive(Clone, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct PReLU {
    /// The negative slopes, `[channels]`, or `[1]` for all channels. Channels are dimension 1 of the input.
    pub weight: Parameter,
}

impl PReLU {
    /// Creates the activation.
    ///
    /// # Errors
    /// The same as [`warpline::full`].
    #[track_caller]
    pub fn new(options: impl IntoOptions<PReLUOptions>) -> Result<Self> {
        let PReLUOptions { num_parameters, init, tensor } = options.into_options();
        let weight =
            warpline::full([num_parameters], init, floats(tensor)).and_then(Parameter::new);
        Ok(Self { weight: weight.of("PReLU")? })
    }
}

/// Sets the dtype of `options` to `float32` if they request none.
pub(super) fn floats(options: impl Into<warpline::TensorOptions>) -> warpline::TensorOptions {
    let options = options.into();
    match options.requested_dtype() {
        Some(_) => options,
        None => options.dtype(warpline::DType::F32),
    }
}

forward!(PReLU, this, x => {
    crate::input_device::check("PReLU", x, "weight", &this.weight)?;
    this.apply(x).of("PReLU")
});

impl PReLU {
    fn describe(&self) -> String {
        format!("num_parameters={}", size(&self.weight, 0))
    }

    #[track_caller]
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let mut sizes = vec![1isize; x.dim().max(1)];
        if self.weight.numel() > 1 && x.dim() > 1 {
            sizes[1] = self.weight.numel() as isize;
        }
        let slope =
            if x.dim() > 1 { self.weight.reshape(&sizes)? } else { Tensor::clone(&self.weight) };
        // At zero, `clamp_max` passes the gradient on and `relu` does not, so the gradient is the slope, as in PyTorch.
        x.relu()?.add(&x.clamp_max(0.0)?.mul(&slope)?)
    }
}
