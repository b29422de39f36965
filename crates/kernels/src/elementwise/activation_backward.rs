//! Gradients of activations, as ops of two operands: the gradient of the result, and the result or
//! the operand. If the entries of the activations had formulas of several steps instead, each
//! gradient would run several ops under `create_graph`.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::formula::Expr;
use super::real::Slope;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// Gradient of [`RELU`](super::RELU), whose result is `y`. Floats only.
    RELU_BACKWARD = "relu_backward"(grad, y), FLOATS => Same, Keep, "y <= (C)0 ? (C)0 : grad", {
        float => if y <= 0.0 { 0.0 } else { grad }
    }, gradients(g) { grad: g.relu_backward(y), y: 0.0 }
    /// Gradient of [`SIGMOID`](super::SIGMOID), whose result is `y` (`aten::sigmoid_backward`).
    /// Floats only.
    SIGMOID_BACKWARD = "sigmoid_backward"(grad, y), FLOATS => Same, Keep, "grad * ((C)1 - y) * y", {
        float => grad * (1.0 - y) * y
    }, gradients(g) { grad: g.sigmoid_backward(y), y: g * grad * (y * -2.0 + 1.0) }
    /// Gradient of `tanh`, whose result is `y` (`aten::tanh_backward`). Floats only.
    TANH_BACKWARD = "tanh_backward"(grad, y), FLOATS => Same, Keep, "grad * ((C)1 - y * y)", {
        float => grad * (1.0 - y * y)
    }, gradients(g) { grad: g.tanh_backward(y), y: g * grad * (y * -2.0) }
    /// Gradient of [`SILU`](super::SILU), whose operand is `x` (`aten::silu_backward`). Floats
    /// only.
    SILU_BACKWARD = "silu_backward"(grad, x), FLOATS => Same, Keep, "grad * silu_slope(x)", {
        float => grad * x.silu_slope()
    }, gradients(g) {
        grad: g.silu_backward(x),
        x: {
            let sigmoid = x.sigmoid();
            let rest = 1.0 - sigmoid;
            g * grad * (sigmoid * rest * (x * (rest - sigmoid) + 2.0))
        }
    }
    /// Gradient of [`GELU`](super::GELU), whose operand is `x` (`aten::gelu_backward`). Floats
    /// only.
    GELU_BACKWARD = "gelu_backward"(grad, x), FLOATS => Same, Keep, "grad * gelu_slope(x)", {
        float => grad * x.gelu_slope()
    }, gradients(g) {
        grad: g.gelu_backward(x),
        x: {
            let square = x.square();
            let bell = (square * -0.5).exp() * (1.0 / (2.0 * PI).sqrt());
            g * grad * (bell * (2.0 - square))
        }
    }
    /// Gradient of [`GELU_TANH`](super::GELU_TANH), whose operand is `x` (`aten::gelu_backward`
    /// with `approximate`). Floats only.
    GELU_TANH_BACKWARD = "gelu_tanh_backward"(grad, x), FLOATS => Same, Keep, "grad * gelu_tanh_slope(x)", {
        float => grad * x.gelu_tanh_slope()
    }, gradients(g) { grad: g.gelu_tanh_backward(x), x: g * grad * gelu_tanh_curvature(x) }
}

/// Returns the second derivative of `x/2 (1 + tanh u)` with `u = √(2/π) (x + 0.044715 x³)`.
fn gelu_tanh_curvature(x: Expr) -> Expr {
    const BETA: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const CUBIC: f64 = 0.044_715;
    let square = x.square();
    let tanh = (x * (square * CUBIC + 1.0) * BETA).tanh();
    let slope = (square * (3.0 * CUBIC) + 1.0) * BETA;
    let bent = x * x * (3.0 * CUBIC * BETA) - x * tanh * slope.square();
    (1.0 - tanh.square()) * (slope + bent)
}
