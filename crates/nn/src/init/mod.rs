//! Initialisers (`torch.nn.init`). They fill a tensor or parameter in place, without recording gradients, and draw the
//! same values as PyTorch for the same seed.

mod fans;
mod matrices;

use std::f64::consts::SQRT_2;

use warpline::{Error, Result, Scalar, Tensor};

pub use fans::{FanMode, Nonlinearity, calculate_gain};
pub use matrices::{dirac_, eye_, orthogonal_, sparse_};

pub(crate) use fans::fans;

/// Fills a tensor from the uniform distribution on `[a, b)`.
///
/// # Errors
/// The same as [`Tensor::uniform_`].
#[track_caller]
pub fn uniform_(tensor: &Tensor, a: f64, b: f64) -> Result<&Tensor> {
    tensor.detach().uniform_(a, b)?;
    Ok(tensor)
}

/// Fills a tensor from the normal distribution with mean `mean` and standard deviation `std`.
///
/// # Errors
/// The same as [`Tensor::normal_`].
#[track_caller]
pub fn normal_(tensor: &Tensor, mean: f64, std: f64) -> Result<&Tensor> {
    tensor.detach().normal_(mean, std)?;
    Ok(tensor)
}

/// Fills a tensor from the normal distribution with mean `mean` and standard deviation `std`, truncated to `[a, b]`.
///
/// # Errors
/// The same as [`Tensor::uniform_`].
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
/// The same as [`Tensor::fill_`].
#[track_caller]
pub fn constant_(tensor: &Tensor, value: impl Into<Scalar>) -> Result<&Tensor> {
    tensor.detach().fill_(value)?;
    Ok(tensor)
}

/// Sets every element to 1.
///
/// # Errors
/// The same as [`Tensor::fill_`].
#[track_caller]
pub fn ones_(tensor: &Tensor) -> Result<&Tensor> {
    constant_(tensor, 1)
}

/// Sets every element to 0.
///
/// # Errors
/// The same as [`Tensor::fill_`].
#[track_caller]
pub fn zeros_(tensor: &Tensor) -> Result<&Tensor> {
    constant_(tensor, 0)
}

/// Fills a weight `[out, in, ..]` uniformly from ±`gain` · √(6 / (fan-in + fan-out)) (Glorot).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::uniform_`].
#[track_caller]
pub fn xavier_uniform_(tensor: &Tensor, gain: f64) -> Result<&Tensor> {
    let (fan_in, fan_out) = fans("xavier_uniform_", tensor)?;
    let std = gain * (2.0 / (fan_in + fan_out) as f64).sqrt();
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, -bound, bound)
}

/// Fills a weight `[out, in, ..]` from the normal distribution with mean 0 and standard deviation
/// `gain` · √(2 / (fan-in + fan-out)) (Glorot).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::normal_`].
#[track_caller]
pub fn xavier_normal_(tensor: &Tensor, gain: f64) -> Result<&Tensor> {
    let (fan_in, fan_out) = fans("xavier_normal_", tensor)?;
    normal_(tensor, 0.0, gain * (2.0 / (fan_in + fan_out) as f64).sqrt())
}

/// Fills a weight `[out, in, ..]` uniformly from ±gain · √(3 / fan) (He). `nonlinearity` determines the gain
/// ([`calculate_gain`]), `mode` the fan. PyTorch's defaults are the defaults of both types.
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
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::uniform_`].
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

/// Fills a weight `[out, in, ..]` from the normal distribution with mean 0 and standard deviation gain / √fan (He).
/// `nonlinearity` determines the gain ([`calculate_gain`]), `mode` the fan.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::normal_`].
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

/// Returns the error for a tensor whose shape an initialiser does not support.
#[track_caller]
fn shape_error(op: &'static str, reason: &str, tensor: &Tensor) -> Error {
    Error::invalid(op, format!("{reason}, but the tensor's shape is {:?}", tensor.size()))
}
