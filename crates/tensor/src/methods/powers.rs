//! Powers, rounded quotients, and other ops that need more code than an entry of the table of elementwise ops.

use warpline_kernels::elementwise as table;

use super::binary;
use super::elementwise::{TensorOrScalar, apply, apply_in_place, common_dtype};
use super::promote::{result_type, result_type_scalar};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::functional::options::options;
use crate::{CallScope, DType, Error, IntoOperand, IntoOptions, OrDefault, Result, Scalar, Tensor};

options! {
    /// Options of [`Tensor::isclose`] and [`Tensor::allclose`].
    #[derive(Clone, Copy, Debug)]
    IsCloseOptions [] [] {
        /// Sets the allowed difference relative to the magnitude of the other element. Default: 1e-5.
        rtol: f64 = 1e-5, f64;
        /// Sets the allowed absolute difference. It is added to the allowed relative difference. Default: 1e-8.
        atol: f64 = 1e-8, f64;
        /// Sets whether NaN is close to NaN. Default: `false`.
        equal_nan: bool = false, bool;
    }
}

/// The rounding of a quotient (`rounding_mode` of `torch.div`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundingMode {
    /// Towards zero, as C divides integers.
    Trunc,
    /// Down, as Python's `//` does.
    Floor,
}

impl Tensor {
    /// `self` to the power of `exponent` (`torch.pow`). Integers wrap. Does not support bools.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[2i64, -3], ())?;
    /// assert_eq!(t.pow(3)?.to_vec::<i64>()?, [8, -27]);
    /// assert_eq!(t.rpow(2.0)?.to_vec::<f32>()?, [4.0, 0.125]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the operands are integers and `exponent` is a negative number.
    /// Otherwise the same as [`Tensor::add`].
    #[track_caller]
    pub fn pow<'a>(&self, exponent: impl IntoOperand<'a>) -> Result<Self> {
        let _call = CallScope::enter("pow");
        let (this, exponent) = (self, exponent.into_operand());
        if let TensorOrScalar::Scalar(number) = exponent {
            autocast_operands!(F32, Keep, [this] => this.pow(number));
            let common = result_type_scalar(self, number);
            // Use the kernels of squares and square roots, as PyTorch does. The square root of -inf is NaN,
            // whereas -inf to the power of 0.5 is inf.
            if number.to_f64() == 2.0 && common == self.dtype() && common != DType::Bool {
                return self.square();
            }
            if common.is_float() && number == Scalar::Float(0.5) {
                return self.sqrt();
            }
            if common.is_float() && number == Scalar::Float(-0.5) {
                return self.rsqrt();
            }
        }
        binary::apply(&table::POW, self.into(), exponent)
    }

    /// `base` to the power of each element (`torch.pow` of a number and a tensor).
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn rpow(&self, base: impl Into<Scalar>) -> Result<Self> {
        let _call = CallScope::enter("rpow");
        binary::apply(&table::POW, base.into().into(), self.into())
    }

    /// The quotient, rounded (`torch.div` with `rounding_mode`). Integers stay integers. An integer divided by
    /// a zero element of a tensor gives a number with all bits set. Does not support bools.
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn div_rounded<'a>(&self, other: impl IntoOperand<'a>, mode: RoundingMode) -> Result<Self> {
        let _call = CallScope::enter("div_rounded");
        match mode {
            RoundingMode::Trunc => {
                binary::apply(&table::DIV_TRUNC, self.into(), other.into_operand())
            }
            RoundingMode::Floor => {
                binary::apply(&table::FLOOR_DIVIDE, self.into(), other.into_operand())
            }
        }
    }

    /// Rounds to `decimals` decimal places or, if `decimals` is negative, to a multiple of `10^-decimals`
    /// (`torch.round` with `decimals`). Halfway cases go to the even neighbour. Half-width floats are rounded
    /// in `f32`, as on PyTorch's CPU. Floats only.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[0.375f32, 1250.0], ())?;
    /// assert_eq!(t.round_decimals(2)?.to_vec::<f32>()?, [0.38, 1250.0]);
    /// assert_eq!(t.round_decimals(-2)?.to_vec::<f32>()?, [0.0, 1200.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn round_decimals(&self, decimals: i64) -> Result<Self> {
        self.check_rounds()?;
        match scale(decimals) {
            None => self.round(),
            Some(scale) => {
                apply(&table::ROUND_DECIMALS, &[self.into(), scale.into()], self.dtype())
            }
        }
    }

    /// [`Tensor::round_decimals`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::round_decimals`]. [`ErrorKind::OverlappingWrite`] if elements of the tensor share
    /// an address.
    #[track_caller]
    pub fn round_decimals_(&self, decimals: i64) -> Result<&Self> {
        self.check_rounds()?;
        let Some(scale) = scale(decimals) else { return self.round_() };
        let operands = [self.into(), scale.into()];
        apply_in_place(&table::ROUND_DECIMALS, "round_decimals_", self, &operands, self.dtype())?;
        Ok(self)
    }

    /// Fails for integers, even with 0 decimals, as PyTorch does.
    #[track_caller]
    fn check_rounds(&self) -> Result<()> {
        table::ROUND_DECIMALS.dtypes(self.dtype()).map(drop)
    }

    /// The larger of two elements. If one element is NaN, the result is the other element (`torch.fmax`).
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn fmax<'a>(&self, other: impl IntoOperand<'a>) -> Result<Self> {
        let other = other.into_operand();
        let float = common_dtype(&[self.into(), other]).is_float();
        binary::apply(if float { &table::FMAX } else { &table::MAXIMUM }, self.into(), other)
    }

    /// The smaller of two elements. If one element is NaN, the result is the other element (`torch.fmin`).
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn fmin<'a>(&self, other: impl IntoOperand<'a>) -> Result<Self> {
        let other = other.into_operand();
        let float = common_dtype(&[self.into(), other]).is_float();
        binary::apply(if float { &table::FMIN } else { &table::MINIMUM }, self.into(), other)
    }

    /// `self + weight * (end - self)`. Floats only (`torch.lerp`).
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn lerp<'a>(&self, end: &Tensor, weight: impl IntoOperand<'a>) -> Result<Self> {
        let operands = [self.into(), end.into(), weight.into_operand()];
        apply(&table::LERP, &operands, common_dtype(&operands[..2]))
    }

    /// [`Tensor::lerp`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::add_`].
    #[track_caller]
    pub fn lerp_<'a>(&self, end: &Tensor, weight: impl IntoOperand<'a>) -> Result<&Self> {
        let operands = [self.into(), end.into(), weight.into_operand()];
        apply_in_place(&table::LERP, "lerp_", self, &operands, common_dtype(&operands[..2]))?;
        Ok(self)
    }

    /// `self + value * a * b` (`torch.addcmul`). Does not support bools. Default of `value`: 1.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] if `value` is a float and the tensors have an integer dtype. Otherwise the same as
    /// [`Tensor::add`].
    #[track_caller]
    pub fn addcmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        value: impl IntoOptions<OrDefault<Scalar>>,
    ) -> Result<Self> {
        let value = value.into_options().or(Scalar::Int(1));
        let operands = [self.into(), a.into(), b.into(), value.into()];
        apply(&table::ADDCMUL, &operands, common_dtype(&operands[..3]))
    }

    /// [`Tensor::addcmul`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] if the result's category (bool, integer, float) is higher than that of this
    /// tensor. Otherwise the same as [`Tensor::addcmul`].
    #[track_caller]
    pub fn addcmul_(
        &self,
        a: &Tensor,
        b: &Tensor,
        value: impl IntoOptions<OrDefault<Scalar>>,
    ) -> Result<&Self> {
        let value = value.into_options().or(Scalar::Int(1));
        let operands = [self.into(), a.into(), b.into(), value.into()];
        let common = common_dtype(&operands[..3]);
        apply_in_place(&table::ADDCMUL, "addcmul_", self, &operands, common)?;
        Ok(self)
    }

    /// `self + value * a / b`. Floats only (`torch.addcdiv`). Default of `value`: 1.
    ///
    /// # Errors
    /// The same as [`Tensor::add`].
    #[track_caller]
    pub fn addcdiv(
        &self,
        a: &Tensor,
        b: &Tensor,
        value: impl IntoOptions<OrDefault<Scalar>>,
    ) -> Result<Self> {
        let value = value.into_options().or(Scalar::Int(1));
        let operands = [self.into(), a.into(), b.into(), value.into()];
        apply(&table::ADDCDIV, &operands, common_dtype(&operands[..3]))
    }

    /// [`Tensor::addcdiv`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] if the result's category (bool, integer, float) is higher than that of this
    /// tensor. Otherwise the same as [`Tensor::addcdiv`].
    #[track_caller]
    pub fn addcdiv_(
        &self,
        a: &Tensor,
        b: &Tensor,
        value: impl IntoOptions<OrDefault<Scalar>>,
    ) -> Result<&Self> {
        let value = value.into_options().or(Scalar::Int(1));
        let operands = [self.into(), a.into(), b.into(), value.into()];
        let common = common_dtype(&operands[..3]);
        apply_in_place(&table::ADDCDIV, "addcdiv_", self, &operands, common)?;
        Ok(self)
    }

    /// Returns a bool tensor: true where `|self - other| <= atol + rtol * |other|` (`torch.isclose`). Equal infinities
    /// are close. With `equal_nan`, two NaNs are close.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the dtypes differ. Otherwise the same as [`Tensor::add`].
    #[track_caller]
    pub fn isclose(
        &self,
        other: &Tensor,
        options: impl IntoOptions<IsCloseOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("isclose");
        let IsCloseOptions { rtol, atol, equal_nan } = options.into_options();
        let dtype = self.dtype();
        other.as_view().check_operand_dtype("isclose", "the other tensor", dtype)?;
        let mut close = self.eq(other)?;
        if equal_nan && dtype.is_float() {
            close = close.logical_or(&self.isnan()?.logical_and(&other.isnan()?)?)?;
        }
        if rtol == 0.0 && atol == 0.0 {
            return Ok(close);
        }
        let float = if dtype.is_float() { dtype } else { DType::F32 };
        let (a, b) = (self.in_dtype(float)?, other.in_dtype(float)?);
        let allowed = b.mul(rtol)?.abs()?.add(atol)?;
        let difference = a.sub(&b)?.abs()?;
        let near = difference.le(&allowed)?.logical_and(&difference.isfinite()?)?;
        close.logical_or(&near)
    }

    /// Adds `alpha * other` in place (`torch.Tensor.add_` with `alpha`), as a step of gradient descent does.
    ///
    /// ```
    /// # use warpline::ones;
    /// let (weight, grad) = (ones([2], ())?, ones([2], ())?);
    /// assert_eq!(weight.add_scaled_(&grad, -0.5)?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the category of `alpha` (bool, integer, float) is higher than that of
    /// this tensor. Otherwise the same as [`Tensor::add_`].
    #[doc(alias = "alpha")]
    #[track_caller]
    pub fn add_scaled_(&self, other: &Tensor, alpha: impl Into<Scalar>) -> Result<&Self> {
        let _call = CallScope::enter("add_scaled_");
        let alpha = alpha.into();
        if alpha.category() > self.dtype().category() {
            let reason = format!(
                "alpha must not be a {:?} for a tensor of {}",
                alpha.category(),
                self.dtype()
            );
            return Err(Error::invalid("add_scaled_", reason));
        }
        let scaled = other.in_dtype(result_type(self, other))?.mul(alpha)?;
        self.add_(&scaled)
    }

    /// `self + alpha * other` (`torch.add` with `alpha`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the category of `alpha` (bool, integer, float) is higher than that of
    /// the result. Otherwise the same as [`Tensor::add`].
    #[doc(alias = "alpha")]
    #[track_caller]
    pub fn add_scaled(&self, other: &Tensor, alpha: impl Into<Scalar>) -> Result<Self> {
        let _call = CallScope::enter("add_scaled");
        let alpha = alpha.into();
        let common = result_type(self, other);
        if alpha.category() > common.category() {
            return Err(Error::invalid(
                "add",
                format!("for a result of {common}, alpha must not be a float"),
            ));
        }
        self.add(&other.in_dtype(common)?.mul(alpha)?)
    }
}

/// Returns the scale of [`table::ROUND_DECIMALS`]: a power of ten, with a negative sign if `decimals` is
/// negative. `None` for 0 decimals.
fn scale(decimals: i64) -> Option<Scalar> {
    let size = 10f64.powf(decimals.unsigned_abs() as f64);
    (decimals != 0).then_some(Scalar::Float(if decimals < 0 { -size } else { size }))
}
