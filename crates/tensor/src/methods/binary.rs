//! Arithmetic and comparisons, as methods.

use warpline_kernels::elementwise::{self as table, Op};

use super::elementwise::{self, TensorOrScalar, apply_in_place, common_dtype};
use crate::called::Called;
use crate::{Result, Tensor};

/// Applies an op of two operands, at least one of them a tensor.
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
            /// [`crate::ErrorKind::BroadcastMismatch`], [`crate::ErrorKind::DeviceMismatch`], and what the launch fails
            /// with.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<TensorOrScalar<'a>>) -> Result<Self> {
                apply(&table::$op, self.into(), other.into()).of(stringify!($name))
            }
        )*}
    };
}

methods! {
    /// `self + other`.
    add ADD;
    /// `self - other`; not for bools.
    sub SUB;
    /// `self * other`.
    mul MUL;
    /// `self / other`, a float for integers too.
    div DIV;
    /// The larger of each two elements; NaN if either is.
    maximum MAXIMUM;
    /// The smaller of each two elements; NaN if either is.
    minimum MINIMUM;
    /// Where `self == other`, as bools.
    eq EQ;
    /// Where `self != other`, as bools.
    ne NE;
    /// Where `self < other`, as bools.
    lt LT;
    /// Where `self <= other`, as bools.
    le LE;
    /// Where `self > other`, as bools.
    gt GT;
    /// Where `self >= other`, as bools.
    ge GE;
    /// What [`Tensor::floor_divide`] leaves: of the divisor's sign; not for bools. An integer's by a
    /// tensor's zero is the dividend.
    remainder REMAINDER;
    /// What a quotient that is rounded towards zero leaves: of the dividend's sign; not for bools. An
    /// integer's by a tensor's zero is the dividend.
    fmod FMOD;
    /// The quotient, rounded down; not for bools. Of an integer by a tensor's zero all bits are set.
    floor_divide FLOOR_DIVIDE;
    /// The angle of the point with `self` as ordinate and `other` as abscissa.
    atan2 ATAN2;
    /// The root of the sum of both squares. Floats only.
    hypot HYPOT;
    /// With the sign of `other`.
    copysign COPYSIGN;
    /// The next number towards `other`. `float32` and `float64` only.
    nextafter NEXTAFTER;
    /// `self * log(other)`, 0 where `self` is, unless `other` is NaN.
    xlogy XLOGY;
    /// `log(exp(self) + exp(other))`. Floats only.
    logaddexp LOGADDEXP;
    /// `log2(2 ** self + 2 ** other)`. Floats only.
    logaddexp2 LOGADDEXP2;
    /// 0 below zero, 1 above, `other` at zero.
    heaviside HEAVISIDE;
    /// Whether both are other than zero.
    logical_and LOGICAL_AND;
    /// Whether any is other than zero.
    logical_or LOGICAL_OR;
    /// Whether one is other than zero.
    logical_xor LOGICAL_XOR;
    /// The bits that both have; integers and bools only.
    bitwise_and BITWISE_AND;
    /// The bits that any has; integers and bools only.
    bitwise_or BITWISE_OR;
    /// The bits that one has; integers and bools only.
    bitwise_xor BITWISE_XOR;
    /// Shifted left by `other` bits; 0 of a count that is negative or too large. Integers only.
    bitwise_left_shift LEFT_SHIFT;
    /// Shifted right by `other` bits, its sign filling up; so all of it where the count is negative or too
    /// large. Integers only.
    bitwise_right_shift RIGHT_SHIFT;
    /// The greatest common divisor. Integers only.
    gcd GCD;
    /// The least common multiple. Integers only.
    lcm LCM;
}

macro_rules! in_place_methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::CannotCast`] when the result's category is above this tensor's, otherwise
            /// as without the underscore.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<TensorOrScalar<'a>>) -> Result<&Self> {
                let operands = [self.into(), other.into()];
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
    /// Subtracts `other` from each element; not for bools.
    sub_ SUB;
    /// Multiplies each element by `other`.
    mul_ MUL;
    /// Divides each element by `other`.
    div_ DIV;
    /// Raises each element to a power; not for bools.
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
    /// [`Tensor::eq`] in place, as 0 and 1 of this dtype.
    eq_ EQ;
    /// [`Tensor::ne`] in place, as 0 and 1 of this dtype.
    ne_ NE;
    /// [`Tensor::lt`] in place, as 0 and 1 of this dtype.
    lt_ LT;
    /// [`Tensor::le`] in place, as 0 and 1 of this dtype.
    le_ LE;
    /// [`Tensor::gt`] in place, as 0 and 1 of this dtype.
    gt_ GT;
    /// [`Tensor::ge`] in place, as 0 and 1 of this dtype.
    ge_ GE;
    /// [`Tensor::logical_and`] in place, as 0 and 1 of this dtype.
    logical_and_ LOGICAL_AND;
    /// [`Tensor::logical_or`] in place, as 0 and 1 of this dtype.
    logical_or_ LOGICAL_OR;
    /// [`Tensor::logical_xor`] in place, as 0 and 1 of this dtype.
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
