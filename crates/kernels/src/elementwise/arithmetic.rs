//! Sums, products, quotients, extremes.

use super::table::ops;

ops! {
    /// `torch.add`; on bool, `or`.
    ADD = "add"(x, y), ALL => Same, "x + y", { all => x.add(y) }
    /// `torch.sub`; not on bool.
    SUB = "sub"(x, y), NUMBERS => Same, "x - y", { all => x.sub(y) }
    /// `torch.mul`; on bool, `and`.
    MUL = "mul"(x, y), ALL => Same, "x * y", { all => x.mul(y) }
    /// `torch.div`, true division: on floats, which integers are converted to first.
    DIV = "div"(x, y), TO_FLOATS => Same, "x / y", { float => x / y }
    /// `torch.maximum`: NaN if either is.
    MAXIMUM = "maximum"(x, y), ALL => Same, "x > y || x != x ? x : y", { all => x.maximum(y) }
    /// `torch.minimum`: NaN if either is.
    MINIMUM = "minimum"(x, y), ALL => Same, "x < y || x != x ? x : y", { all => x.minimum(y) }
    /// `torch.neg`; not on bool.
    NEG = "neg"(x), NUMBERS => Same, "-x", { int => x.wrapping_neg(), float => -x }
    /// `torch.abs`; not on bool.
    ABS = "abs"(x), NUMBERS => Same, "absolute(x)", { int => if x > 0 { x } else { x.wrapping_neg() }, float => x.abs() }
    /// `torch.square`.
    SQUARE = "square"(x), ALL => Same, "x * x", { all => x.mul(x) }
    /// `torch.reciprocal`.
    RECIPROCAL = "reciprocal"(x), TO_FLOATS => Same, "(C)1 / x", { float => 1.0 / x }
}
