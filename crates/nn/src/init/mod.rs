//! Initialisers (`torch.nn.init`). They change a tensor in place, and for a seed give PyTorch's values.

mod fans;
mod matrices;

use std::f64::consts::SQRT_2;

use warpline::{DType, Error, Result, Scalar, Tensor};

pub use fans::{FanMode, Nonlinearity, calculate_gain};
pub use matrices::{dirac_, eye_, orthogonal_, sparse_};

pub(crate) use fans::fans;

/// Draws uniformly from `[a, b)`.
///
/// # Errors
/// As [`Tensor::uniform_`].
#[track_caller]
pub fn uniform_(tensor: &Tensor, a: f64, b: f64) -> Result<&Tensor> {
    quietly(|| tensor.uniform_(a, b))
}

/// Draws from the normal distribution.
///
/// # Errors
/// As [`Tensor::normal_`].
#[track_caller]
pub fn normal_(tensor: &Tensor, mean: f64, std: f64) -> Result<&Tensor> {
    quietly(|| tensor.normal_(mean, std))
}

/// Draws from the normal distribution, but none below `a` or above `b`. The values come by way of the host.
///
/// # Errors
/// As [`Tensor::uniform_`].
#[track_caller]
pub fn trunc_normal_(tensor: &Tensor, mean: f64, std: f64, a: f64, b: f64) -> Result<&Tensor> {
    let below = |x: f64| (1.0 + libm::erf((x - mean) / std / SQRT_2)) / 2.0;
    let (low, high) = (below(a), below(b));
    quietly(|| {
        tensor.uniform_(2.0 * low - 1.0, 2.0 * high - 1.0)?;
        let mut values = tensor.to(DType::F64)?.to_vec::<f64>()?;
        values.iter_mut().for_each(|x| *x = erfinv(*x));
        tensor.copy_(&Tensor::from_vec(values, tensor.size(), ())?, false)?;
        tensor.mul_(std * SQRT_2)?.add_(mean)?.clamp_(a, b)
    })
}

/// What the error function is `y` at: a rational approximation, and two of Newton's steps.
fn erfinv(y: f64) -> f64 {
    let polynomial = |z: f64, c: &[f64]| c.iter().rev().fold(0.0, |sum, c| sum * z + c);
    let mut x = if y.abs() <= 0.7 {
        let z = y * y;
        let above = polynomial(z, &[0.886226899, -1.645349621, 0.914624893, -0.140543331]);
        let below = polynomial(z, &[1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801]);
        y * above / below
    } else {
        let z = (-((1.0 - y.abs()) / 2.0).ln()).sqrt();
        let above = polynomial(z, &[-1.970840454, -1.62490649, 3.429567803, 1.641345311]);
        (above / polynomial(z, &[1.0, 3.5438892, 1.6370678])).copysign(y)
    };
    if x.is_finite() {
        for _ in 0..2 {
            x -= (libm::erf(x) - y) / (2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp());
        }
    }
    x
}

/// Sets every element to `value`.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn constant_(tensor: &Tensor, value: impl Into<Scalar>) -> Result<&Tensor> {
    let value = value.into();
    quietly(|| tensor.fill_(value))
}

/// Sets every element to 1.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn ones_(tensor: &Tensor) -> Result<&Tensor> {
    constant_(tensor, 1)
}

/// Sets every element to 0.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn zeros_(tensor: &Tensor) -> Result<&Tensor> {
    constant_(tensor, 0)
}

/// Draws uniformly from ±`gain` · √(6 / (fan in + fan out)) (Glorot).
///
/// # Errors
/// [`Error::InvalidArgument`] of a tensor of fewer than two dimensions; as [`Tensor::uniform_`].
#[track_caller]
pub fn xavier_uniform_(tensor: &Tensor, gain: f64) -> Result<&Tensor> {
    let (fan_in, fan_out) = fans("xavier_uniform_", tensor)?;
    let std = gain * (2.0 / (fan_in + fan_out) as f64).sqrt();
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, -bound, bound)
}

/// Draws from the normal distribution of standard deviation `gain` · √(2 / (fan in + fan out)) (Glorot).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn xavier_normal_(tensor: &Tensor, gain: f64) -> Result<&Tensor> {
    let (fan_in, fan_out) = fans("xavier_normal_", tensor)?;
    normal_(tensor, 0.0, gain * (2.0 / (fan_in + fan_out) as f64).sqrt())
}

/// Draws uniformly from ±gain · √(3 / fan) (He).
///
/// ```
/// use warpline_nn::init::{FanMode, Nonlinearity, kaiming_uniform_};
///
/// let weight = warpline::empty([8, 4], ())?;
/// kaiming_uniform_(&weight, FanMode::FanIn, Nonlinearity::ReLU)?;
/// assert!(weight.abs()?.amax(())?.item::<f64>()? <= 2f64.sqrt() * (3f64 / 4.0).sqrt());
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_uniform_(
    tensor: &Tensor,
    mode: FanMode,
    nonlinearity: Nonlinearity,
) -> Result<&Tensor> {
    let fan = mode.of(fans("kaiming_uniform_", tensor)?);
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    let std = calculate_gain(nonlinearity) / (fan as f64).sqrt();
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, -bound, bound)
}

/// Draws from the normal distribution of standard deviation gain / √fan (He).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_normal_(
    tensor: &Tensor,
    mode: FanMode,
    nonlinearity: Nonlinearity,
) -> Result<&Tensor> {
    let fan = mode.of(fans("kaiming_normal_", tensor)?);
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    normal_(tensor, 0.0, calculate_gain(nonlinearity) / (fan as f64).sqrt())
}

/// Without gradients: a parameter may be initialised in place.
fn quietly<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    f()
}

/// What an initialiser refuses.
#[track_caller]
fn refused(op: &'static str, reason: &str, tensor: &Tensor) -> Error {
    Error::invalid(op, format!("{reason}, but the tensor's shape is {:?}", tensor.size()))
}
