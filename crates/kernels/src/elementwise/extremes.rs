//! Bounds, extremes that ignore NaN, and the replacement of values that are not finite.

use super::backward::Backward;
use super::real::FloatFunctions;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.clamp` with both bounds. NaN if any operand is NaN, and `high` if `low > high`. Not
    /// for bool.
    CLAMP = "clamp"(x, low, high), NUMBERS => Same, Keep, "clamped(x, low, high)", {
        int => x.max(low).min(high), float => x.clamped(low, high)
    }, gradients(g) rounded(low, high) {
        x: x.ge(low).and(x.le(high)).select(g, 0.0),
        low: low.lt(high).and(x.lt(low)).select(g, 0.0),
        high: x.gt(high).or(high.lt(low)).select(g, 0.0)
    }
    /// `torch.fmax`. If one operand is NaN, returns the other operand. Floats only.
    FMAX = "fmax"(x, y), FLOATS => Same, Keep, "x > y || y != y ? x : y", {
        float => if x > y || y.is_nan() { x } else { y }
    }, gradients(g) {
        x: x.ge(y).select(g, y.eq(y).select(0.0, g)),
        y: x.ge(y).select(0.0, y.eq(y).select(g, 0.0))
    }
    /// `torch.fmin`. If one operand is NaN, returns the other operand. Floats only.
    FMIN = "fmin"(x, y), FLOATS => Same, Keep, "x < y || y != y ? x : y", {
        float => if x < y || y.is_nan() { x } else { y }
    }, gradients(g) {
        x: x.le(y).select(g, y.eq(y).select(0.0, g)),
        y: x.le(y).select(0.0, y.eq(y).select(g, 0.0))
    }
    /// `torch.nan_to_num`, with the replacements of NaN, infinity and negative infinity. Floats
    /// only.
    NAN_TO_NUM = "nan_to_num"(x, nan, posinf, neginf), FLOATS => Same, Keep,
        "x != x ? nan : x > largest<C>() ? posinf : x < -largest<C>() ? neginf : x", {
        float => if x.is_nan() { nan } else if x.is_finite() { x } else if x > 0.0 { posinf } else { neginf }
    }, gradients(g) { x: x.isfinite().select(g, 0.0) }
}

/// Declares the gradients of a function that has no entry in the table, because it runs the kernels
/// of another op.
macro_rules! gradients {
    ($id:ident = $name:literal($($input:ident),+), gradients($g:ident) $(rounded($rounded:ident))? { $($gradients:tt)+ }) => {
        $crate::__elementwise_gradients!(
            $id, unsafe, $name, [$($input),+], [crate::programs::committed], $g [] [$($rounded)?] $($gradients)+
        )
    };
}

/// Backward passes of functions that compute the values of an op but have other gradients.
pub(super) const OTHERS: &[&Backward] = &[&CLAMP_MIN, &CLAMP_MAX, &HARDTANH];

/// Gradients of `torch.clamp_min(x, low)`, which computes [`MAXIMUM`](super::MAXIMUM). If the
/// operands are equal, the whole gradient goes to `x`.
pub static CLAMP_MIN: Backward = gradients! {
    CLAMP_MIN = "clamp_min"(x, low), gradients(g) rounded(low) {
        x: x.ge(low).select(g, 0.0),
        low: x.lt(low).select(g, 0.0)
    }
};

/// Gradients of `torch.clamp_max(x, high)`, which computes [`MINIMUM`](super::MINIMUM). If the
/// operands are equal, the whole gradient goes to `x`.
pub static CLAMP_MAX: Backward = gradients! {
    CLAMP_MAX = "clamp_max"(x, high), gradients(g) rounded(high) {
        x: x.le(high).select(g, 0.0),
        high: x.gt(high).select(g, 0.0)
    }
};

/// Gradient of `torch.nn.functional.hardtanh(x, low, high)`, which computes [`CLAMP`]. As in
/// PyTorch, the gradient passes where `x` is NaN.
pub static HARDTANH: Backward = gradients! {
    HARDTANH = "hardtanh"(x, low, high), gradients(g) {
        x: x.le(low).or(x.ge(high)).select(0.0, g)
    }
};
