//! Trigonometric and hyperbolic functions.

use std::f64::consts::PI;

use super::host::scalars;
use crate::elementwise_ops as ops;
use crate::math;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.sin`. Integers and bools are computed in `float32`.
    SIN = "sin"(x), TO_FLOATS => Same, Keep, "sin_of(x)", {
        f32 = scalars(f32::sin), f64 = scalars(f64::sin)
    }, gradients(g) {
        x: g * x.cos()
    }
    /// `torch.cos`. Integers and bools are computed in `float32`.
    COS = "cos"(x), TO_FLOATS => Same, Keep, "cos_of(x)", {
        f32 = scalars(f32::cos), f64 = scalars(f64::cos)
    }, gradients(g) {
        x: -(g * x.sin())
    }
    /// `torch.tanh`. Integers and bools are computed in `float32`.
    TANH = "tanh"(x), TO_FLOATS => Same, Keep, "tanh_of(x)", {
        f32 = math::tanh, f64 = scalars(f64::tanh)
    }, gradients(g, out) {
        x: g.tanh_backward(out)
    }
    /// `torch.tan`. Integers and bools are computed in `float32`.
    TAN = "tan"(x in -1.3..1.3), TO_FLOATS => Same, F32, "tan_of(x)", { float => x.tan() }, gradients(g, out) {
        x: g * (out.square() + 1.0)
    }
    /// `torch.asin`. Integers and bools are computed in `float32`.
    ASIN = "asin"(x in -0.9..0.9), TO_FLOATS => Same, F32, "asin_of(x)", { float => x.asin() }, gradients(g) {
        x: g * (1.0 - x.square()).rsqrt()
    }
    /// `torch.acos`. Integers and bools are computed in `float32`.
    ACOS = "acos"(x in -0.9..0.9), TO_FLOATS => Same, F32, "acos_of(x)", { float => x.acos() }, gradients(g) {
        x: -(g * (1.0 - x.square()).rsqrt())
    }
    /// `torch.atan`. Integers and bools are computed in `float32`.
    ATAN = "atan"(x), TO_FLOATS => Same, Keep, "atan_of(x)", { float => x.atan() }, gradients(g) {
        x: g / (x.square() + 1.0)
    }
    /// `torch.sinh`. Integers and bools are computed in `float32`.
    SINH = "sinh"(x), TO_FLOATS => Same, F32, "sinh_of(x)", { float => x.sinh() }, gradients(g) {
        x: g * x.cosh()
    }
    /// `torch.cosh`. Integers and bools are computed in `float32`.
    COSH = "cosh"(x), TO_FLOATS => Same, F32, "cosh_of(x)", { float => x.cosh() }, gradients(g) {
        x: g * x.sinh()
    }
    /// `torch.asinh`. Integers and bools are computed in `float32`.
    ASINH = "asinh"(x), TO_FLOATS => Same, Keep, "asinh_of(x)", {
        f32 = scalars(libm::asinhf), f64 = scalars(libm::asinh)
    }, gradients(g) {
        x: g * (x.square() + 1.0).rsqrt()
    }
    /// `torch.acosh`. Integers and bools are computed in `float32`.
    ACOSH = "acosh"(x in 1.1..4.0), TO_FLOATS => Same, Keep, "acosh_of(x)", {
        f32 = scalars(libm::acoshf), f64 = scalars(libm::acosh)
    }, gradients(g) {
        x: g * (x.square() - 1.0).rsqrt()
    }
    /// `torch.atanh`. Integers and bools are computed in `float32`.
    ATANH = "atanh"(x in -0.9..0.9), TO_FLOATS => Same, Keep, "atanh_of(x)", {
        f32 = scalars(libm::atanhf), f64 = scalars(libm::atanh)
    }, gradients(g) {
        x: g / (1.0 - x.square())
    }
    /// `torch.atan2`: the angle whose tangent is `x / y`, in the quadrant of the point with
    /// abscissa `y` and ordinate `x`. Integers and bools are computed in `float32`.
    ATAN2 = "atan2"(x, y), TO_FLOATS => Same, Widest, "atan2_of(x, y)", { float => x.atan2(y) }, rounds Always, gradients(g) {
        x: g * (y / (x.square() + y.square())),
        y: g * (-x / (x.square() + y.square()))
    }
    /// `torch.hypot`. Floats only.
    HYPOT = "hypot"(x, y), FLOATS => Same, Keep, "hypot_of(x, y)", { float => x.hypot(y) }, rounds Always, gradients(g, out) {
        x: g * (x / out),
        y: g * (y / out)
    }
    /// `torch.deg2rad`. Integers and bools are computed in `float32`.
    DEG2RAD = "deg2rad"(x), TO_FLOATS => Same, Keep, "x * (C)0.017453292519943295", {
        float => x.to_radians()
    }, gradients(g) {
        x: g * (PI / 180.0)
    }
    /// `torch.rad2deg`. Integers and bools are computed in `float32`.
    RAD2DEG = "rad2deg"(x), TO_FLOATS => Same, Keep, "x * (C)57.29577951308232", {
        float => x.to_degrees()
    }, gradients(g) {
        x: g * (180.0 / PI)
    }
}
