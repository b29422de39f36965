//! Functions of one element.

use warpline_kernels::elementwise::unary::{UnaryOp, unary};

use crate::{Result, Tensor};

/// `op(a)` into a new tensor; where only floats have the function, integers become `float32`.
#[track_caller]
fn apply(op: UnaryOp, a: &Tensor) -> Result<Tensor> {
    let dtype = op.dtype(a.dtype())?;
    let converted;
    let mut a = a;
    if a.dtype() != dtype {
        converted = a.converted(dtype)?;
        a = &converted;
    }
    let exec = a.exec()?;
    let out = exec.empty(a.size(), dtype)?;
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
                apply(UnaryOp::$op, self)
            }
        )*}
    };
}

methods! {
    /// `-self`; not for bools.
    neg Neg;
    /// Without its sign; not for bools.
    abs Abs;
    /// −1, 0 or 1; 0 for NaN.
    sign Sign;
    /// Times itself.
    square Square;
    /// The larger of each element and zero; not for bools.
    relu Relu;
    /// The largest integer not above it; not for bools.
    floor Floor;
    /// The smallest integer not below it; not for bools.
    ceil Ceil;
    /// The nearest integer, the even one of two as near; not for bools.
    round Round;
    /// `e` to the power of each element.
    exp Exp;
    /// `exp(self) - 1`, exact near zero.
    expm1 Expm1;
    /// The natural logarithm.
    log Log;
    /// `log(1 + self)`, exact near zero.
    log1p Log1p;
    /// The square root.
    sqrt Sqrt;
    /// One over the square root.
    rsqrt Rsqrt;
    /// One over each element.
    reciprocal Reciprocal;
    /// The sine.
    sin Sin;
    /// The cosine.
    cos Cos;
    /// The hyperbolic tangent.
    tanh Tanh;
    /// The error function.
    erf Erf;
    /// `1 / (1 + exp(-self))`.
    sigmoid Sigmoid;
    /// `self * sigmoid(self)`. Floats only.
    silu Silu;
    /// The Gaussian error linear unit, by the error function. Floats only.
    gelu Gelu;
    /// The Gaussian error linear unit by its `tanh` approximation. Floats only.
    gelu_tanh GeluTanh;
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        apply(UnaryOp::Neg, self)
    }
}

impl std::ops::Neg for Tensor {
    type Output = Result<Tensor>;
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        apply(UnaryOp::Neg, &self)
    }
}
