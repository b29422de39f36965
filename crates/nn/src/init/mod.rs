//! Initialisers (`torch.nn.init`). They change a tensor in place, also a parameter, without being recorded, and for a seed give
//! PyTorch's values.

mod fans;
mod matrices;

use std::f64::consts::SQRT_2;

use warpline::{Error, Result, Scalar, Tensor};

pub use fans::{FanMode, Nonlinearity, calculate_gain};
pub use matrices::{dirac_, eye_, orthogonal_, sparse_};

pub(crate) use fans::fans;

/// Draws uniformly from `[a, b)`.
///
/// # Errors
/// As [`Tensor::uniform_`].
#[track_caller]
pub fn uniform_(tensor: &Tensor, a: f64, b: f64) -> Result<&Tensor> {
    tensor.detach().uniform_(a, b)?;
    Ok(tensor)
}

/// Draws from the normal distribution.
///
/// # Errors
/// As [`Tensor::normal_`].
#[track_caller]
pub fn normal_(tensor: &Tensor, mean: f64, std: f64) -> Result<&Tensor> {
    tensor.detach().normal_(mean, std)?;
    Ok(tensor)
}

/// Draws from the normal distribution, but none below `a` or above `b`.
///
/// # Errors
/// As [`Tensor::uniform_`].
#[track_caller]
pub fn trunc_normal_(tensor: &Tensor, mean: f64, std: f64, a: f64, b: f64) -> Result<&Tensor> {
    let below = |x: f64| (1.0 + libm::erf((x - mean) / std / SQRT_2)) / 2.0;
    let (low, high) = (below(a), below(b));
    let data = tensor.detach();
    data.uniform_(2.0 * low - 1.0, 2.0 * high - 1.0)?.erfinv_()?;
    data.mul_(std * SQRT_2)?.add_(mean)?.clamp_(a, b)?;
    Ok(tensor)
}

/// Sets every element to `value`.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn constant_(tensor: &Tensor, value: impl Into<Scalar>) -> Result<&Tensor> {
    tensor.detach().fill_(value)?;
    Ok(tensor)
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
/// [`ErrorKind::InvalidArgument`] of a tensor of fewer than two dimensions; as [`Tensor::uniform_`].
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

/// What an initialiser refuses.
#[track_caller]
fn refused(op: &'static str, reason: &str, tensor: &Tensor) -> Error {
    Error::invalid(op, format!("{reason}, but the tensor's shape is {:?}", tensor.size()))
}
