//! Methods for binary arithmetic and comparisons. Operands broadcast, and are promoted to the dtype of
//! `torch.result_type`.

use warpline_kernels::elementwise::{self as table, Op};

use super::elementwise::{self, TensorOrScalar, apply_in_place, common_dtype};
use crate::called::Called;
use crate::{IntoOperand, Result, Tensor};

/// Applies an op with two operands. At least one operand must be a tensor.
#[track_caller]
pub(super) fn apply(
    op: &'static Op,
    a: TensorOrScalar<'_>,
    b: TensorOrScalar<'_>,
) -> Result<Tensor> {
    let operands = [a, b];
    elementwise::apply(op, &operands, common_dtype(&operands))
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::BroadcastMismatch`] if the shapes do not broadcast.
            /// [`crate::ErrorKind::UnsupportedDType`] if the op has no kernel for the operands' dtype.
            /// [`crate::ErrorKind::InvalidArgument`] if the operands have an integer dtype that cannot hold a
            /// number among them, or if integers are divided by the number 0. Errors of [every
            /// op](Tensor#errors-of-every-op).
            #[track_caller]
            pub fn $name<'a>(&self, other: impl IntoOperand<'a>) -> Result<Self> {
                apply(&table::$op, self.into(), other.into_operand()).of(stringify!($name))
            }
        )*}
    };
}

methods! {
    /// `self + other`.
    add ADD;
    /// `self - other`. Does not support bools.
    sub SUB;
    /// `self * other`.
    mul MUL;
    /// `self / other`. The quotient of integers is floating-point.
    div DIV;
    /// The larger of two elements; NaN if either is NaN.
    maximum MAXIMUM;
    /// The smaller of two elements; NaN if either is NaN.
    minimum MINIMUM;
    /// `self == other`, as a bool tensor.
    #[doc(alias = "==")]
    eq EQ;
    /// `self != other`, as a bool tensor.
    #[doc(alias = "!=")]
    ne NE;
    /// `self < other`, as a bool tensor.
    #[doc(alias = "<")]
    lt LT;
    /// `self <= other`, as a bool tensor.
    #[doc(alias = "<=")]
    le LE;
    /// `self > other`, as a bool tensor.
    #[doc(alias = ">")]
    gt GT;
    /// `self >= other`, as a bool tensor.
    #[doc(alias = ">=")]
    ge GE;
    /// The remainder of [`Tensor::floor_divide`], with the sign of the divisor. Does not support bools. An
    /// integer divided by a zero element of a tensor gives the dividend.
    remainder REMAINDER;
    /// The remainder of the quotient rounded towards zero, with the sign of the dividend. Does not support
    /// bools. An integer divided by a zero element of a tensor gives the dividend.
    fmod FMOD;
    /// The quotient, rounded down. Does not support bools. An integer divided by a zero element of a tensor
    /// gives a number with all bits set.
    floor_divide FLOOR_DIVIDE;
    /// The angle of the point whose ordinate is `self` and whose abscissa is `other`, in radians.
    atan2 ATAN2;
    /// The square root of the sum of both squares. Floats only.
    hypot HYPOT;
    /// The magnitude of `self` with the sign of `other`.
    copysign COPYSIGN;
    /// The next representable number after `self` towards `other`. `float32` and `float64` only.
    nextafter NEXTAFTER;
    /// `self * log(other)`. The result is 0 where `self` is 0, unless `other` is NaN.
    xlogy XLOGY;
    /// `log(exp(self) + exp(other))`. Floats only.
    logaddexp LOGADDEXP;
    /// `log2(2 ** self + 2 ** other)`. Floats only.
    logaddexp2 LOGADDEXP2;
    /// The step function of `self`: 0 below zero, 1 above zero, and `other` at zero.
    heaviside HEAVISIDE;
    /// Returns a bool tensor: true where both elements are nonzero.
    logical_and LOGICAL_AND;
    /// Returns a bool tensor: true where at least one of the elements is nonzero.
    logical_or LOGICAL_OR;
    /// Returns a bool tensor: true where exactly one of the elements is nonzero.
    logical_xor LOGICAL_XOR;
    /// Bitwise AND. Integers and bools only.
    bitwise_and BITWISE_AND;
    /// Bitwise OR. Integers and bools only.
    bitwise_or BITWISE_OR;
    /// Bitwise XOR. Integers and bools only.
    bitwise_xor BITWISE_XOR;
    /// `self` shifted left by `other` bits; 0 if the count is negative or too large. Integers only.
    bitwise_left_shift LEFT_SHIFT;
    /// `self` shifted right by `other` bits and filled with the sign bit. If the count is negative or too
    /// large, all bits of the result are the sign bit. Integers only.
    bitwise_right_shift RIGHT_SHIFT;
    /// The greatest common divisor; 0 for two zeros. Integers only.
    gcd GCD;
    /// The least common multiple; 0 if either is 0. Integers only.
    lcm LCM;
}

macro_rules! in_place_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::CannotCast`] if the result's category (bool, integer, float) is higher than
            /// that of this tensor. [`crate::ErrorKind::ShapeMismatch`] if the operands broadcast to a
            /// different shape than this tensor's. Otherwise the same as the method without the underscore.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl IntoOperand<'a>) -> Result<&Self> {
                let operands = [self.into(), other.into_operand()];
                let common = common_dtype(&operands);
                apply_in_place(&table::$op, stringify!($name), self, &operands, common)?;
                Ok(self)
            }
        )*}
    };
}

