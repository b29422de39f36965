//! Gradients of activations, of which each is several ops otherwise: of the gradient that comes in, and the
//! op's result or operand.

use super::real::Slope;
use super::table::ops;

ops! {
    /// Of [`RELU`](super::RELU), whose result is `y`.
    RELU_BACKWARD = "relu_backward"(grad, y), FLOATS => Same, "y <= (C)0 ? (C)0 : grad", {
        float => if y <= 0.0 { 0.0 } else { grad }
    }
    /// Of [`SIGMOID`](super::SIGMOID), whose result is `y` (`aten::sigmoid_backward`).
    SIGMOID_BACKWARD = "sigmoid_backward"(grad, y), FLOATS => Same, "grad * ((C)1 - y) * y", {
        float => grad * (1.0 - y) * y
    }
    /// Of `tanh`, whose result is `y` (`aten::tanh_backward`).
    TANH_BACKWARD = "tanh_backward"(grad, y), FLOATS => Same, "grad * ((C)1 - y * y)", {
        float => grad * (1.0 - y * y)
    }
    /// Of [`SILU`](super::SILU), whose operand is `x` (`aten::silu_backward`).
    SILU_BACKWARD = "silu_backward"(grad, x), FLOATS => Same, "grad * silu_slope(x)", {
        float => grad * x.silu_slope()
    }
    /// Of [`GELU`](super::GELU), whose operand is `x` (`aten::gelu_backward`).
    GELU_BACKWARD = "gelu_backward"(grad, x), FLOATS => Same, "grad * gelu_slope(x)", {
        float => grad * x.gelu_slope()
    }
    /// Of [`GELU_TANH`](super::GELU_TANH), whose operand is `x` (`aten::gelu_backward` with `approximate`).
    GELU_TANH_BACKWARD = "gelu_tanh_backward"(grad, x), FLOATS => Same, "grad * gelu_tanh_slope(x)", {
        float => grad * x.gelu_tanh_slope()
    }
}
