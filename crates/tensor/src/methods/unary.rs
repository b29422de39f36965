//! Elementwise functions with one operand.

use warpline_kernels::elementwise::{self as table, Op};

use super::elementwise::{self, apply_in_place};
use crate::called::Called;
use crate::{CallScope, DType, Result, Tensor};

#[track_caller]
fn apply(op: &'static Op, a: &Tensor) -> Result<Tensor> {
    elementwise::apply(op, &[a.into()], a.dtype())
}

/// Defines a method for each listed op of the table and, if its name is given, the method in place.
macro_rules! methods {
    ($($(#[$doc:meta])* $op:ident $name:ident $($in_place:ident)?;)*) => {
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

            $(
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
            )?
        )*}
    };
}

methods! {
    /// `-self`. Does not support bools.
    NEG neg neg_;
    /// The absolute value. Does not support bools.
    ABS abs abs_;
    /// The sign: −1, 0 or 1; 0 for NaN.
    SIGN sign sign_;
    /// `self * self`.
    SQUARE square square_;
    /// The larger of the element and zero. Does not support bools.
    RELU relu relu_;
    /// The largest integer that is not greater than the element. Does not support bools.
    FLOOR floor floor_;
    /// The smallest integer that is not less than the element. Does not support bools.
    CEIL ceil ceil_;
    /// The nearest integer; halfway cases go to the even integer. Does not support bools.
    ROUND round round_;
    /// `e` to the power of the element.
    EXP exp exp_;
    /// `exp(self) - 1`, accurate near zero.
    EXPM1 expm1 expm1_;
    /// The natural logarithm.
    LOG log log_;
    /// `log(1 + self)`, accurate near zero.
    LOG1P log1p log1p_;
    /// The square root.
    SQRT sqrt sqrt_;
    /// `1 / sqrt(self)`.
    RSQRT rsqrt rsqrt_;
    /// `1 / self`.
    RECIPROCAL reciprocal reciprocal_;
    /// The sine.
    SIN sin sin_;
    /// The cosine.
    COS cos cos_;
    /// The hyperbolic tangent.
    TANH tanh tanh_;
    /// The error function.
    ERF erf erf_;
    /// `1 / (1 + exp(-self))`.
    SIGMOID sigmoid sigmoid_;
    /// `self * sigmoid(self)`. Floats only.
    SILU silu silu_;
    /// The Gaussian error linear unit, computed with the error function. Floats only.
    GELU gelu gelu_;
    /// The Gaussian error linear unit, approximated with `tanh`. Floats only.
    GELU_TANH gelu_tanh gelu_tanh_;
    /// The element rounded towards zero. Does not support bools.
    TRUNC trunc trunc_;
    /// The fractional part: `self - trunc(self)`. Floats only.
    FRAC frac frac_;
    /// 2 to the power of the element.
    EXP2 exp2 exp2_;
    /// The logarithm to base 2.
    LOG2 log2 log2_;
    /// The logarithm to base 10.
    LOG10 log10 log10_;
    /// The tangent.
    TAN tan tan_;
    /// The arcsine.
    ASIN asin asin_;
    /// The arccosine.
    ACOS acos acos_;
    /// The arctangent.
    ATAN atan atan_;
    /// The hyperbolic sine.
    SINH sinh sinh_;
    /// The hyperbolic cosine.
    COSH cosh cosh_;
    /// The inverse hyperbolic sine.
    ASINH asinh asinh_;
    /// The inverse hyperbolic cosine.
    ACOSH acosh acosh_;
    /// The inverse hyperbolic tangent.
    ATANH atanh atanh_;
    /// Converts degrees to radians.
    DEG2RAD deg2rad deg2rad_;
    /// Converts radians to degrees.
    RAD2DEG rad2deg rad2deg_;
    /// The complementary error function, `1 - erf(self)`.
    ERFC erfc erfc_;
    /// The inverse of the error function.
    ERFINV erfinv erfinv_;
    /// The logarithm of the absolute value of the gamma function.
    LGAMMA lgamma lgamma_;
    /// The derivative of [`Tensor::lgamma`].
    DIGAMMA digamma digamma_;
    /// `sin(pi * self) / (pi * self)`.
    SINC sinc sinc_;
    /// Returns a bool tensor: true where the element is zero.
    LOGICAL_NOT logical_not logical_not_;
    /// Bitwise NOT. Integers and bools only.
    BITWISE_NOT bitwise_not bitwise_not_;
    /// The scaled exponential linear unit. Floats only.
    SELU selu selu_;
    /// `relu6(self + 3) / 6`. Floats only.
    HARDSIGMOID hardsigmoid hardsigmoid_;
    /// `self * relu6(self + 3) / 6`. Floats only.
    HARDSWISH hardswish hardswish_;
    /// `self * tanh(log(1 + exp(self)))`. Floats only.
    MISH mish mish_;
    /// `log(sigmoid(self))`. Floats only.
    LOGSIGMOID logsigmoid;
    /// `self / (1 + abs(self))`. Floats only.
    SOFTSIGN softsign;
    /// `self - tanh(self)`. Floats only.
    TANHSHRINK tanhshrink;
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
    /// Returns a bool tensor: true where the element is NaN.
    isnan ISNAN false;
    /// Returns a bool tensor: true where the element is inf or -inf.
    isinf ISINF false;
    /// Returns a bool tensor: true where the element is neither infinite nor NaN.
    isfinite ISFINITE true;
    /// Returns a bool tensor: true where the element is inf.
    isposinf ISPOSINF false;
    /// Returns a bool tensor: true where the element is -inf.
    isneginf ISNEGINF false;
}

impl Tensor {
    /// Returns a bool tensor: true where the sign bit is set (`torch.signbit`), also for -0.
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

impl Tensor {
    /// The same as [`Tensor::sign`].
    ///
    /// # Errors
    /// The same as [`Tensor::sign`].
    #[track_caller]
    pub fn sgn(&self) -> Result<Self> {
        let _call = CallScope::enter("sgn");
        self.sign()
    }

    /// [`Tensor::sgn`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::sign_`].
    #[track_caller]
    pub fn sgn_(&self) -> Result<&Self> {
        let _call = CallScope::enter("sgn_");
        self.sign_()
    }
}
