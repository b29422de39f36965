//! Fan-in and fan-out of weights, and gains of activations.

use warpline::{Result, Tensor};

use super::shape_error;

/// The fan by which Kaiming initialisation divides the variance of a weight's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanMode {
    /// Fan-in: preserves the variance of activations in the forward pass.
    #[default]
    FanIn,
    /// Fan-out: preserves the variance of gradients in the backward pass.
    FanOut,
}

/// The activation that follows a layer, which determines the gain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Nonlinearity {
    /// No activation, or a linear or convolution layer. Gain 1.
    Linear,
    /// Sigmoid. Gain 1.
    Sigmoid,
    /// Hyperbolic tangent. Gain 5/3.
    Tanh,
    /// ReLU. Gain √2.
    ReLU,
    /// Leaky ReLU with this negative slope. Gain √(2 / (1 + slope²)).
    LeakyReLU(f64),
    /// SELU. Gain 3/4.
    SELU,
    /// PyTorch's default for [`kaiming_uniform_`](super::kaiming_uniform_) and
    /// [`kaiming_normal_`](super::kaiming_normal_): a leaky ReLU with slope 0. Gain √2.
    #[default]
    Default,
}

impl FanMode {
    pub(super) fn of(self, (fan_in, fan_out): (usize, usize)) -> usize {
        match self {
            Self::FanIn => fan_in,
            Self::FanOut => fan_out,
        }
    }
}

/// Returns the recommended gain of an activation: the factor of a weight's standard deviation
/// (`torch.nn.init.calculate_gain`).
#[must_use]
pub fn calculate_gain(nonlinearity: Nonlinearity) -> f64 {
    match nonlinearity {
        Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
        Nonlinearity::Tanh => 5.0 / 3.0,
        Nonlinearity::ReLU | Nonlinearity::Default => 2f64.sqrt(),
        Nonlinearity::LeakyReLU(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        Nonlinearity::SELU => 0.75,
    }
}

/// Returns fan-in and fan-out of a weight of shape `[out, in, ..]`.
#[track_caller]
pub(crate) fn fans(op: &'static str, tensor: &Tensor) -> Result<(usize, usize)> {
    let [out, inputs, field @ ..] = tensor.size() else {
        return Err(shape_error(op, "fan in and fan out need two dimensions or more", tensor));
    };
    let field: usize = field.iter().product();
    Ok((inputs * field, out * field))
}
