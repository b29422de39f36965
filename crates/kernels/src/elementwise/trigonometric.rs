//! Trigonometric and hyperbolic functions.

use super::host::scalars;
use super::table::ops;
use crate::math;

ops! {
    /// `torch.sin`.
    SIN = "sin"(x), TO_FLOATS => Same, "sin_of(x)", { f32 = scalars(f32::sin), f64 = scalars(f64::sin) }
    /// `torch.cos`.
    COS = "cos"(x), TO_FLOATS => Same, "cos_of(x)", { f32 = scalars(f32::cos), f64 = scalars(f64::cos) }
    /// `torch.tanh`.
    TANH = "tanh"(x), TO_FLOATS => Same, "tanh_of(x)", { f32 = math::tanh, f64 = scalars(f64::tanh) }
}
