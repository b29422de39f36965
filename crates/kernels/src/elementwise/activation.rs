//! Functions of neural networks, and the error function that some are made of.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::host::scalars;
use super::table::ops;
use crate::math;

ops! {
    /// `torch.relu`: a NaN stays one; not on bool.
    RELU = "relu"(x), NUMBERS => Same, "x < (C)0 ? (C)0 : x", { int => if x > 0 { x } else { 0 }, float => if x < 0.0 { 0.0 } else { x } }
    /// `torch.erf`.
    ERF = "erf"(x), TO_FLOATS => Same, "erf_of(x)", { f32 = math::erf, f64 = scalars(libm::erf) }
    /// `torch.sigmoid`.
    SIGMOID = "sigmoid"(x), TO_FLOATS => Same, "(C)1 / ((C)1 + exp_of(-x))", {
        f32 = math::sigmoid, f64 = scalars(|x: f64| 1.0 / (1.0 + (-x).exp()))
    }
    /// `torch.nn.functional.silu`.
    SILU = "silu"(x), FLOATS => Same, "x / ((C)1 + exp_of(-x))", {
        f32 = math::silu, f64 = scalars(|x: f64| x / (1.0 + (-x).exp()))
    }
    /// `torch.nn.functional.gelu`, by the error function.
    GELU = "gelu"(x), FLOATS => Same, "gelu_of(x)", { f32 = math::gelu, f64 = scalars(gelu) }
    /// `torch.nn.functional.gelu` with `approximate="tanh"`.
    GELU_TANH = "gelu_tanh"(x), FLOATS => Same, "gelu_tanh_of(x)", {
        f32 = math::gelu_tanh, f64 = scalars(gelu_tanh)
    }
}

/// The last term as in `math::functions::gelu`.
fn gelu(x: f64) -> f64 {
    x * 0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) + 0.0 * x
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}