in_place_methods! {
    /// Adds `other` to each element.
    add_ ADD;
    /// Subtracts `other` from each element. Does not support bools.
    sub_ SUB;
    /// Multiplies each element by `other`.
    mul_ MUL;
    /// Divides each element by `other`.
    div_ DIV;
    /// Raises each element to a power. Does not support bools.
    pow_ POW;
    /// [`Tensor::remainder`] in place.
    remainder_ REMAINDER;
    /// [`Tensor::fmod`] in place.
    fmod_ FMOD;
    /// [`Tensor::floor_divide`] in place.
    floor_divide_ FLOOR_DIVIDE;
    /// [`Tensor::atan2`] in place.
    atan2_ ATAN2;
    /// [`Tensor::hypot`] in place.
    hypot_ HYPOT;
    /// [`Tensor::copysign`] in place.
    copysign_ COPYSIGN;
    /// [`Tensor::nextafter`] in place.
    nextafter_ NEXTAFTER;
    /// [`Tensor::xlogy`] in place.
    xlogy_ XLOGY;
    /// [`Tensor::heaviside`] in place.
    heaviside_ HEAVISIDE;
    /// [`Tensor::eq`] in place. The results are 0 and 1 in this tensor's dtype.
    eq_ EQ;
    /// [`Tensor::ne`] in place. The results are 0 and 1 in this tensor's dtype.
    ne_ NE;
    /// [`Tensor::lt`] in place. The results are 0 and 1 in this tensor's dtype.
    lt_ LT;
    /// [`Tensor::le`] in place. The results are 0 and 1 in this tensor's dtype.
    le_ LE;
    /// [`Tensor::gt`] in place. The results are 0 and 1 in this tensor's dtype.
    gt_ GT;
    /// [`Tensor::ge`] in place. The results are 0 and 1 in this tensor's dtype.
    ge_ GE;
    /// [`Tensor::logical_and`] in place. The results are 0 and 1 in this tensor's dtype.
    logical_and_ LOGICAL_AND;
    /// [`Tensor::logical_or`] in place. The results are 0 and 1 in this tensor's dtype.
    logical_or_ LOGICAL_OR;
    /// [`Tensor::logical_xor`] in place. The results are 0 and 1 in this tensor's dtype.
    logical_xor_ LOGICAL_XOR;
    /// [`Tensor::bitwise_and`] in place.
    bitwise_and_ BITWISE_AND;
    /// [`Tensor::bitwise_or`] in place.
    bitwise_or_ BITWISE_OR;
    /// [`Tensor::bitwise_xor`] in place.
    bitwise_xor_ BITWISE_XOR;
    /// [`Tensor::bitwise_left_shift`] in place.
    bitwise_left_shift_ LEFT_SHIFT;
    /// [`Tensor::bitwise_right_shift`] in place.
    bitwise_right_shift_ RIGHT_SHIFT;
    /// [`Tensor::gcd`] in place.
    gcd_ GCD;
    /// [`Tensor::lcm`] in place.
    lcm_ LCM;
}
