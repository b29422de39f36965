//! Exponentials, logarithms, roots.

use super::host::scalars;
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
}
