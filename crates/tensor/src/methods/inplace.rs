//! Ops that fill a tensor in place. All methods take `&self`, because a change is visible through all handles
//! and views anyway.

use warpline_kernels::{fill, random};

use super::elementwise::check_fits;
#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::{check_in_place, record_overwritten, should_record_in_place};
use crate::functional::options::options;
use crate::{CallScope, DType, Error, IntoOptions, OrDefault, Result, Scalar, Tensor};

options! {
    /// Options of [`Tensor::normal_`]. A tuple converts into options with that `mean` and `std`.
    #[derive(Clone, Copy, Debug)]
    NormalOptions [] [] {
        /// Sets the mean. Default: 0.
        mean: f64 = 0.0, f64;
        /// Sets the standard deviation. Default: 1.
        std: f64 = 1.0, f64;
    }
}

options! {
    /// Options of [`Tensor::uniform_`]. A tuple converts into options with that `from` and `to`.
    #[derive(Clone, Copy, Debug)]
    UniformOptions [] [] {
        /// Sets the lower end, inclusive. Default: 0.
        from: f64 = 0.0, f64;
        /// Sets the upper end, exclusive. Default: 1.
        to: f64 = 1.0, f64;
    }
}

impl From<(f64, f64)> for NormalOptions {
    fn from((mean, std): (f64, f64)) -> Self {
        Self { mean, std }
    }
}

impl From<(f64, f64)> for UniformOptions {
    fn from((from, to): (f64, f64)) -> Self {
        Self { from, to }
    }
}

impl Tensor {
    /// Sets every element to `value` (`torch.Tensor.fill_`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the dtype cannot hold `value`. [`ErrorKind::OverlappingWrite`] if
    /// elements of the tensor share an address. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<&Self> {
        let value = value.into();
        check_filled("fill_", value, self.dtype())?;
        let exec = self.exec()?;
        let tracked = check_overwritten("fill_", self)?;
        fill::fill(exec.target(), self.as_view(), value)?;
        self.record_overwrite("fill_", tracked)
    }

    /// Sets every element to zero (`torch.Tensor.zero_`).
    ///
    /// # Errors
    /// [`ErrorKind::OverlappingWrite`] if elements of the tensor share an address. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn zero_(&self) -> Result<&Self> {
        let _call = CallScope::enter("zero_");
        self.fill_(0)
    }

    /// Draws every element from the normal distribution with mean `mean` and standard deviation `std`
    /// (`torch.Tensor.normal_`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `std` is negative, or an argument is not finite.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn normal_(&self, options: impl IntoOptions<NormalOptions>) -> Result<&Self> {
        let NormalOptions { mean, std } = options.into_options();
        check_finite("normal_", &[("mean", mean), ("std", std)])?;
        let exec = self.exec()?;
        let tracked = check_overwritten("normal_", self)?;
        random::normal(exec.target(), self.as_view(), mean, std)?;
        self.record_overwrite("normal_", tracked)
    }

    /// Draws every element uniformly from `[from, to)` (`torch.Tensor.uniform_`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `from` is greater than `to`, a bound is not finite, or the interval is
    /// wider than the range of the dtype. [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point.
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn uniform_(&self, options: impl IntoOptions<UniformOptions>) -> Result<&Self> {
        let UniformOptions { from, to } = options.into_options();
        check_finite("uniform_", &[("from", from), ("to", to)])?;
        let exec = self.exec()?;
        let tracked = check_overwritten("uniform_", self)?;
        random::uniform(exec.target(), self.as_view(), from, to)?;
        self.record_overwrite("uniform_", tracked)
    }

    /// Draws every element from the integers from `low` up to but excluding `high` (`torch.Tensor.random_`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `high` is not greater than `low`, or the dtype cannot hold the
    /// integers. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn random_(&self, low: i64, high: i64) -> Result<&Self> {
        let exec = self.exec()?;
        let tracked = check_overwritten("random_", self)?;
        random::randint(exec.target(), self.as_view(), low, high)?;
        self.record_overwrite("random_", tracked)
    }

    /// Sets every element to 1 with probability `p`, otherwise to 0 (`torch.Tensor.bernoulli_`). Default of
    /// `p`: 0.5.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `p` is not between 0 and 1. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn bernoulli_(&self, p: impl IntoOptions<OrDefault<f64>>) -> Result<&Self> {
        let p = p.into_options().or(0.5);
        let exec = self.exec()?;
        let tracked = check_overwritten("bernoulli_", self)?;
        random::bernoulli(exec.target(), self.as_view(), p)?;
        self.record_overwrite("bernoulli_", tracked)
    }

    /// Draws every element from the exponential distribution with rate `lambd` (`torch.Tensor.exponential_`).
    /// Default of `lambd`: 1.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `lambd` is not positive and finite. [`ErrorKind::UnsupportedDType`] if
    /// the tensor is not floating-point. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn exponential_(&self, lambd: impl IntoOptions<OrDefault<f64>>) -> Result<&Self> {
        let lambda = lambd.into_options().or(1.0);
        check_finite("exponential_", &[("lambd", lambda)])?;
        let exec = self.exec()?;
        let tracked = check_overwritten("exponential_", self)?;
        random::exponential(exec.target(), self.as_view(), lambda)?;
        self.record_overwrite("exponential_", tracked)
    }

    /// Records for autograd that every element was overwritten, if `tracked` is true. `tracked` is the result
    /// of [`check_overwritten`].
    #[inline]
    #[track_caller]
    fn record_overwrite(&self, op: &'static str, tracked: bool) -> Result<&Self> {
        if tracked {
            record_overwritten(op, self)?;
        }
        Ok(self)
    }
}

