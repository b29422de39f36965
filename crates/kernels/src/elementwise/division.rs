//! Rounded quotients and their remainders. Division of an integer by zero is defined: the quotient
//! has all bits set, and the remainder is the dividend.

use super::integer::Integer;
use super::real::FloatFunctions;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.floor_divide`, and `torch.div` with `rounding_mode="floor"`. Not for bool.
    FLOOR_DIVIDE = "floor_divide"(x, y in 0.5..2.0), NUMBERS => Same, Keep, "floor_over(x, y)", {
        int => x.floor_over(y), float => x.floor_over(y)
    }, rules [DividesIntegers, WideSecond], gradients(g) { x: 0.0, y: 0.0 }
    /// `torch.div` with `rounding_mode="trunc"`. Not for bool.
    DIV_TRUNC = "div_trunc"(x, y in 0.5..2.0), NUMBERS => Same, Keep, "over(x, y)", {
        int => x.over(y), float => (x / y).trunc()
    }, rules [DividesIntegers, WideSecond], gradients(g) {
        x: 0.0,
        y: 0.0
    }
    /// `torch.remainder`, with the sign of the divisor. Not for bool.
    REMAINDER = "remainder"(x, y in 0.5..2.0), NUMBERS => Same, Keep, "floor_rest(x, y)", {
        int => x.floor_rest(y), float => x.floor_rest(y)
    }, rounds Always, rules [DividesIntegers], gradients(g) { x: g, y: -(g * x.floor_divide(y)) }
    /// `torch.fmod`, with the sign of the dividend. Not for bool.
    FMOD = "fmod"(x, y in 0.5..2.0), NUMBERS => Same, Keep, "rest(x, y)", {
        int => x.rest(y), float => x % y
    }, rounds Always, rules [DividesIntegers], gradients(g) {
        x: g,
        y: -(g * x.div_trunc(y))
    }
}
