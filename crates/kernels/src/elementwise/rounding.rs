//! Rounding and signs. Integers are what they round to.

use super::real::Real;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the expressions of CUDA are arithmetic on their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.floor`; not on bool.
    FLOOR = "floor"(x), NUMBERS => Same, "floor_of(x)", { int => x, float => x.floor() }, gradients(g) {
        x: 0.0
    }
    /// `torch.ceil`; not on bool.
    CEIL = "ceil"(x), NUMBERS => Same, "ceil_of(x)", { int => x, float => x.ceil() }, gradients(g) {
        x: 0.0
    }
    /// `torch.round`: to even where two integers are as near; not on bool.
    ROUND = "round"(x), NUMBERS => Same, "round_of(x)", {
        int => x, float => x.round_ties_even()
    }, gradients(g) {
        x: 0.0
    }
    /// `torch.round` with `decimals`, given as ten to their power: to that many, or where `scale` is
    /// negative, to a multiple of it. Floats only.
    ROUND_DECIMALS = "round_decimals"(x, scale in 3.0..9.0), FLOATS => Same, "round_to(x, scale)", {
        float => x.round_to(scale)
    }, gradients(g) {
        x: 0.0
    }
    /// `torch.trunc`; not on bool.
    TRUNC = "trunc"(x), NUMBERS => Same, "trunc_of(x)", { int => x, float => x.trunc() }, gradients(g) {
        x: 0.0
    }
    /// `torch.frac`: what `trunc` leaves. Floats only.
    FRAC = "frac"(x), FLOATS => Same, "x - trunc_of(x)", { float => x - x.trunc() }, gradients(g) {
        x: g
    }
    /// `torch.sign`: -1, 0 or 1; 0 of NaN.
    SIGN = "sign"(x), ALL => Same, "(x > (C)0) - (x < (C)0)", {
        bool => x,
        int => x.cmp(&0) as i8 as _,
        float => (i8::from(x > 0.0) - i8::from(x < 0.0)).into()
    }, gradients(g) { x: 0.0 }
}
