//! Activation functions as modules.

use warpline::functional::{glu, softmin};
use warpline::{Result, Tensor};

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

/// Defines activations with settings: fields with PyTorch's defaults, and the computation.
macro_rules! with_settings {
    ($($doc:literal $name:ident { $($field:ident: $ty:ty = $default:expr),* } ($this:ident, $x:ident) => $body:expr;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`). The defaults of the fields are PyTorch's.")]
        #[derive(Clone, Copy, Debug, Module)]
        #[allow(missing_docs)] // PyTorch's names
        pub struct $name {
            $(pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        forward!($name, $this, $x => $body);
    )*};
}

with_settings! {
    "The Gaussian error linear unit; `tanh` selects the approximation by a hyperbolic tangent" GELU { tanh: bool = false }
        (s, x) => if s.tanh { x.gelu_tanh() } else { x.gelu() };
    "x if x > 0, otherwise `negative_slope` · x" LeakyReLU { negative_slope: f64 = 0.01 }
        (s, x) => x.leaky_relu(s.negative_slope);
    "The exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x) - 1)" ELU { alpha: f64 = 1.0 }
        (s, x) => x.elu(s.alpha);
    "The continuously differentiable exponential linear unit: x if x > 0, otherwise `alpha` · (exp(x / `alpha`) - 1)"
        CELU { alpha: f64 = 1.0 } (s, x) => x.celu(s.alpha);
    "log(1 + exp(`beta` · x)) / `beta`, and x where `beta` · x > `threshold`"
        Softplus { beta: f64 = 1.0, threshold: f64 = 20.0 } (s, x) => x.softplus(s.beta, s.threshold);
    "x moved towards zero by `lambd`, and 0 where |x| ≤ `lambd`" Softshrink { lambd: f64 = 0.5 }
        (s, x) => x.softshrink(s.lambd);
    "x, and 0 where |x| ≤ `lambd`" Hardshrink { lambd: f64 = 0.5 } (s, x) => x.hardshrink(s.lambd);
    "x clamped to `min_val` and `max_val`" Hardtanh { min_val: f64 = -1.0, max_val: f64 = 1.0 }
        (s, x) => x.hardtanh(s.min_val, s.max_val);
    "The softmax along a dimension" Softmax { dim: isize = -1 } (s, x) => x.softmax(s.dim);
    "The softmax of -x along a dimension" Softmin { dim: isize = -1 } (s, x) => softmin(x, s.dim);
    "The logarithm of the softmax along a dimension" LogSoftmax { dim: isize = -1 }
        (s, x) => x.log_softmax(s.dim);
    "The gated linear unit: the first half of a dimension times the sigmoid of the second half" GLU { dim: isize = -1 }
        (s, x) => glu(x, s.dim);
}

/// The leaky ReLU with a learned negative slope (`torch.nn.PReLU`).
#[derive(Clone, Debug, Module)]
pub struct PReLU {
    /// The negative slopes, `[channels]`, or `[1]` for all channels. Channels are dimension 1 of the input.
    pub weight: Parameter,
}

impl PReLU {
    /// Creates a module with `channels` slopes of 0.25, PyTorch's initial value.
    ///
    /// # Errors
    /// The same as [`warpline::full`].
    #[track_caller]
    pub fn new(channels: usize, options: impl Into<warpline::TensorOptions>) -> Result<Self> {
        let weight = warpline::full([channels], 0.25, floats(options)).and_then(Parameter::new);
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
