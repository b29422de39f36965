//! Bounds, and extremes that leave NaN out.

use super::backward::Backward;
use super::real::Real;
use super::table::ops;

ops! {
    /// `torch.clamp` with both bounds: NaN if any is; the upper one where they cross. Not on bool.
    CLAMP = "clamp"(x, low, high), NUMBERS => Same, "clamped(x, low, high)", {
        int => x.max(low).min(high), float => x.clamped(low, high)
    }, gradients(g) {
        x: x.ge(low).and(x.le(high)).select(g, 0.0),
        low: low.lt(high).and(x.lt(low)).select(g, 0.0),
        high: x.gt(high).or(high.lt(low)).select(g, 0.0)
    }
    /// `torch.fmax` of floats: the other where one is NaN.
    FMAX = "fmax"(x, y), FLOATS => Same, "x > y || y != y ? x : y", {
        float => if x > y || y.is_nan() { x } else { y }
    }, gradients(g) {
        x: x.ge(y).select(g, y.eq(y).select(0.0, g)),
        y: x.ge(y).select(0.0, y.eq(y).select(g, 0.0))
    }
    /// `torch.fmin` of floats: the other where one is NaN.
    FMIN = "fmin"(x, y), FLOATS => Same, "x < y || y != y ? x : y", {
        float => if x < y || y.is_nan() { x } else { y }
    }, gradients(g) {
        x: x.le(y).select(g, y.eq(y).select(0.0, g)),
        y: x.le(y).select(0.0, y.eq(y).select(g, 0.0))
    }
    /// `torch.nan_to_num` of floats, with what NaN, inf and -inf become.
    NAN_TO_NUM = "nan_to_num"(x, nan, posinf, neginf), FLOATS => Same,
        "x != x ? nan : x > largest<C>() ? posinf : x < -largest<C>() ? neginf : x", {
        float => if x.is_nan() { nan } else if x.is_finite() { x } else if x > 0.0 { posinf } else { neginf }
    }, gradients(g) { x: x.isfinite().select(g, 0.0) }
}

/// Formulas that are not those of the op with the same value.
pub(super) const OTHERS: &[&Backward] = &[&CLAMP_MIN, &CLAMP_MAX, &HARDTANH];

/// Gradients of `torch.clamp_min(x, low)`, whose value is that of [`MAXIMUM`](super::MAXIMUM): of equal operands the
/// first has all.
pub static CLAMP_MIN: Backward = Backward::new("clamp_min", "clamp_min_backward", |builder| {
    let (x, low, g) = (builder.operand(), builder.operand(), builder.gradient());
    builder.set(x, x.ge(low).select(g, 0.0));
    builder.set(low, x.lt(low).select(g, 0.0));
});

/// Gradients of `torch.clamp_max(x, high)`, whose value is that of [`MINIMUM`](super::MINIMUM).
pub static CLAMP_MAX: Backward = Backward::new("clamp_max", "clamp_max_backward", |builder| {
    let (x, high, g) = (builder.operand(), builder.operand(), builder.gradient());
    builder.set(x, x.le(high).select(g, 0.0));
    builder.set(high, x.gt(high).select(g, 0.0));
});

/// The gradient of `torch.nn.functional.hardtanh(x, low, high)`, whose value is that of [`CLAMP`].
pub static HARDTANH: Backward = Backward::new("hardtanh", "hardtanh_backward", |builder| {
    let (x, low, high) = (builder.operand(), builder.operand(), builder.operand());
    let g = builder.gradient();
    builder.set(x, x.gt(low).and(x.lt(high)).select(g, 0.0));
});
