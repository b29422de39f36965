//! Rounding and signs. Rounding does not change integers.

use super::real::FloatFunctions;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.floor`. Not for bool.
    FLOOR = "floor"(x), NUMBERS => Same, Keep, "floor_of(x)", { int => x, float => x.floor() }, gradients(g) {
        x: 0.0
    }
    /// `torch.ceil`. Not for bool.
    CEIL = "ceil"(x), NUMBERS => Same, Keep, "ceil_of(x)", { int => x, float => x.ceil() }, gradients(g) {
        x: 0.0
    }
    /// `torch.round`. A tie rounds to the even integer. Not for bool.
    ROUND = "round"(x), NUMBERS => Same, Keep, "round_of(x)", {
        int => x, float => x.round_ties_even()
    }, gradients(g) {
        x: 0.0
    }
    /// `torch.round` with `decimals`. `scale` is 10 to the power of the decimals; values are rounded
    /// to multiples of `1 / scale`. If `scale` is negative, values are rounded to multiples of its
    /// absolute value. Floats only.
    ROUND_DECIMALS = "round_decimals"(x, scale in 3.0..9.0), FLOATS => Same, Keep, "round_to(x, scale)", {
        float => x.round_to(scale)
    }, gradients(g) {
        x: 0.0
    }
    /// `torch.trunc`. Not for bool.
    TRUNC = "trunc"(x), NUMBERS => Same, Keep, "trunc_of(x)", { int => x, float => x.trunc() }, gradients(g) {
        x: 0.0
    }
    /// `torch.frac`: the difference of `x` and `trunc(x)`. Floats only.
    FRAC = "frac"(x), FLOATS => Same, Keep, "x - trunc_of(x)", { float => x - x.trunc() }, gradients(g) {
        x: g
    }
    /// `torch.sign`: -1, 0 or 1, and 0 for NaN.
    SIGN = "sign"(x), ALL => Same, Keep, "(x > (C)0) - (x < (C)0)", {
        bool => x,
        int => x.cmp(&0) as i8 as _,
        float => (i8::from(x > 0.0) - i8::from(x < 0.0)).into()
    }, gradients(g) { x: 0.0 }
}