/// Returns whether autograd has to record an op that overwrites every element of `tensor`. Fails if the op
/// would lose a gradient.
#[inline]
#[track_caller]
fn check_overwritten(op: &'static str, tensor: &Tensor) -> Result<bool> {
    let tracked = should_record_in_place(tensor, &[]);
    if tracked {
        check_in_place(op, tensor)?;
    }
    Ok(tracked)
}

#[track_caller]
fn check_finite(op: &'static str, arguments: &[(&str, f64)]) -> Result<()> {
    match arguments.iter().find(|(_, v)| !v.is_finite()) {
        None => Ok(()),
        Some((name, v)) => Err(Error::invalid(op, format!("{name} must be finite, but is {v}"))),
    }
}

/// Fails if a value is out of the range of a dtype. A fraction is valid for an integer dtype, because it is cut off.
#[track_caller]
pub(super) fn check_filled(op: &'static str, value: Scalar, dtype: DType) -> Result<()> {
    check_fits(op, value, dtype)?;
    check_float_fits(op, value, dtype)
}

/// Fails if a float is out of the range of a dtype. Infinities and NaN are valid for float dtypes and `bool`.
#[track_caller]
fn check_float_fits(op: &'static str, value: Scalar, dtype: DType) -> Result<()> {
    let v = match value {
        Scalar::Float(v) => v,
        // `F16` is the only float dtype whose range is smaller than that of `i64`.
        Scalar::Int(v) if dtype == DType::F16 => v as f64,
        _ => return Ok(()),
    };
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    let most = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 | DType::Bool => return Ok(()),
        DType::I64 if v.is_finite() && (-TWO_63..TWO_63).contains(&v) => {
            return Ok(());
        }
        DType::I64 => 0.0,
        _ if v.is_finite() => {
            let whole = Scalar::Int(v.trunc().clamp(-1e18, 1e18) as i64);
            return check_fits(op, whole, dtype);
        }
        _ => 0.0,
    };
    if v.abs() <= most || (dtype.is_float() && !v.is_finite()) {
        return Ok(());
    }
    Err(Error::invalid(
        op,
        format!("the value {v:?} cannot be converted to {dtype} without overflow"),
    ))
}
