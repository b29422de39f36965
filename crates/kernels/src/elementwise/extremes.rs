//! Bounds, and extremes that leave NaN out.

use super::real::Real;
use super::table::ops;

ops! {
    /// `torch.clamp` with both bounds: NaN if any is; the upper one where they cross. Not on bool.
    CLAMP = "clamp"(x, low, high), NUMBERS => Same, "clamped(x, low, high)", {
        int => x.max(low).min(high), float => x.clamped(low, high)
    }
    /// `torch.fmax` of floats: the other where one is NaN.
    FMAX = "fmax"(x, y), FLOATS => Same, "x > y || y != y ? x : y", { float => if x > y || y.is_nan() { x } else { y } }
    /// `torch.fmin` of floats: the other where one is NaN.
    FMIN = "fmin"(x, y), FLOATS => Same, "x < y || y != y ? x : y", { float => if x < y || y.is_nan() { x } else { y } }
    /// `torch.nan_to_num` of floats, with what NaN, inf and -inf become.
    NAN_TO_NUM = "nan_to_num"(x, nan, posinf, neginf), FLOATS => Same,
        "x != x ? nan : x > largest<C>() ? posinf : x < -largest<C>() ? neginf : x", {
        float => if x.is_nan() { nan } else if x.is_finite() { x } else if x > 0.0 { posinf } else { neginf }
    }
}
