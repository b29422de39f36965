//! Functions of integers that Rust lacks, or that panic in Rust for some arguments.

/// An integer type that ops are computed in. All operations wrap and never panic.
pub(super) trait Integer: Copy {
    /// Returns a power. With a negative exponent, the power is 0 unless the base is 1 or -1.
    fn to_power(self, exponent: Self) -> Self;
    /// Returns the quotient, rounded towards zero. Division by zero sets all bits.
    fn over(self, y: Self) -> Self;
    /// Returns the quotient, rounded down. Division by zero sets all bits.
    fn floor_over(self, y: Self) -> Self;
    /// Returns the remainder of [`Integer::over`]. Division by zero returns the dividend.
    fn rest(self, y: Self) -> Self;
    /// Returns the remainder of [`Integer::floor_over`], with the sign of the divisor. Division by
    /// zero returns the dividend.
    fn floor_rest(self, y: Self) -> Self;
    /// Shifts left. Returns 0 if all bits are shifted out or the count is negative.
    fn shifted_left(self, count: Self) -> Self;
    /// Shifts right. Returns 0 or -1, by the sign, if all bits are shifted out or the count is
    /// negative.
    fn shifted_right(self, count: Self) -> Self;
    /// Returns the greatest common divisor, which is 0 for two zeros.
    fn common_divisor(self, y: Self) -> Self;
    /// Returns the least common multiple, which is 0 if either number is 0.
    fn common_multiple(self, y: Self) -> Self;
    /// Returns the absolute value.
    fn size(self) -> Self;
}

macro_rules! integers {
    ($($ty:ty: $max_shift:expr, $signed:expr;)*) => {$(
        // For unsigned types, some comparisons are always false.
        #[allow(unused_comparisons, clippy::absurd_extreme_comparisons)]
        impl Integer for $ty {
            #[inline(always)]
            fn to_power(mut self, mut exponent: Self) -> Self {
                if exponent < 0 {
                    let odd = exponent & 1 == 1;
                    return if self == 1 { 1 } else if $signed && self.wrapping_add(1) == 0 {
                        if odd { self } else { 1 }
                    } else {
                        0
                    };
                }
                let mut power: Self = 1;
                while exponent > 0 {
                    if exponent & 1 == 1 {
                        power = power.wrapping_mul(self);
                    }
                    self = self.wrapping_mul(self);
                    exponent >>= 1;
                }
                power
            }
            #[inline(always)]
            fn over(self, y: Self) -> Self {
                if y == 0 { !0 } else { self.wrapping_div(y) }
            }
            #[inline(always)]
            fn floor_over(self, y: Self) -> Self {
                let rest = self.rest(y);
                let below = y != 0 && rest != 0 && (rest < 0) != (y < 0);
                self.over(y).wrapping_sub(below.into())
            }
            #[inline(always)]
            fn rest(self, y: Self) -> Self {
                if y == 0 { self } else { self.wrapping_rem(y) }
            }
            #[inline(always)]
            fn floor_rest(self, y: Self) -> Self {
                let rest = self.rest(y);
                if rest != 0 && (rest < 0) != (y < 0) { rest.wrapping_add(y) } else { rest }
            }
            #[inline(always)]
            fn shifted_left(self, count: Self) -> Self {
                if count < 0 || count as u64 >= <$ty>::BITS.into() { 0 } else { self << count }
            }
            #[inline(always)]
            fn shifted_right(self, count: Self) -> Self {
                let whole = count < 0 || count as u64 > $max_shift;
                let count = if whole { $max_shift } else { count as u32 };
                self.checked_shr(count).unwrap_or(0)
            }
            #[inline(always)]
            fn common_divisor(self, y: Self) -> Self {
                let (mut a, mut b) = (self.size(), y.size());
                while a != 0 {
                    (a, b) = (b.rest(a), a);
                }
                b
            }
            #[inline(always)]
            fn common_multiple(self, y: Self) -> Self {
                let divisor = self.common_divisor(y);
                if divisor == 0 { 0 } else { self.wrapping_div(divisor).wrapping_mul(y).size() }
            }
            #[inline(always)]
            fn size(self) -> Self {
                if self < 0 { (0 as Self).wrapping_sub(self) } else { self }
            }
        }
    )*};
}

// A right shift of a signed type by its number of bits minus one leaves only the sign, so larger
// shifts are limited to it.
integers! {
    u8: 8, false;
    i8: 7, true;
    i16: 15, true;
    i32: 31, true;
    i64: 63, true;
}
