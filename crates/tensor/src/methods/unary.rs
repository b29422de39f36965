//! Functions of one element.

use warpline_kernels::elementwise::{self as table, Op};

use super::elementwise::{self, apply_in_place};
use crate::called::Called;
use crate::{DType, Result, Tensor};

#[track_caller]
fn apply(op: &'static Op, a: &Tensor) -> Result<Tensor> {
    elementwise::apply(op, &[a.into()], a.dtype())
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::UnsupportedDType`] if the op has no kernel for the dtype. Errors of
            /// [every op](Tensor#errors-of-every-op).
            #[track_caller]
            pub fn $name(&self) -> Result<Self> {
                apply(&table::$op, self).of(stringify!($name))
            }
        )*}
    };
}

methods! {
    /// `-self`. Not for bools.
    neg NEG;
    /// The absolute value. Not for bools.
    abs ABS;
    /// The sign: −1, 0 or 1; 0 for NaN.
    sign SIGN;
    /// `self * self`.
    square SQUARE;
    /// The larger of each element and zero. Not for bools.
    relu RELU;
    /// The largest integer that is not above the element. Not for bools.
    floor FLOOR;
    /// The smallest integer that is not below the element. Not for bools.
    ceil CEIL;
    /// The nearest integer; halfway cases go to the even integer. Not for bools.
    round ROUND;
    /// `e` to the power of each element.
    exp EXP;
    /// `exp(self) - 1`, exact near zero.
    expm1 EXPM1;
    /// The natural logarithm.
    log LOG;
    /// `log(1 + self)`, exact near zero.
    log1p LOG1P;
    /// The square root.
    sqrt SQRT;
    /// `1 / sqrt(self)`.
    rsqrt RSQRT;
    /// `1 / self`.
    reciprocal RECIPROCAL;
    /// The sine.
    sin SIN;
    /// The cosine.
    cos COS;
    /// The hyperbolic tangent.
    tanh TANH;
    /// The error function.
    erf ERF;
    /// `1 / (1 + exp(-self))`.
    sigmoid SIGMOID;
    /// `self * sigmoid(self)`. Floats only.
    silu SILU;
    /// The Gaussian error linear unit, computed with the error function. Floats only.
    gelu GELU;
    /// The Gaussian error linear unit, approximated with `tanh`. Floats only.
    gelu_tanh GELU_TANH;
    /// The same as [`Tensor::sign`].
    sgn SIGN;
    /// The element rounded towards zero. Not for bools.
    trunc TRUNC;
    /// The fractional part: `self - trunc(self)`. Floats only.
    frac FRAC;
    /// 2 to the power of each element.
    exp2 EXP2;
    /// The logarithm to base 2.
    log2 LOG2;
    /// The logarithm to base 10.
    log10 LOG10;
    /// The tangent.
    tan TAN;
    /// The arcsine.
    asin ASIN;
    /// The arccosine.
    acos ACOS;
    /// The arctangent.
    atan ATAN;
    /// The hyperbolic sine.
    sinh SINH;
    /// The hyperbolic cosine.
    cosh COSH;
    /// The inverse hyperbolic sine.
    asinh ASINH;
    /// The inverse hyperbolic cosine.
    acosh ACOSH;
    /// The inverse hyperbolic tangent.
    atanh ATANH;
    /// Converts degrees to radians.
    deg2rad DEG2RAD;
    /// Converts radians to degrees.
    rad2deg RAD2DEG;
    /// The complementary error function, `1 - erf(self)`.
    erfc ERFC;
    /// The inverse of the error function.
    erfinv ERFINV;
    /// The logarithm of the absolute value of the gamma function.
    lgamma LGAMMA;
    /// The derivative of [`Tensor::lgamma`].
    digamma DIGAMMA;
    /// `sin(pi * self) / (pi * self)`.
    sinc SINC;
    /// Whether the element is zero, as bools.
    logical_not LOGICAL_NOT;
    /// Bitwise NOT. Integers and bools only.
    bitwise_not BITWISE_NOT;
    /// The scaled exponential linear unit. Floats only.
    selu SELU;
    /// `relu6(self + 3) / 6`. Floats only.
    hardsigmoid HARDSIGMOID;
    /// `self * relu6(self + 3) / 6`. Floats only.
    hardswish HARDSWISH;
    /// `self * tanh(log(1 + exp(self)))`. Floats only.
    mish MISH;
    /// `log(sigmoid(self))`. Floats only.
    logsigmoid LOGSIGMOID;
    /// `self / (1 + abs(self))`. Floats only.
    softsign SOFTSIGN;
    /// `self - tanh(self)`. Floats only.
    tanhshrink TANHSHRINK;
}

/// Returns `op(a)` for floats. For other dtypes, every element of the result is `otherwise`.
#[track_caller]
fn predicate(op: &'static Op, a: &Tensor, otherwise: bool) -> Result<Tensor> {
    if a.dtype().is_float() { apply(op, a) } else { a.full_like(otherwise, DType::Bool) }
}

macro_rules! predicates {
    ($($(#[$doc:meta])* $name:ident $op:ident $otherwise:literal;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// Errors of [every op](Tensor#errors-of-every-op).
            #[track_caller]
            pub fn $name(&self) -> Result<Self> {
                predicate(&table::$op, self, $otherwise).of(stringify!($name))
            }
        )*}
    };
}

predicates! {
    /// Whether the element is NaN, as bools.
    isnan ISNAN false;
    /// Whether the element is inf or -inf, as bools.
    isinf ISINF false;
    /// Whether the element is neither infinite nor NaN, as bools.
    isfinite ISFINITE true;
    /// Whether the element is inf, as bools.
    isposinf ISPOSINF false;
    /// Whether the element is -inf, as bools.
    isneginf ISNEGINF false;
}

impl Tensor {
    /// Whether the sign bit is set, as bools; it is for -0 (`torch.signbit`).
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn signbit(&self) -> Result<Self> {
        if self.dtype() == DType::Bool {
            return self.full_like(false, DType::Bool);
        }
        apply(&table::SIGNBIT, self)
    }
}

macro_rules! in_place_methods {
    ($($name:ident $in_place:ident $op:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            /// [`crate::ErrorKind::CannotCast`] if the result is floating-point and this tensor is not. Otherwise
            /// the same as the method without the underscore.
            #[track_caller]
            pub fn $in_place(&self) -> Result<&Self> {
                let name = stringify!($in_place);
                apply_in_place(&table::$op, name, self, &[self.into()], self.dtype())?;
                Ok(self)
            }
        )*}
    };
}

in_place_methods! {
    neg neg_ NEG;
    abs abs_ ABS;
    sign sign_ SIGN;
    square square_ SQUARE;
    relu relu_ RELU;
    floor floor_ FLOOR;
    ceil ceil_ CEIL;
    round round_ ROUND;
    exp exp_ EXP;
    expm1 expm1_ EXPM1;
    log log_ LOG;
    log1p log1p_ LOG1P;
    sqrt sqrt_ SQRT;
    rsqrt rsqrt_ RSQRT;
    reciprocal reciprocal_ RECIPROCAL;
    sin sin_ SIN;
    cos cos_ COS;
    tanh tanh_ TANH;
    erf erf_ ERF;
    sigmoid sigmoid_ SIGMOID;
    silu silu_ SILU;
    gelu gelu_ GELU;
    gelu_tanh gelu_tanh_ GELU_TANH;
    selu selu_ SELU;
    hardsigmoid hardsigmoid_ HARDSIGMOID;
    hardswish hardswish_ HARDSWISH;
    mish mish_ MISH;
    sgn sgn_ SIGN;
    trunc trunc_ TRUNC;
    frac frac_ FRAC;
    exp2 exp2_ EXP2;
    log2 log2_ LOG2;
    log10 log10_ LOG10;
    tan tan_ TAN;
    asin asin_ ASIN;
    acos acos_ ACOS;
    atan atan_ ATAN;
    sinh sinh_ SINH;
    cosh cosh_ COSH;
    asinh asinh_ ASINH;
    acosh acosh_ ACOSH;
    atanh atanh_ ATANH;
    deg2rad deg2rad_ DEG2RAD;
    rad2deg rad2deg_ RAD2DEG;
    erfc erfc_ ERFC;
    erfinv erfinv_ ERFINV;
    lgamma lgamma_ LGAMMA;
    digamma digamma_ DIGAMMA;
    sinc sinc_ SINC;
    logical_not logical_not_ LOGICAL_NOT;
    bitwise_not bitwise_not_ BITWISE_NOT;
}
