//! Element types of CPU implementations: the type in memory and the type of arithmetic. Mirrors
//! `cuda/element.cuh`.

use half::{bf16, f16};

use super::halves;
use crate::{DType, Element, Scalar};

/// A bool in memory: false if the byte is 0, otherwise true. Unlike for `bool`, every byte is
/// valid, so uninitialized device memory may be read.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Truth(u8);

/// A type of elements in memory. [`crate::dispatch`] selects the type for a dtype.
pub trait HostElement: Copy + Send + Sync + 'static {
    /// The dtype of the elements.
    const DTYPE: DType;
    /// The type of arithmetic: `f32` for the half-width floats, `bool` for [`Truth`], otherwise the
    /// type itself.
    type Compute: Number + CastAny;
    /// Returns the element's value.
    fn get(self) -> Self::Compute;
    /// Rounds a value to the nearest element.
    fn put(value: Self::Compute) -> Self;
}

/// A type of arithmetic. Integers wrap. For bool, addition is `or`, subtraction `xor`, and
/// multiplication `and`.
pub trait Number: Copy + PartialOrd + Send + Sync + 'static {
    /// The smallest value: negative infinity for floats, `false` for bool.
    const LOWEST: Self;
    /// The largest value: infinity for floats, `true` for bool.
    const HIGHEST: Self;
    /// Converts as [`Cast`] does.
    fn from_number(value: impl CastAny) -> Self;
    /// Converts as [`Cast`] does.
    fn from_scalar(value: Scalar) -> Self;
    /// Returns the value as a scalar.
    fn to_scalar(self) -> Scalar;
    /// Decodes a kernel's scalar argument: bits of this type, or of an `i64` for integers and
    /// bools.
    fn from_bits(bits: u64) -> Self;
    /// Encodes the value as a kernel's scalar argument.
    fn to_bits(self) -> u64;
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`. Integers return 0 for a division by zero, and wrap if the quotient overflows. Bools
    /// return `self`.
    fn div(self, b: Self) -> Self;
    /// Returns whether the value is a NaN.
    fn is_nan(self) -> bool;

    /// Returns the larger value, or the NaN if there is one.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }

    /// Returns the smaller value, or the NaN if there is one.
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }
}

/// Conversion between compute types:
/// - Floats convert to `i8`, `i16` and `i32` by way of `i32`, and to `u8` and `i64` by way of
///   `i64`. They round towards zero and saturate at the intermediate type.
/// - A NaN becomes `i64::MIN` on the way by `i64`. On the way by `i32`, it becomes `i32::MIN` from
///   `f64`, and 0 from `f32`.
/// - Integers wrap.
/// - All values but 0 are true.
pub trait Cast<D> {
    /// Converts to the other type.
    fn cast(self) -> D;
}

/// A compute type that converts to every other compute type.
pub trait CastAny:
    Cast<bool> + Cast<u8> + Cast<i8> + Cast<i16> + Cast<i32> + Cast<i64> + Cast<f32> + Cast<f64>
{
}

impl<T> CastAny for T where
    T: Cast<bool> + Cast<u8> + Cast<i8> + Cast<i16> + Cast<i32> + Cast<i64> + Cast<f32> + Cast<f64>
{
}

macro_rules! casts {
    ($($from:ty: $x:ident => [$($to:ty = $value:expr),*];)*) => {$($(
        impl Cast<$to> for $from {
            #[inline(always)]
            fn cast(self) -> $to {
                let $x = self;
                $value
            }
        }
    )*)*};
}

macro_rules! int_casts {
    ($($from:ty)*) => {$(casts! {
        $from: x => [
            bool = x != 0, u8 = x as u8, i8 = x as i8, i16 = x as i16, i32 = x as i32,
            i64 = x as i64, f32 = x as f32, f64 = x as f64
        ];
    })*};
}

macro_rules! float_casts {
    ($($from:ty: $nan:expr;)*) => {$(casts! {
        $from: x => [
            bool = x != 0.0, u8 = x as i64 as u8, i8 = x as i32 as i8, i16 = x as i32 as i16,
            i32 = if x.is_nan() { $nan } else { x as i32 },
            i64 = if x.is_nan() { i64::MIN } else { x as i64 }, f32 = x as f32, f64 = x as f64
        ];
    })*};
}

int_casts! { u8 i8 i16 i32 i64 }
float_casts! { f32: 0; f64: i32::MIN; }
casts! {
    bool: x => [
        bool = x, u8 = x.into(), i8 = x.into(), i16 = x.into(), i32 = x.into(), i64 = x.into(),
        f32 = x.into(), f64 = x.into()
    ];
}

impl Number for bool {
    const LOWEST: Self = false;
    const HIGHEST: Self = true;
    #[inline(always)]
    fn from_number(value: impl CastAny) -> Self {
        value.cast()
    }
    fn from_scalar(value: Scalar) -> Self {
        value.to_bool()
    }
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn to_bits(self) -> u64 {
        self.into()
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self | b
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self ^ b
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self & b
    }
    #[inline(always)]
    fn div(self, _: Self) -> Self {
        self
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

macro_rules! int_numbers {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            const LOWEST: Self = <$ty>::MIN;
            const HIGHEST: Self = <$ty>::MAX;
            #[inline(always)]
            fn from_number(value: impl CastAny) -> Self {
                value.cast()
            }
            fn from_scalar(value: Scalar) -> Self {
                value.to_i64() as $ty
            }
            fn to_scalar(self) -> Scalar {
                Scalar::Int(self.into())
            }
            fn from_bits(bits: u64) -> Self {
                bits as $ty
            }
            fn to_bits(self) -> u64 {
                self as i64 as u64
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            // A division by zero must not panic.
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                if b == 0 { 0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    )*};
}

macro_rules! float_numbers {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            const LOWEST: Self = <$ty>::NEG_INFINITY;
            const HIGHEST: Self = <$ty>::INFINITY;
            #[inline(always)]
            fn from_number(value: impl CastAny) -> Self {
                value.cast()
            }
            fn from_scalar(value: Scalar) -> Self {
                value.to_f64() as $ty
            }
            fn to_scalar(self) -> Scalar {
                Scalar::Float(self.into())
            }
            fn from_bits(bits: u64) -> Self {
                <$ty>::from_bits(bits as _)
            }
            fn to_bits(self) -> u64 {
                <$ty>::to_bits(self).into()
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self - b
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self / b
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
        }
    )*};
}

int_numbers! { u8 i8 i16 i32 i64 }
float_numbers! { f32 f64 }

macro_rules! plain_elements {
    ($($ty:ty)*) => {$(
        impl HostElement for $ty {
            const DTYPE: DType = <$ty as Element>::DTYPE;
            type Compute = $ty;
            #[inline(always)]
            fn get(self) -> $ty {
                self
            }
            #[inline(always)]
            fn put(value: $ty) -> $ty {
                value
            }
        }
    )*};
}

plain_elements! { u8 i8 i16 i32 i64 f32 f64 }

macro_rules! half_elements {
    ($($ty:ty: $from:ident $to:ident;)*) => {$(
        impl HostElement for $ty {
            const DTYPE: DType = <$ty as Element>::DTYPE;
            type Compute = f32;
            #[inline(always)]
            fn get(self) -> f32 {
                halves::$from(self)
            }
            #[inline(always)]
            fn put(value: f32) -> $ty {
                halves::$to(value)
            }
        }
    )*};
}

half_elements! { f16: from_f16 to_f16; bf16: from_bf16 to_bf16; }

impl HostElement for Truth {
    const DTYPE: DType = DType::Bool;
    type Compute = bool;
    #[inline(always)]
    fn get(self) -> bool {
        self.0 != 0
    }
    #[inline(always)]
    fn put(value: bool) -> Self {
        Self(value.into())
    }
}
