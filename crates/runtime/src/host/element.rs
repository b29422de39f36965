//! Element types as CPU implementations see them: what lies in memory, and what is computed in.
//! Mirrors `cuda/element.cuh`.

use half::{bf16, f16};

use super::halves;
use crate::{DType, Element, Scalar};

/// A bool in memory: true unless the byte is 0. Unlike `bool`, any byte is valid, so memory that
/// nobody has written yet may be read.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Truth(u8);

/// What lies in memory. [`crate::dispatch`] gives the type of a dtype.
pub trait HostElement: Copy + Send + Sync + 'static {
    /// The dtype that it is of.
    const DTYPE: DType;
    /// What arithmetic is done in: `f32` for the half-width floats, otherwise the type itself.
    type Compute: Number + CastAny;
    /// Its value.
    fn get(self) -> Self::Compute;
    /// The nearest element to a value.
    fn put(value: Self::Compute) -> Self;
}

/// A type that arithmetic is done in. Integers wrap; bool adds as `or` and multiplies as `and`.
pub trait Number: Copy + PartialOrd + Send + Sync + 'static {
    /// Converts as [`Cast`] does.
    fn from_number(value: impl CastAny) -> Self;
    /// Converts as [`Cast`] does.
    fn from_scalar(value: Scalar) -> Self;
    /// As a scalar.
    fn to_scalar(self) -> Scalar;
    /// From a kernel's scalar argument: bits of this type, or of an `i64` for integers and bools.
    fn from_bits(bits: u64) -> Self;
    /// As a kernel's scalar argument.
    fn to_bits(self) -> u64;
    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`, for floats.
    fn div(self, b: Self) -> Self;
    /// Whether it is a NaN.
    fn is_nan(self) -> bool;

    /// The larger, or the one that is NaN.
    #[inline(always)]
    fn maximum(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }

    /// The smaller, or the one that is NaN.
    #[inline(always)]
    fn minimum(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }
}

/// Conversion between compute types: floats go to integers towards zero by way of `i32`, `u8` and
/// `i64` by way of `i64`, and saturate there; a NaN becomes the least `i64`, or from `f64` the least
/// `i32`, and from `f32` the `i32` 0; integers wrap; anything but 0 is true.
pub trait Cast<D> {
    /// As the other type.
    fn cast(self) -> D;
}

/// A compute type that converts to every other.
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
            // No op divides integers as such; a division by zero must not stop the program.
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                self.checked_div(b).unwrap_or_default()
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
