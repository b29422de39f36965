//! Powers, exponentials, logarithms, roots.

use std::f64::consts::{LN_2, LN_10};

use super::host::scalars;
use super::integer::Integer;
use crate::elementwise_ops as ops;
use crate::math;

ops! {
    // SAFETY: the expressions of CUDA are arithmetic on their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.exp`.
    EXP = "exp"(x), TO_FLOATS => Same, "exp_of(x)", {
        f32 = math::exp, f64 = scalars(f64::exp)
    }, gradients(g, out) {
        x: g * out
    }
    /// `torch.expm1`.
    EXPM1 = "expm1"(x), TO_FLOATS => Same, "expm1_of(x)", {
        f32 = math::expm1, f64 = scalars(f64::exp_m1)
    }, gradients(g, out) {
        x: g * (out + 1.0)
    }
    /// `torch.log`.
    LOG = "log"(x in 0.2..4.0), TO_FLOATS => Same, "log_of(x)", {
        f32 = math::log, f64 = scalars(f64::ln)
    }, gradients(g) {
        x: g / x
    }
    /// `torch.log1p`.
    LOG1P = "log1p"(x in -0.8..3.0), TO_FLOATS => Same, "log1p_of(x)", {
        f32 = math::log1p, f64 = scalars(f64::ln_1p)
    }, gradients(g) {
        x: g / (x + 1.0)
    }
    /// `torch.sqrt`.
    SQRT = "sqrt"(x in 0.2..4.0), TO_FLOATS => Same, "sqrt_of(x)", { float => x.sqrt() }, gradients(g, out) {
        x: g / (out * 2.0)
    }
    /// `torch.rsqrt`.
    RSQRT = "rsqrt"(x in 0.2..4.0), TO_FLOATS => Same, "rsqrt_of(x)", { float => 1.0 / x.sqrt() }, gradients(g, out) {
        x: g * (out.square() * out) * -0.5
    }
    /// `torch.exp2`.
    EXP2 = "exp2"(x), TO_FLOATS => Same, "exp2_of(x)", { float => x.exp2() }, gradients(g, out) {
        x: g * out * LN_2
    }
    /// `torch.log2`.
    LOG2 = "log2"(x in 0.2..4.0), TO_FLOATS => Same, "log2_of(x)", { float => x.log2() }, gradients(g) {
        x: g / (x * LN_2)
    }
    /// `torch.log10`.
    LOG10 = "log10"(x in 0.2..4.0), TO_FLOATS => Same, "log10_of(x)", { float => x.log10() }, gradients(g) {
        x: g / (x * LN_10)
    }
    /// `torch.pow`. Integers wrap, and have 0 as a negative power unless they are 1 or -1. Not on bool.
    POW = "pow"(x in 0.2..3.0, y), NUMBERS => Same, "power(x, y)", {
        int => x.to_power(y), float => x.powf(y)
    }, rounds Always, rules [RaisesIntegers], gradients(g, out) {
        // The exponent 0 has the slope 0; 0 to a power that is not negative has none in the exponent.
        x: y.eq(0.0).select(0.0, g * (y * x.pow(y - 1.0))),
        y: g * x.eq(0.0).and(y.ge(0.0)).select(0.0, out * x.log())
    }
}
