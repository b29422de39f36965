//! Float types in which random fills compute.

use half::{bf16, f16};
use warpline_runtime::host::HostElement;

/// A float element type. As in PyTorch, wider floats convert to the half-width types through `f32`.
pub(super) trait RandomFloat: HostElement + PartialEq {
    /// Number of bits of the significand, which is also the number of random bits of a uniform
    /// draw.
    const DIGITS: u32;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Returns `self * b + c`, with one rounding where PyTorch's build fuses the operations.
    fn mul_add(self, b: Self, c: Self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn sin_cos(self) -> (Self, Self);
    /// Returns `self * 2π`.
    fn turns(self) -> Self;
}

macro_rules! native {
    ($ty:ty, $digits:expr, $tau:expr) => {
        impl RandomFloat for $ty {
            const DIGITS: u32 = $digits;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $ty
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                <$ty>::mul_add(self, b, c)
            }
            fn ln(self) -> Self {
                <$ty>::ln(self)
            }
            fn sqrt(self) -> Self {
                <$ty>::sqrt(self)
            }
            fn sin_cos(self) -> (Self, Self) {
                <$ty>::sin_cos(self)
            }
            fn turns(self) -> Self {
                self * $tau
            }
        }
    };
}

native!(f32, 24, std::f32::consts::TAU);
native!(f64, 53, std::f64::consts::TAU);

macro_rules! narrow {
    ($ty:ty, $digits:expr) => {
        impl RandomFloat for $ty {
            const DIGITS: u32 = $digits;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                <$ty>::from_f32(value as f32)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                <$ty>::to_f64(self)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn mul_add(self, b: Self, c: Self) -> Self {
                self * b + c
            }
            fn ln(self) -> Self {
                <$ty>::from_f32(self.to_f32().ln())
            }
            fn sqrt(self) -> Self {
                <$ty>::from_f32(self.to_f32().sqrt())
            }
            fn sin_cos(self) -> (Self, Self) {
                let (sin, cos) = self.to_f32().sin_cos();
                (<$ty>::from_f32(sin), <$ty>::from_f32(cos))
            }
            fn turns(self) -> Self {
                <Self as RandomFloat>::from_f64(<$ty>::to_f64(self) * std::f64::consts::TAU)
            }
        }
    };
}

narrow!(f16, 11);
narrow!(bf16, 8);
