//! Powers, exponentials, logarithms and roots.

use std::f64::consts::{LN_2, LN_10};

use super::host::scalars;
use super::integer::Integer;
use crate::elementwise_ops as ops;
use crate::math;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.exp`. Integers and bools are computed in `float32`.
    EXP = "exp"(x), TO_FLOATS => Same, F32, "exp_of(x)", {
        f32 = math::exp, f64 = scalars(f64::exp)
    }, gradients(g, out) {
        x: g * out
    }
    /// `torch.expm1`. Integers and bools are computed in `float32`.
    EXPM1 = "expm1"(x), TO_FLOATS => Same, F32, "expm1_of(x)", {
        f32 = math::expm1, f64 = scalars(f64::exp_m1)
    }, gradients(g, out) {
        x: g * (out + 1.0)
    }
    /// `torch.log`. Integers and bools are computed in `float32`.
    LOG = "log"(x in 0.2..4.0), TO_FLOATS => Same, F32, "log_of(x)", {
        f32 = math::log, f64 = scalars(f64::ln)
    }, gradients(g) {
        x: g / x
    }
    /// `torch.log1p`. Integers and bools are computed in `float32`.
    LOG1P = "log1p"(x in -0.8..3.0), TO_FLOATS => Same, F32, "log1p_of(x)", {
        f32 = math::log1p, f64 = scalars(f64::ln_1p)
    }, gradients(g) {
        x: g / (x + 1.0)
    }
    /// `torch.sqrt`. Integers and bools are computed in `float32`.
    SQRT = "sqrt"(x in 0.2..4.0), TO_FLOATS => Same, Keep, "sqrt_of(x)", { float => x.sqrt() }, gradients(g, out) {
        x: g / (out * 2.0)
    }
    /// `torch.rsqrt`. Integers and bools are computed in `float32`.
    RSQRT = "rsqrt"(x in 0.2..4.0), TO_FLOATS => Same, F32, "rsqrt_of(x)", { float => 1.0 / x.sqrt() }, gradients(g, out) {
        x: g * (out.square() * out) * -0.5
    }
    /// `torch.exp2`. Integers and bools are computed in `float32`.
    EXP2 = "exp2"(x), TO_FLOATS => Same, Keep, "exp2_of(x)", { float => x.exp2() }, gradients(g, out) {
        x: g * out * LN_2
    }
    /// `torch.log2`. Integers and bools are computed in `float32`.
    LOG2 = "log2"(x in 0.2..4.0), TO_FLOATS => Same, F32, "log2_of(x)", { float => x.log2() }, gradients(g) {
        x: g / (x * LN_2)
    }
    /// `torch.log10`. Integers and bools are computed in `float32`.
    LOG10 = "log10"(x in 0.2..4.0), TO_FLOATS => Same, F32, "log10_of(x)", { float => x.log10() }, gradients(g) {
        x: g / (x * LN_10)
    }
    /// `torch.pow`. Integers wrap. A negative power of an integer is 0 unless the base is 1 or -1.
    /// Not for bool.
    POW = "pow"(x in 0.2..3.0, y), NUMBERS => Same, F32, "power(x, y)", {
        int => x.to_power(y), float => x.powf(y)
    }, rounds Always, rules [RaisesIntegers], gradients(g, out) {
        // The gradient of `x` is 0 if the exponent is 0. The gradient of the exponent is 0 if `x`
        // is 0 and the exponent is not negative.
        x: y.eq(0.0).select(0.0, g * (y * x.pow(y - 1.0))),
        y: g * x.eq(0.0).and(y.ge(0.0)).select(0.0, out * x.log())
    }
}
