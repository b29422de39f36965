//! Bitwise operations and number theory of integers.

use super::integer::Integer;
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.bitwise_and`. Logical for bool. Integers and bools only.
    BITWISE_AND = "bitwise_and"(x, y), INTEGRAL => Same, Keep, "x & y", { bool => x & y, int => x & y }
    /// `torch.bitwise_or`. Logical for bool. Integers and bools only.
    BITWISE_OR = "bitwise_or"(x, y), INTEGRAL => Same, Keep, "x | y", { bool => x | y, int => x | y }
    /// `torch.bitwise_xor`. Logical for bool. Integers and bools only.
    BITWISE_XOR = "bitwise_xor"(x, y), INTEGRAL => Same, Keep, "x ^ y", { bool => x ^ y, int => x ^ y }
    /// `torch.bitwise_not`. Logical for bool. Integers and bools only.
    BITWISE_NOT = "bitwise_not"(x), INTEGRAL => Same, Keep, "inverted(x)", { bool => !x, int => !x }
    /// `torch.bitwise_left_shift`. The result is 0 if the count is negative or at least the number
    /// of bits. Integers only.
    LEFT_SHIFT = "bitwise_left_shift"(x, y), INTEGERS => Same, Keep, "shifted_left(x, y)", { int => x.shifted_left(y) }
    /// `torch.bitwise_right_shift`. The result is 0, or -1 for a negative `x`, if the count is
    /// negative or at least the number of bits. Integers only.
    RIGHT_SHIFT = "bitwise_right_shift"(x, y), INTEGERS => Same, Keep, "shifted_right(x, y)", { int => x.shifted_right(y) }
    /// `torch.gcd`. Integers only.
    GCD = "gcd"(x, y), INTEGERS => Same, Keep, "common_divisor(x, y)", { int => x.common_divisor(y) }
    /// `torch.lcm`. Integers only.
    LCM = "lcm"(x, y), INTEGERS => Same, Keep, "common_multiple(x, y)", { int => x.common_multiple(y) }
}
