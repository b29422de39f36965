//! Initialisers (`torch.nn.init`). They fill a tensor or parameter in place, without recording gradients, and draw the
//! same values as PyTorch for the same seed.

mod fans;
mod matrices;

use std::f64::consts::SQRT_2;

use warpline::{
    Error, IntoOptions, NormalOptions, OrDefault, Result, Scalar, Tensor, UniformOptions,
};

pub use fans::{FanMode, Nonlinearity, calculate_gain};
pub use matrices::{dirac_, eye_, orthogonal_, sparse_};

pub(crate) use fans::fans;

/// Fills a tensor from the uniform distribution on `[a, b)`. `options` is `()` for 0 and 1, `(a, b)`, or
/// [`UniformOptions`].
///
/// # Errors
/// The same as [`Tensor::uniform_`].
#[track_caller]
pub fn uniform_(tensor: &Tensor, options: impl IntoOptions<UniformOptions>) -> Result<&Tensor> {
    tensor.detach().uniform_(options.into_options())?;
    Ok(tensor)
}

/// Fills a tensor from a normal distribution. `options` is `()` for mean 0 and standard deviation 1, `(mean, std)`, or
/// [`NormalOptions`].
///
/// # Errors
/// The same as [`Tensor::normal_`].
#[track_caller]
pub fn normal_(tensor: &Tensor, options: impl IntoOptions<NormalOptions>) -> Result<&Tensor> {
    tensor.detach().normal_(options.into_options())?;
    Ok(tensor)
}

warpline::__options! {
    /// Options of [`trunc_normal_`]. A tuple converts into options with that `mean` and `std`.
    #[derive(Clone, Copy, Debug)]
    TruncNormalOptions [] [] {
        /// Sets the mean of the distribution before the truncation. Default: 0.
        mean: f64 = 0.0, f64;
        /// Sets the standard deviation before the truncation. Default: 1.
        std: f64 = 1.0, f64;
        /// Sets the least value. Default: -2.
        a: f64 = -2.0, f64;
        /// Sets the greatest value. Default: 2.
        b: f64 = 2.0, f64;
    }
}

impl From<(f64, f64)> for TruncNormalOptions {
    fn from((mean, std): (f64, f64)) -> Self {
        Self::new().mean(mean).std(std)
    }
}

/// Fills a tensor from a normal distribution that is truncated to a range.
///
/// # Errors
/// The same as [`Tensor::uniform_`].
#[track_caller]
pub fn trunc_normal_(
    tensor: &Tensor,
    options: impl IntoOptions<TruncNormalOptions>,
) -> Result<&Tensor> {
    let TruncNormalOptions { mean, std, a, b } = options.into_options();
    let below = |x: f64| (1.0 + libm::erf((x - mean) / std / SQRT_2)) / 2.0;
    let (low, high) = (below(a), below(b));
    let data = tensor.detach();
    data.uniform_((2.0 * low - 1.0, 2.0 * high - 1.0))?.erfinv_()?;
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

/// Fills a weight `[out, in, ..]` uniformly from ±`gain` · √(6 / (fan-in + fan-out)) (Glorot). Default of `gain`: 1.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::uniform_`].
#[track_caller]
pub fn xavier_uniform_(tensor: &Tensor, gain: impl IntoOptions<OrDefault<f64>>) -> Result<&Tensor> {
    let gain = gain.into_options().or(1.0);
    let (fan_in, fan_out) = fans("xavier_uniform_", tensor)?;
    let std = gain * (2.0 / (fan_in + fan_out) as f64).sqrt();
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, (-bound, bound))
}

/// Fills a weight `[out, in, ..]` from the normal distribution with mean 0 and standard deviation
/// `gain` · √(2 / (fan-in + fan-out)) (Glorot). Default of `gain`: 1.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::normal_`].
#[track_caller]
pub fn xavier_normal_(tensor: &Tensor, gain: impl IntoOptions<OrDefault<f64>>) -> Result<&Tensor> {
    let gain = gain.into_options().or(1.0);
    let (fan_in, fan_out) = fans("xavier_normal_", tensor)?;
    normal_(tensor, (0.0, gain * (2.0 / (fan_in + fan_out) as f64).sqrt()))
}

warpline::__options! {
    /// Options of [`kaiming_uniform_`] and [`kaiming_normal_`]. A [`Nonlinearity`] converts into options with that
    /// `nonlinearity`, and a [`FanMode`] into options with that `mode`.
    #[derive(Clone, Copy, Debug)]
    KaimingOptions [] [] {
        /// Sets whether the fan is the number of inputs or of outputs. Default: [`FanMode::FanIn`].
        mode: FanMode = FanMode::FanIn, FanMode;
        /// Sets the nonlinearity after the weight, which determines the gain ([`calculate_gain`]). Default:
        /// [`Nonlinearity::Default`], whose gain is √2.
        nonlinearity: Nonlinearity = Nonlinearity::Default, Nonlinearity;
    }
}

impl From<Nonlinearity> for KaimingOptions {
    fn from(nonlinearity: Nonlinearity) -> Self {
        Self::new().nonlinearity(nonlinearity)
    }
}

impl From<FanMode> for KaimingOptions {
    fn from(mode: FanMode) -> Self {
        Self::new().mode(mode)
    }
}

/// Fills a weight `[out, in, ..]` uniformly from ±gain · √(3 / fan) (He).
///
/// ```
/// use warpline_nn::init::{Nonlinearity, kaiming_uniform_};
///
/// let weight = warpline::empty([8, 4], ())?;
/// kaiming_uniform_(&weight, Nonlinearity::ReLU)?;
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
    options: impl IntoOptions<KaimingOptions>,
) -> Result<&Tensor> {
    let KaimingOptions { mode, nonlinearity } = options.into_options();
    let fan = mode.of(fans("kaiming_uniform_", tensor)?);
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    let std = calculate_gain(nonlinearity) / (fan as f64).sqrt();
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, (-bound, bound))
}

/// Fills a weight `[out, in, ..]` from the normal distribution with mean 0 and standard deviation gain / √fan (He).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the tensor has fewer than two dimensions;
/// errors of [`Tensor::normal_`].
#[track_caller]
pub fn kaiming_normal_(
    tensor: &Tensor,
    options: impl IntoOptions<KaimingOptions>,
) -> Result<&Tensor> {
    let KaimingOptions { mode, nonlinearity } = options.into_options();
    let fan = mode.of(fans("kaiming_normal_", tensor)?);
    if tensor.numel() == 0 {
        return Ok(tensor);
    }
    normal_(tensor, (0.0, calculate_gain(nonlinearity) / (fan as f64).sqrt()))
}

/// Returns the error for a tensor whose shape an initialiser does not support.
#[track_caller]
fn shape_error(op: &'static str, reason: &str, tensor: &Tensor) -> Error {
    Error::invalid(op, format!("{reason}, but the tensor's shape is {:?}", tensor.size()))
}
