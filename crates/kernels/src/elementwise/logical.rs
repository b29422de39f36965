//! Logical operations and predicates, whose results are bools.

use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.logical_and`. Every value except 0 is true.
    LOGICAL_AND = "logical_and"(x, y), ALL => Bool, Keep, "truth(x) && truth(y)", {
        bool => x & y, int => x != 0 && y != 0, float => x != 0.0 && y != 0.0
    }
    /// `torch.logical_or`.
    LOGICAL_OR = "logical_or"(x, y), ALL => Bool, Keep, "truth(x) || truth(y)", {
        bool => x | y, int => x != 0 || y != 0, float => x != 0.0 || y != 0.0
    }
    /// `torch.logical_xor`.
    LOGICAL_XOR = "logical_xor"(x, y), ALL => Bool, Keep, "truth(x) != truth(y)", {
        bool => x ^ y, int => (x != 0) ^ (y != 0), float => (x != 0.0) ^ (y != 0.0)
    }
    /// `torch.logical_not`.
    LOGICAL_NOT = "logical_not"(x), ALL => Bool, Keep, "!truth(x)", { bool => !x, int => x == 0, float => x == 0.0 }
    /// `torch.isnan`. Floats only.
    ISNAN = "isnan"(x), FLOATS => Bool, Keep, "x != x", { float => x.is_nan() }
    /// `torch.isinf`. Floats only.
    ISINF = "isinf"(x), FLOATS => Bool, Keep, "absolute(x) > largest<C>()", { float => x.is_infinite() }
    /// `torch.isfinite`. Floats only.
    ISFINITE = "isfinite"(x), FLOATS => Bool, Keep, "absolute(x) <= largest<C>()", { float => x.is_finite() }
    /// `torch.isposinf`. Floats only.
    ISPOSINF = "isposinf"(x), FLOATS => Bool, Keep, "x > largest<C>()", { float => x.is_infinite() && x > 0.0 }
    /// `torch.isneginf`. Floats only.
    ISNEGINF = "isneginf"(x), FLOATS => Bool, Keep, "x < -largest<C>()", { float => x.is_infinite() && x < 0.0 }
    /// `torch.signbit`. True for -0 and for a NaN with the sign bit set. Not for bool.
    SIGNBIT = "signbit"(x), NUMBERS => Bool, Keep, "negative(x)", {
        int => x.cmp(&0).is_lt(), float => x.is_sign_negative()
    }
}
