//! Activation functions as modules.

use warpline::__Called as _;
use warpline::functional::{self, prelu, softmin};
pub use warpline::functional::{
    Approximate, CELUOptions, ELUOptions, GLUOptions, HardshrinkOptions, HardtanhOptions,
    LeakyReLUOptions, SoftplusOptions, SoftshrinkOptions,
};
use warpline::{CallScope, Integer, IntoOptions, Result, Tensor};

use super::options::parameter_options;
use super::repr::{float, size};
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

/// Defines activations that have options.
macro_rules! with_options {
    ($($doc:literal $name:ident $function:ident $options:ident [$($field:ident)*] $repr:literal;)*) => {$(
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

        forward!($name, this, x => functional::$function(x, this.options));
    )*};
}

with_options! {
    "x if x > 0, otherwise `negative_slope` · x"
    LeakyReLU leaky_relu LeakyReLUOptions [negative_slope] "negative_slope={negative_slope}";
    "The exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x) - 1)"
    ELU elu ELUOptions [alpha] "alpha={alpha}";
    "The continuously differentiable exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x / `alpha`) - 1)"
    CELU celu CELUOptions [alpha] "alpha={alpha}";
    "log(1 + exp(`beta` · x)) / `beta`, and x where `beta` · x > `threshold`"
    Softplus softplus SoftplusOptions [beta threshold] "beta={beta}, threshold={threshold}";
    "x moved towards zero by `lambd`, and 0 where |x| ≤ `lambd`"
    Softshrink softshrink SoftshrinkOptions [lambd] "{lambd}";
    "x, and 0 where |x| ≤ `lambd`" Hardshrink hardshrink HardshrinkOptions [lambd] "{lambd}";
    "x clamped to `min_val` and `max_val`"
    Hardtanh hardtanh HardtanhOptions [min_val max_val] "min_val={min_val}, max_val={max_val}";
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

forward!(GELU, this, x => functional::gelu(x, this.approximate));

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
            pub fn new(dim: impl Integer) -> Self {
                Self { dim: dim.into_isize() }
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
}

/// The gated linear unit: the first half of a dimension times the sigmoid of the second half (`torch.nn.GLU`).
#[derive(Clone, Copy, Debug, Module)]
#[module(extra_repr = Self::describe)]
pub struct GLU {
    #[module(skip)]
    options: GLUOptions,
}

impl GLU {
    /// Creates the function. `options` is `()`, a dimension, or [`GLUOptions`].
    #[must_use]
    pub fn new(options: impl IntoOptions<GLUOptions>) -> Self {
        Self { options: options.into_options() }
    }

    fn describe(&self) -> String {
        format!("dim={}", self.options.dim)
    }
}

forward!(GLU, this, x => functional::glu(x, this.options));

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
    let _call = CallScope::enter("PReLU");
    crate::input_device::check("PReLU", x, "weight", &this.weight)?;
    prelu(x, &this.weight)
});

impl PReLU {
    fn describe(&self) -> String {
        format!("num_parameters={}", size(&self.weight, 0))
    }
}
