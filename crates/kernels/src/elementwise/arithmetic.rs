//! Sums, products, quotients, extremes, negation and absolute values.

use super::formula::{Condition, Expr};
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.add`. Logical or for bool.
    ADD = "add"(x, y), ALL => Same, Keep, "x + y", { all => x.add(y) }, rounds OnCpu, gradients(g) { x: g, y: g }
    /// `torch.sub`. Not for bool.
    SUB = "sub"(x, y), NUMBERS => Same, Keep, "x - y", { all => x.sub(y) }, rounds OnCpu, rules [RefusesBools], gradients(g) { x: g, y: -g }
    /// `torch.mul`. Logical and for bool.
    MUL = "mul"(x, y), ALL => Same, Keep, "x * y", { all => x.mul(y) }, rules [WideSecond], gradients(g) {
        x: g * y,
        y: g * x
    }
    /// `torch.div`, true division. Integers and bools are converted to `float32` first.
    DIV = "div"(x, y in 0.5..2.0), TO_FLOATS => Same, Keep, "x / y", { float => x / y }, rules [WideSecond], gradients(g) {
        x: g / y,
        y: -(g * (x / y / y))
    }
    /// `torch.maximum`. NaN if either operand is NaN.
    MAXIMUM = "maximum"(x, y), ALL => Same, Keep, "x > y || x != x ? x : y", { all => x.maximum(y) }, gradients(g) {
        x: extreme(g, x, y, x.lt(y)),
        y: extreme(g, x, y, y.lt(x))
    }
    /// `torch.minimum`. NaN if either operand is NaN.
    MINIMUM = "minimum"(x, y), ALL => Same, Keep, "x < y || x != x ? x : y", { all => x.minimum(y) }, gradients(g) {
        x: extreme(g, x, y, x.gt(y)),
        y: extreme(g, x, y, y.gt(x))
    }
    /// `torch.neg`. Not for bool.
    NEG = "neg"(x), NUMBERS => Same, Keep, "-x", { int => x.wrapping_neg(), float => -x }, gradients(g) {
        x: -g
    }
    /// `torch.abs`. Not for bool.
    ABS = "abs"(x), NUMBERS => Same, Keep, "absolute(x)", {
        int => if x > 0 { x } else { x.wrapping_neg() }, float => x.abs()
    }, gradients(g) {
        x: g * x.sign()
    }
    /// `torch.square`.
    SQUARE = "square"(x), ALL => Same, F32, "x * x", { all => x.mul(x) }, gradients(g) {
        x: g * (x * 2.0)
    }
    /// `torch.reciprocal`. Integers and bools are computed in `float32`.
    RECIPROCAL = "reciprocal"(x in 0.3..3.0), TO_FLOATS => Same, F32, "(C)1 / x", { float => 1.0 / x }, gradients(g, out) {
        x: -g * out.square()
    }
}

/// Returns the gradient of one operand of a maximum or minimum. It is 0 where `loses` holds,
/// because the other operand is the result there. Equal operands receive half each.
fn extreme(g: Expr, x: Expr, y: Expr, loses: Condition) -> Expr {
    loses.select(0.0, x.eq(y).select(g / 2.0, g))
}
