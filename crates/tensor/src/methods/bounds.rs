//! Bounds, and selections between elements.

use warpline_kernels::elementwise as table;

use super::elementwise::{
    TensorOrScalar, apply, apply_as, apply_in_place, apply_in_place_as, as_filled, common_dtype,
};
use super::inplace::check_filled;
use crate::functional::options::{from_number, options};
use crate::{CallScope, DType, ErrorKind, IntoOperand, IntoOptions, Result, Scalar, Tensor};

options! {
    /// Options of [`Tensor::nan_to_num`]. A number converts into options that replace NaN with this number.
    #[derive(Clone, Copy, Debug)]
    NanToNumOptions [] [] {
        /// Sets the replacement of NaN. Default: 0.
        nan: Option<f64> = None, impl Into<Option<f64>> => Into::into;
        /// Sets the replacement of inf. Default: the largest finite number of the dtype.
        posinf: Option<f64> = None, impl Into<Option<f64>> => Into::into;
        /// Sets the replacement of -inf. Default: the smallest finite number of the dtype.
        neginf: Option<f64> = None, impl Into<Option<f64>> => Into::into;
    }
}

from_number! { NanToNumOptions nan; }

/// Selects `x` where the condition is true, otherwise `y` (`torch.where`). The condition must be a boolean
/// tensor. Condition, `x` and `y` broadcast.
///
/// ```
/// # use warpline::{tensor, where_cond};
/// let t = tensor(&[-1f32, 2.0], ())?;
/// assert_eq!(where_cond(&t.gt(0)?, &t, 0)?.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`] if the condition is not boolean. Otherwise the same as [`Tensor::add`].
#[doc(alias = "where")]
#[track_caller]
pub fn where_cond<'a>(
    condition: &Tensor,
    x: impl IntoOperand<'a>,
    y: impl IntoOperand<'a>,
) -> Result<Tensor> {
    let (x, y) = (x.into_operand(), y.into_operand());
    condition.as_view().check_operand_dtype("where", "the condition", DType::Bool)?;
    apply(&table::WHERE, &[condition.into(), x, y], common_dtype(&[x, y]))
}

