//! Bits of integers.

use super::integer::Integer;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the expressions of CUDA are arithmetic on their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.bitwise_and`; on bool, `and`.
    BITWISE_AND = "bitwise_and"(x, y), INTEGRAL => Same, "x & y", { bool => x & y, int => x & y }
    /// `torch.bitwise_or`; on bool, `or`.
    BITWISE_OR = "bitwise_or"(x, y), INTEGRAL => Same, "x | y", { bool => x | y, int => x | y }
    /// `torch.bitwise_xor`.
    BITWISE_XOR = "bitwise_xor"(x, y), INTEGRAL => Same, "x ^ y", { bool => x ^ y, int => x ^ y }
    /// `torch.bitwise_not`; on bool, `not`.
    BITWISE_NOT = "bitwise_not"(x), INTEGRAL => Same, "inverted(x)", { bool => !x, int => !x }
    /// `torch.bitwise_left_shift`: 0 where the count is negative or that of the bits; not on bool.
    LEFT_SHIFT = "bitwise_left_shift"(x, y), INTEGERS => Same, "shifted_left(x, y)", { int => x.shifted_left(y) }
    /// `torch.bitwise_right_shift`: of a count that is negative or too large, 0 or -1; not on bool.
    RIGHT_SHIFT = "bitwise_right_shift"(x, y), INTEGERS => Same, "shifted_right(x, y)", { int => x.shifted_right(y) }
    /// `torch.gcd`; not on bool.
    GCD = "gcd"(x, y), INTEGERS => Same, "common_divisor(x, y)", { int => x.common_divisor(y) }
    /// `torch.lcm`; not on bool.
    LCM = "lcm"(x, y), INTEGERS => Same, "common_multiple(x, y)", { int => x.common_multiple(y) }
}
