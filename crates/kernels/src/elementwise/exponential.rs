//! Powers, exponentials, logarithms, roots.

use super::host::scalars;
use super::integer::Integer;
use super::table::ops;
use crate::math;

ops! {
    /// `torch.exp`.
    EXP = "exp"(x), TO_FLOATS => Same, "exp_of(x)", { f32 = math::exp, f64 = scalars(f64::exp) }
    /// `torch.expm1`.
    EXPM1 = "expm1"(x), TO_FLOATS => Same, "expm1_of(x)", { f32 = math::expm1, f64 = scalars(f64::exp_m1) }
    /// `torch.log`.
    LOG = "log"(x), TO_FLOATS => Same, "log_of(x)", { f32 = math::log, f64 = scalars(f64::ln) }
    /// `torch.log1p`.
    LOG1P = "log1p"(x), TO_FLOATS => Same, "log1p_of(x)", { f32 = math::log1p, f64 = scalars(f64::ln_1p) }
    /// `torch.sqrt`.
    SQRT = "sqrt"(x), TO_FLOATS => Same, "sqrt_of(x)", { float => x.sqrt() }
    /// `torch.rsqrt`.
    RSQRT = "rsqrt"(x), TO_FLOATS => Same, "rsqrt_of(x)", { float => 1.0 / x.sqrt() }
    /// `torch.exp2`.
    EXP2 = "exp2"(x), TO_FLOATS => Same, "exp2_of(x)", { float => x.exp2() }
    /// `torch.log2`.
    LOG2 = "log2"(x), TO_FLOATS => Same, "log2_of(x)", { float => x.log2() }
    /// `torch.log10`.
    LOG10 = "log10"(x), TO_FLOATS => Same, "log10_of(x)", { float => x.log10() }
    /// `torch.pow`. Integers wrap, and have 0 as a negative power unless they are 1 or -1. Not on bool.
    POW = "pow"(x, y), NUMBERS => Same, "power(x, y)", { int => x.to_power(y), float => x.powf(y) }
}