impl Tensor {
    /// Clamps each element to the range from `min` to `max` (`torch.clamp`). If `min` is greater than `max`,
    /// the result is `max`. If an operand is NaN, the result is NaN. Does not support bools.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] if the common dtype is `bool`. Otherwise the same as [`Tensor::add`].
    #[track_caller]
    pub fn clamp<'a>(&self, min: impl IntoOperand<'a>, max: impl IntoOperand<'a>) -> Result<Self> {
        let operands = [self.into(), min.into_operand(), max.into_operand()];
        apply(&table::CLAMP, &operands, common_dtype(&operands))
    }

    /// [`Tensor::clamp`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] if the result's category (bool, integer, float) is higher than that of this
    /// tensor. [`ErrorKind::ShapeMismatch`] if the operands broadcast to a different shape than this tensor's.
    /// Otherwise the same as [`Tensor::clamp`].
    #[track_caller]
    pub fn clamp_<'a>(
        &self,
        min: impl IntoOperand<'a>,
        max: impl IntoOperand<'a>,
    ) -> Result<&Self> {
        let operands = [self.into(), min.into_operand(), max.into_operand()];
        apply_in_place(&table::CLAMP, "clamp_", self, &operands, common_dtype(&operands))?;
        Ok(self)
    }

    /// The larger of each element and `min`; NaN if either is NaN (`torch.clamp_min`). Does not support bools.
    ///
    /// # Errors
    /// The same as [`Tensor::clamp`].
    #[track_caller]
    pub fn clamp_min<'a>(&self, min: impl IntoOperand<'a>) -> Result<Self> {
        self.bound(&table::MAXIMUM, &table::CLAMP_MIN, min.into_operand())
    }

    /// The smaller of each element and `max`; NaN if either is NaN (`torch.clamp_max`). Does not support bools.
    ///
    /// # Errors
    /// The same as [`Tensor::clamp`].
    #[track_caller]
    pub fn clamp_max<'a>(&self, max: impl IntoOperand<'a>) -> Result<Self> {
        self.bound(&table::MINIMUM, &table::CLAMP_MAX, max.into_operand())
    }

    /// [`Tensor::clamp_min`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::clamp_`].
    #[track_caller]
    pub fn clamp_min_<'a>(&self, min: impl IntoOperand<'a>) -> Result<&Self> {
        let _call = CallScope::enter("clamp_min_");
        self.bound_(&table::MAXIMUM, &table::CLAMP_MIN, "clamp_min_", min.into_operand())
    }

    /// [`Tensor::clamp_max`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::clamp_`].
    #[track_caller]
    pub fn clamp_max_<'a>(&self, max: impl IntoOperand<'a>) -> Result<&Self> {
        let _call = CallScope::enter("clamp_max_");
        self.bound_(&table::MINIMUM, &table::CLAMP_MAX, "clamp_max_", max.into_operand())
    }

    /// Applies [`table::MAXIMUM`] or [`table::MINIMUM`], but records the gradient of a clamp.
    #[track_caller]
    fn bound(
        &self,
        op: &'static table::Op,
        backward: &'static table::Backward,
        bound: TensorOrScalar<'_>,
    ) -> Result<Self> {
        let operands = [self.into(), bound];
        let common = common_dtype(&operands);
        check_not_bool(backward.name(), common)?;
        apply_as(op, backward, &operands, common)
    }

    /// [`Tensor::bound`] in place.
    #[track_caller]
    fn bound_(
        &self,
        op: &'static table::Op,
        backward: &'static table::Backward,
        name: &'static str,
        bound: TensorOrScalar<'_>,
    ) -> Result<&Self> {
        let operands = [self.into(), bound];
        let common = common_dtype(&operands);
        check_not_bool(name, common)?;
        apply_in_place_as(op, Some(backward), name, self, &operands, common)?;
        Ok(self)
    }

    /// Selects this tensor's element where the condition is true, otherwise the element of `other`
    /// (`torch.Tensor.where`).
    ///
    /// # Errors
    /// The same as [`where_cond`].
    #[track_caller]
    pub fn where_cond<'a>(
        &'a self,
        condition: &Tensor,
        other: impl IntoOperand<'a>,
    ) -> Result<Self> {
        where_cond(condition, self, other)
    }

    /// Replaces elements with `value` where the mask is true (`torch.masked_fill`). The result has this
    /// tensor's dtype, and the shape to which this tensor and the mask broadcast.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the dtype cannot hold `value`. [`ErrorKind::DTypeMismatch`] if the mask is not
    /// boolean. Otherwise the same as [`Tensor::add`].
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Self> {
        let _call = CallScope::enter("masked_fill");
        let value = value.into();
        mask.as_view().check_operand_dtype("masked_fill", "the mask", DType::Bool)?;
        check_filled("masked_fill", value, self.dtype())?;
        let value = as_filled(value, self.dtype());
        let operands = [mask.into(), value.into(), self.into()];
        apply(&table::WHERE, &operands, self.dtype())
    }

    /// [`Tensor::masked_fill`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the mask does not broadcast to this tensor's shape. Otherwise the same
    /// as [`Tensor::masked_fill`].
    #[track_caller]
    pub fn masked_fill_(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<&Self> {
        let _call = CallScope::enter("masked_fill_");
        let value = value.into();
        mask.as_view().check_operand_dtype("masked_fill_", "the mask", DType::Bool)?;
        check_filled("masked_fill_", value, self.dtype())?;
        let value = as_filled(value, self.dtype());
        let operands = [mask.into(), value.into(), self.into()];
        apply_in_place(&table::WHERE, "masked_fill_", self, &operands, self.dtype())?;
        Ok(self)
    }

    /// Replaces NaN, inf and -inf with numbers (`torch.nan_to_num`). A number as `options` is the replacement
    /// of NaN. Integers and bools do not change.
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn nan_to_num(&self, options: impl IntoOptions<NanToNumOptions>) -> Result<Self> {
        match self.replacements(options.into_options()) {
            Some([nan, posinf, neginf]) => {
                apply(&table::NAN_TO_NUM, &[self.into(), nan, posinf, neginf], self.dtype())
            }
            None => self.converted(self.dtype()),
        }
    }

    /// [`Tensor::nan_to_num`] in place.
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn nan_to_num_(&self, options: impl IntoOptions<NanToNumOptions>) -> Result<&Self> {
        if let Some([nan, posinf, neginf]) = self.replacements(options.into_options()) {
            let operands = [self.into(), nan, posinf, neginf];
            apply_in_place(&table::NAN_TO_NUM, "nan_to_num_", self, &operands, self.dtype())?;
        }
        Ok(self)
    }

    /// Returns the replacements of NaN, inf and -inf. `None` if the dtype has no NaN and no infinities.
    fn replacements(
        &self,
        NanToNumOptions { nan, posinf, neginf }: NanToNumOptions,
    ) -> Option<[TensorOrScalar<'static>; 3]> {
        let most = match self.dtype() {
            DType::F16 => 65504.0,
            DType::BF16 => half::bf16::MAX.into(),
            DType::F32 => f32::MAX.into(),
            DType::F64 => f64::MAX,
            _ => return None,
        };
        let numbers = [nan.unwrap_or(0.0), posinf.unwrap_or(most), neginf.unwrap_or(-most)];
        Some(numbers.map(|v| Scalar::Float(v).into()))
    }
}

#[track_caller]
fn check_not_bool(op: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::Bool {
        return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
    }
    Ok(())
}
