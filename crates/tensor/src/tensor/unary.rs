//! Functions of one element.

use warpline_kernels::elementwise::{self as table, Op, unary};

use crate::{Result, Tensor};

/// `op(a)` into a new tensor; where only floats have the function, integers become `float32`.
#[track_caller]
fn apply(op: &'static Op, a: &Tensor) -> Result<Tensor> {
    let (dtype, result) = op.dtypes(a.dtype())?;
    let converted;
    let mut a = a;
    if a.dtype() != dtype {
        converted = a.converted(dtype)?;
        a = &converted;
    }
    let exec = a.exec()?;
    let out = exec.empty_for(&[a.layout()], result)?;
    unary(exec.target(), op, a.as_view(), out.as_view())?;
    Ok(out)
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::Error::UnsupportedDType`], and what the launch fails with.
            #[track_caller]
            pub fn $name(&self) -> Result<Self> {
                apply(&table::$op, self)
            }
        )*}
    };
}

methods! {
    /// `-self`; not for bools.
    neg NEG;
    /// Without its sign; not for bools.
    abs ABS;
    /// −1, 0 or 1; 0 for NaN.
    sign SIGN;
    /// Times itself.
    square SQUARE;
    /// The larger of each element and zero; not for bools.
    relu RELU;
    /// The largest integer not above it; not for bools.
    floor FLOOR;
    /// The smallest integer not below it; not for bools.
    ceil CEIL;
    /// The nearest integer, the even one of two as near; not for bools.
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
    /// One over the square root.
    rsqrt RSQRT;
    /// One over each element.
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
    /// The Gaussian error linear unit, by the error function. Floats only.
    gelu GELU;
    /// The Gaussian error linear unit by its `tanh` approximation. Floats only.
    gelu_tanh GELU_TANH;
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        apply(&table::NEG, self)
    }
}

impl std::ops::Neg for Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        apply(&table::NEG, &self)
    }
}
