//! How many inputs and outputs an element of a weight meets, and what an activation keeps of a variance.

use warpline::{Result, Tensor};

use super::refused;

/// Which of both variances is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanMode {
    /// That of the forward pass.
    #[default]
    FanIn,
    /// That of the backward pass.
    FanOut,
}

/// What comes after a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Nonlinearity {
    /// Nothing, or a convolution.
    Linear,
    /// A sigmoid.
    Sigmoid,
    /// A hyperbolic tangent.
    Tanh,
    /// A rectifier.
    ReLU,
    /// A rectifier with this slope below zero.
    LeakyReLU(f64),
    /// A scaled exponential unit.
    SELU,
    /// PyTorch's default for [`kaiming_uniform_`](super::kaiming_uniform_) and
    /// [`kaiming_normal_`](super::kaiming_normal_): a leaky rectifier whose slope is 0.
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

/// By what a standard deviation is multiplied for an activation (`calculate_gain`).
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

/// Fan in and fan out of a weight of `[out, in, ..]`.
#[track_caller]
pub(crate) fn fans(op: &'static str, tensor: &Tensor) -> Result<(usize, usize)> {
    let [out, inputs, field @ ..] = tensor.size() else {
        return Err(refused(op, "fan in and fan out need two dimensions or more", tensor));
    };
    let field: usize = field.iter().product();
    Ok((inputs * field, out * field))
}
