//! Functions of integers that Rust lacks, or that panic in Rust for some arguments.

/// An integer that ops are computed in. Everything wraps, and nothing panics.
pub(super) trait Integer: Copy {
    /// To a power; a negative one of anything but 1 and -1 is 0.
    fn to_power(self, exponent: Self) -> Self;
    /// The quotient, rounded towards zero; by zero, all bits are set.
    fn over(self, y: Self) -> Self;
    /// The quotient, rounded down; by zero, all bits are set.
    fn floor_over(self, y: Self) -> Self;
    /// The remainder of [`Integer::over`]; by zero, the dividend.
    fn rest(self, y: Self) -> Self;
    /// The remainder of [`Integer::floor_over`], with the divisor's sign; by zero, the dividend.
    fn floor_rest(self, y: Self) -> Self;
    /// Shifted left; 0 where all bits are shifted out or the count is negative.
    fn shifted_left(self, count: Self) -> Self;
    /// Shifted right; 0 or -1, by the sign, if all bits are shifted out or the count is negative.
    fn shifted_right(self, count: Self) -> Self;
    /// The greatest common divisor; 0 of two zeros.
    fn common_divisor(self, y: Self) -> Self;
    /// The least common multiple; 0 if either is.
    fn common_multiple(self, y: Self) -> Self;
    /// Without its sign.
    fn size(self) -> Self;
}

macro_rules! integers {
    ($($ty:ty: $max_shift:expr, $signed:expr;)*) => {$(
        // Some comparisons can only be false for the unsigned one.
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

// The sign of a signed one stays when it is shifted by one less than its bits.
integers! {
    u8: 8, false;
    i8: 7, true;
    i16: 15, true;
    i32: 31, true;
    i64: 63, true;
}
