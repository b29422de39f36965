//! Selection from two operands, interpolation, multiply-add ops, `copysign` and `nextafter`.

use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.where`: `x` if the condition `c` holds, otherwise `y`.
    WHERE = "where"(c: bool, x, y), ALL => Same, Keep, "c ? x : y", {
        all => if c == C::from_bits(0) { y } else { x }
    }, gradients(g) {
        x: c.select(g, 0.0),
        y: c.select(0.0, g)
    }
    /// `torch.heaviside`: 0 for a negative `x`, 1 for a positive `x`, and `y` for zero.
    HEAVISIDE = "heaviside"(x, y), ALL => Same, Keep, "x == (C)0 ? y : (C)(x > (C)0)", {
        bool => x | y,
        int => if x == 0 { y } else { x.cmp(&0).is_gt().into() },
        float => if x == 0.0 { y } else if x > 0.0 { 1.0 } else { 0.0 }
    }, gradients(g) { x: 0.0, y: 0.0 }
    /// `torch.lerp`: `x + w (y - x)`, computed from the nearer end. Floats only.
    LERP = "lerp"(x, y, w), FLOATS => Same, Keep, "absolute(w) < (C)0.5 ? x + w * (y - x) : y - (y - x) * ((C)1 - w)", {
        float => if w.abs() < 0.5 { x + w * (y - x) } else { y - (y - x) * (1.0 - w) }
    }, gradients(g) { x: g * (1.0 - w), y: g * w, w: g * (y - x) }
    /// `torch.addcmul`: `x + value a b`. Not for bool.
    ADDCMUL = "addcmul"(x, a, b, value), NUMBERS => Same, Widest, "x + value * a * b", {
        all => x.add(value.mul(a).mul(b))
    }, gradients(g) {
        x: g,
        a: g * (b * value),
        b: g * (a * value)
    }
    /// `torch.addcdiv`: `x + value a / b`. Floats only.
    ADDCDIV = "addcdiv"(x, a, b in 0.5..2.0, value), FLOATS => Same, Widest, "x + value * quotient_of(a, b)", {
        float => x + value * (a / b)
    }, gradients(g) {
        x: g,
        a: g / b * value,
        b: -(g * (a * value / b / b))
    }
    /// `torch.copysign`. Integers and bools are computed in `float32`.
    COPYSIGN = "copysign"(x, y), TO_FLOATS => Same, Keep, "with_sign(x, y)", {
        float => x.copysign(y)
    }, gradients(g, out) {
        x: g * x.eq(0.0).select(0.0, out / x),
        y: 0.0
    }
    /// `torch.nextafter`. `float32` and `float64` only.
    NEXTAFTER = "nextafter"(x, y), WIDE_FLOATS => Same, Keep, "next_after(x, y)", {
        f32 => libm::nextafterf(x, y), f64 => libm::nextafter(x, y)
    }
}
