//! Activation functions, and the error function.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::formula::Expr;
use super::host::scalars;
use super::real::{FloatFunctions, SELU_ALPHA, SELU_SCALE};
use crate::elementwise_ops as ops;
use crate::math;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.relu`. NaN stays NaN. Not for bool.
    RELU = "relu"(x), NUMBERS => Same, Keep, "x < (C)0 ? (C)0 : x", {
        int => if x > 0 { x } else { 0 }, float => if x < 0.0 { 0.0 } else { x }
    }, gradients(g, out) { x: g.relu_backward(out) }
    /// `torch.erf`. Integers and bools are computed in `float32`.
    ERF = "erf"(x), TO_FLOATS => Same, Keep, "erf_of(x)", {
        f32 = math::erf, f64 = scalars(libm::erf)
    }, gradients(g) {
        x: g * bell(x)
    }
    /// `torch.sigmoid`. Integers and bools are computed in `float32`.
    SIGMOID = "sigmoid"(x), TO_FLOATS => Same, Keep, "(C)1 / ((C)1 + exp_of(-x))", {
        f32 = math::sigmoid, f64 = scalars(|x: f64| 1.0 / (1.0 + (-x).exp()))
    }, gradients(g, out) { x: g.sigmoid_backward(out) }
    /// `torch.nn.functional.silu`. Floats only.
    SILU = "silu"(x), FLOATS => Same, Keep, "x / ((C)1 + exp_of(-x))", {
        f32 = math::silu, f64 = scalars(|x: f64| x / (1.0 + (-x).exp()))
    }, gradients(g) { x: g.silu_backward(x) }
    /// `silu(gate) * up`: the gate of a Llama-shaped feed-forward layer. Floats only.
    SILU_MUL = "silu_mul"(gate, up), FLOATS => Same, Keep, "gate / ((C)1 + exp_of(-gate)) * up", {
        float => gate / (1.0 + (-gate).exp()) * up
    }, gradients(g) { gate: (g * up).silu_backward(gate), up: g * gate.silu() }
    /// `torch.nn.functional.gelu`, by the error function. Floats only.
    GELU = "gelu"(x), FLOATS => Same, Keep, "gelu_of(x)", { f32 = math::gelu, f64 = scalars(gelu) }, gradients(g) {
        x: g.gelu_backward(x)
    }
    /// `torch.nn.functional.gelu` with `approximate="tanh"`. Floats only.
    GELU_TANH = "gelu_tanh"(x), FLOATS => Same, Keep, "gelu_tanh_of(x)", {
        f32 = math::gelu_tanh, f64 = scalars(gelu_tanh)
    }, gradients(g) { x: g.gelu_tanh_backward(x) }
    /// `torch.nn.functional.softplus`. Floats only.
    SOFTPLUS = "softplus"(x, beta in 0.5..2.0, threshold in 0.5..1.5), FLOATS => Same, F32,
        "x * beta > threshold ? x : quotient_of(softplus_of(x * beta), beta)", {
        float => if x * beta > threshold { x } else { (x * beta).softplus() / beta }
    }, gradients(g) {
        x: {
            let scaled = x * beta;
            scaled.gt(threshold).select(g, g * scaled.sigmoid())
        }
    }
    /// `torch.nn.functional.elu`. Floats only.
    ELU = "elu"(x, alpha in 0.5..2.0), FLOATS => Same, Keep, "x > (C)0 ? x : alpha * expm1_of(x)", {
        float => if x > 0.0 { x } else { alpha * x.exp_m1() }
    }, gradients(g) { x: g * x.le(0.0).select(below_zero(x).exp() * alpha, 1.0) }
    /// `torch.nn.functional.celu`. Floats only.
    CELU = "celu"(x, alpha in 0.5..2.0), FLOATS => Same, Keep, "x > (C)0 ? x : alpha * expm1_of(quotient_of(x, alpha))", {
        float => if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() }
    }, gradients(g) {
        x: {
            // PyTorch rounds `alpha` to `float32` before the division; match it.
            let over = 1.0 / alpha.single();
            g * x.le(0.0).select((below_zero(x) * over).exp() * (over * alpha), 1.0)
        }
    }
    /// `torch.nn.functional.selu`. Floats only.
    SELU = "selu"(x), FLOATS => Same, Keep,
        "(C)1.0507009873554804934193349852946 * (x > (C)0 ? x : (C)1.6732632423543772848170429916717 * expm1_of(x))", {
        float => x.selu()
    }, gradients(g) { x: g * x.le(0.0).select(below_zero(x).exp() * (SELU_SCALE * SELU_ALPHA), SELU_SCALE) }
    /// `torch.nn.functional.leaky_relu`. Floats only.
    LEAKY_RELU = "leaky_relu"(x, slope), FLOATS => Same, Keep, "x > (C)0 ? x : x * slope", {
        float => if x > 0.0 { x } else { x * slope }
    }, gradients(g) { x: x.gt(0.0).select(g, g * slope) }
    /// `torch.nn.functional.hardsigmoid`. Floats only.
    HARDSIGMOID = "hardsigmoid"(x in -5.0..5.0), FLOATS => Same, Keep, "clamped(x + (C)3, (C)0, (C)6) / (C)6", {
        float => (x + 3.0).clamped(0.0, 6.0) / 6.0
    }, gradients(g) {
        // PyTorch rounds 1/6 to `float32`; match it.
        x: x.gt(-3.0).and(x.lt(3.0)).select(g * f64::from(1f32 / 6.0), 0.0)
    }
    /// `torch.nn.functional.hardswish`. Floats only.
    HARDSWISH = "hardswish"(x in -5.0..5.0), FLOATS => Same, Keep, "x * clamped(x + (C)3, (C)0, (C)6) / (C)6", {
        float => x * (x + 3.0).clamped(0.0, 6.0) / 6.0
    }, gradients(g) { x: x.le(-3.0).select(0.0, x.lt(3.0).select(g * (x / 3.0 + 0.5), g)) }
    /// `torch.nn.functional.mish`. Floats only.
    MISH = "mish"(x), FLOATS => Same, Keep, "x * tanh_of(softplus_of(x))", {
        float => x * x.softplus().tanh()
    }, gradients(g) {
        x: {
            let tanh = x.softplus(1.0, 20.0).tanh();
            g * (tanh + x * x.sigmoid() * (1.0 - tanh.square()))
        }
    }
    /// `torch.nn.functional.logsigmoid`. Floats only.
    LOGSIGMOID = "logsigmoid"(x), FLOATS => Same, Keep, "(x >= (C)0 ? (C)0 : x) - softplus_of(-absolute(x))", {
        float => (if x >= 0.0 { 0.0 } else { x }) - (-x.abs()).softplus()
    }, gradients(g) { x: g * (-x).sigmoid() }
    /// `torch.nn.functional.softsign`. Floats only.
    SOFTSIGN = "softsign"(x), FLOATS => Same, Keep, "x / ((C)1 + absolute(x))", {
        float => x / (1.0 + x.abs())
    }, gradients(g) {
        x: {
            let over = x.abs() + 1.0;
            g / over / over
        }
    }
    /// `torch.nn.functional.tanhshrink`. Floats only.
    TANHSHRINK = "tanhshrink"(x), FLOATS => Same, Keep, "x - tanh_of(x)", { float => x - x.tanh() }, gradients(g) {
        x: g * x.tanh().square()
    }
    /// `torch.nn.functional.softshrink`. NaN stays NaN. Floats only.
    SOFTSHRINK = "softshrink"(x, lambda in 0.3..0.9), FLOATS => Same, Keep,
        "x != x ? x : x > lambda ? x - lambda : x < -lambda ? x + lambda : (C)0", {
        float => if x.is_nan() { x } else if x > lambda { x - lambda } else if x < -lambda { x + lambda } else { 0.0 }
    }, gradients(g) { x: x.abs().le(lambda).select(0.0, g) }
    /// `torch.nn.functional.hardshrink`. NaN stays NaN. Floats only.
    HARDSHRINK = "hardshrink"(x, lambda in 0.3..0.9), FLOATS => Same, Keep, "x >= -lambda && x <= lambda ? (C)0 : x", {
        float => if x >= -lambda && x <= lambda { 0.0 } else { x }
    }, gradients(g) { x: x.abs().le(lambda).select(0.0, g) }
    /// `torch.nn.functional.threshold`. NaN stays NaN. Not for bool.
    THRESHOLD = "threshold"(x, threshold, value), NUMBERS => Same, Keep, "x <= threshold ? value : x", {
        int => if x <= threshold { value } else { x }, float => if x <= threshold { value } else { x }
    }, gradients(g) { x: x.le(threshold).select(0.0, g) }
}

/// The last term is 0, or NaN for an infinity, as in `math::functions::gelu`.
fn gelu(x: f64) -> f64 {
    x * 0.5 * (1.0 + libm::erf(x * FRAC_1_SQRT_2)) + 0.0 * x
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// Returns the derivative of the error function.
pub(super) fn bell(x: Expr) -> Expr {
    (-x.square()).exp() * (2.0 / PI.sqrt())
}

/// Returns the minimum of `x` and 0, so that the exponential is finite where another value is
/// selected.
fn below_zero(x: Expr) -> Expr {
    x.gt(0.0).select(0.0, x)
}
