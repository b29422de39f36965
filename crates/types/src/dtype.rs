//! Element types, numbers, and type promotion.

use std::fmt;

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};

/// The type of a tensor's elements (`torch.dtype`).
//
// As wide as a reference, so that a `View`, which contains two references and a dtype, has no padding and is copied
// word by word. Padding made the dispatch of an op a fifth slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u64)]
pub enum DType {
    /// `torch.bool`, one byte, 0 or 1.
    Bool,
    /// `torch.uint8`.
    U8,
    /// `torch.int8`.
    I8,
    /// `torch.int16`.
    I16,
    /// `torch.int32`.
    I32,
    /// `torch.int64`.
    I64,
    /// `torch.float16`.
    F16,
    /// `torch.bfloat16`.
    BF16,
    /// `torch.float32`.
    F32,
    /// `torch.float64`.
    F64,
}

/// The category of a dtype or number. In type promotion the higher category wins: `Bool` < `Int` < `Float`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// `bool`.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Floating-point numbers of any width.
    Float,
}

impl DType {
    /// All dtypes in declaration order: `ALL[d as usize] == d`.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Returns the size of an element, in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// The kernel-name suffix of each dtype, in the order of [`DType::ALL`].
    pub const SUFFIXES: [&str; 10] = {
        let mut suffixes = [""; 10];
        let mut i = 0;
        while i < suffixes.len() {
            suffixes[i] = Self::ALL[i].suffix();
            i += 1;
        }
        suffixes
    };

    /// Returns the suffixes of the dtypes from `first` to `last`, both included, in the order of [`DType::ALL`].
    ///
    /// ```
    /// # use warpline_types::DType;
    /// const FLOATS: &[&str] = DType::suffixes(DType::F16, DType::F64);
    /// assert_eq!(FLOATS, ["f16", "bf16", "f32", "f64"]);
    /// ```
    ///
    /// # Panics
    /// If `last` is declared before `first`. In a constant this is a compile error.
    #[must_use]
    pub const fn suffixes(first: Self, last: Self) -> &'static [&'static str] {
        assert!(first as usize <= last as usize, "`first` is after `last`");
        let (upto_last, _) = Self::SUFFIXES.split_at(last as usize + 1);
        upto_last.split_at(first as usize).1
    }

    /// Returns `true` for the dtypes from `first` to `last`, both included, in the order of [`DType::ALL`].
    #[must_use]
    pub const fn is_between(self, first: Self, last: Self) -> bool {
        first as u64 <= self as u64 && self as u64 <= last as u64
    }

    /// Returns PyTorch's name of the dtype without the `torch.`, such as `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    /// Returns the suffix of kernel names for this dtype, such as `f32`.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Returns the dtype with this PyTorch name (without the `torch.`). `None` if there is no such dtype.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Returns the category of the dtype.
    #[must_use]
    pub const fn category(self) -> Category {
        match self {
            Self::Bool => Category::Bool,
            Self::U8 | Self::I8 | Self::I16 | Self::I32 | Self::I64 => Category::Int,
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => Category::Float,
        }
    }

    /// Returns `true` for floating-point dtypes.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    /// Returns the dtype to which an op converts operands of these two dtypes (`torch.promote_types`).
    #[must_use]
    pub fn promote(self, other: Self) -> Self {
        use DType::*;
        if self == other {
            return self;
        }
        let (low, high) = if self <= other { (self, other) } else { (other, self) };
        match (low, high) {
            (F16, BF16) => F32,
            (U8, I8) => I16,
            // All other pairs promote to the dtype that is declared later.
            _ => high,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "torch.{}", self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that corresponds to a dtype.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of tensors",
    label = "expected `bool`, `u8`, `i8`, `i16`, `i32`, `i64`, `f16`, `bf16`, `f32` or `f64`"
)]
pub trait Element:
    sealed::Sealed + NoUninit + CheckedBitPattern + Send + Sync + fmt::Debug + 'static
{
    /// The dtype of this type.
    const DTYPE: DType;
    /// Converts the value to a [`Scalar`].
    fn to_scalar(self) -> Scalar;
    /// Converts a number to this type, or returns `None` if the type cannot hold the number.
    ///
    /// - `bool`: true if the number is not zero.
    /// - Integers: the number must be in range and have no fractional part.
    /// - Floats: the number is rounded; a finite number must stay finite.
    fn from_scalar(scalar: Scalar) -> Option<Self>;
}

fn integer<T: TryFrom<i64>>(scalar: Scalar) -> Option<T> {
    let whole = match scalar {
        // Floats from 2^63 on overflow `i64`. -2^63 is in range.
        Scalar::Float(v) if v.fract() != 0.0 || !(-TWO_63..TWO_63).contains(&v) => return None,
        other => other.to_i64(),
    };
    T::try_from(whole).ok()
}

const TWO_63: f64 = 9_223_372_036_854_775_808.0;

/// Converts a number to a float type. Returns `None` if a finite value overflows to infinity.
fn float<T>(scalar: Scalar, convert: fn(f64) -> T, is_finite: fn(&T) -> bool) -> Option<T> {
    let value = scalar.to_f64();
    let converted = convert(value);
    (is_finite(&converted) || !value.is_finite()).then_some(converted)
}

macro_rules! element {
    ($($ty:ty => $dtype:ident, $to:expr, $from:expr;)*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_scalar(self) -> Scalar {
                let f: fn($ty) -> Scalar = $to;
                f(self)
            }
            fn from_scalar(scalar: Scalar) -> Option<Self> {
                let f: fn(Scalar) -> Option<$ty> = $from;
                f(scalar)
            }
        }
        impl From<$ty> for Scalar {
            fn from(value: $ty) -> Self {
                value.to_scalar()
            }
        }
    )*};
}

element! {
    bool => Bool, Scalar::Bool, |s| Some(s.to_bool());
    u8 => U8, |v| Scalar::Int(v.into()), integer;
    i8 => I8, |v| Scalar::Int(v.into()), integer;
    i16 => I16, |v| Scalar::Int(v.into()), integer;
    i32 => I32, |v| Scalar::Int(v.into()), integer;
    i64 => I64, Scalar::Int, integer;
    f16 => F16, |v| Scalar::Float(v.to_f64()), |s| float(s, f16::from_f64, |v| v.is_finite());
    bf16 => BF16, |v| Scalar::Float(v.to_f64()), |s| float(s, bf16::from_f64, |v| v.is_finite());
    f32 => F32, |v| Scalar::Float(v.into()), |s| float(s, |v| v as f32, |v| v.is_finite());
    f64 => F64, Scalar::Float, |s| Some(s.to_f64());
}

/// A number of any category, like Python's `bool`, `int` and `float`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

/// Integers that have no dtype of their own. An integer outside the range of `i64` becomes the nearest float.
macro_rules! wide_integers {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Scalar {
            fn from(value: $ty) -> Self {
                i64::try_from(value).map_or(Self::Float(value as f64), Self::Int)
            }
        }
    )*};
}

wide_integers!(u16, u32, u64, u128, usize, i128, isize);

impl Scalar {
    /// Returns the category of the number.
    #[must_use]
    pub const fn category(self) -> Category {
        match self {
            Self::Bool(_) => Category::Bool,
            Self::Int(_) => Category::Int,
            Self::Float(_) => Category::Float,
        }
    }

    /// Returns the dtype of a tensor that is made from this number: `bool`, `int64` or `float32`.
    #[must_use]
    pub const fn default_dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::Int(_) => DType::I64,
            Self::Float(_) => DType::F32,
        }
    }

    /// Returns the dtype of an op between a tensor of `dtype` and this number (`torch.result_type`).
    #[must_use]
    pub fn result_type(self, dtype: DType) -> DType {
        if self.category() > dtype.category() { self.default_dtype() } else { dtype }
    }

    /// Returns `true` if the number is not zero.
    #[must_use]
    pub fn to_bool(self) -> bool {
        match self {
            Self::Bool(v) => v,
            Self::Int(v) => v != 0,
            Self::Float(v) => v != 0.0,
        }
    }

    /// Converts to an integer. Floats are rounded towards zero and saturate; NaN becomes 0.
    #[must_use]
    pub fn to_i64(self) -> i64 {
        match self {
            Self::Bool(v) => v.into(),
            Self::Int(v) => v,
            Self::Float(v) => v as i64,
        }
    }

    /// Converts to a float. Integers that `f64` cannot represent are rounded.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Bool(v) => f64::from(u8::from(v)),
            Self::Int(v) => v as f64,
            Self::Float(v) => v,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => v.fmt(f),
            Self::Int(v) => v.fmt(f),
            Self::Float(v) => v.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the dtypes other than `bool` that can hold a value.
    fn dtypes_holding(value: Scalar) -> Vec<DType> {
        let mut all = Vec::new();
        macro_rules! ask {
            ($($ty:ty),*) => {$(
                if <$ty>::from_scalar(value).is_some() {
                    all.push(<$ty>::DTYPE);
                }
            )*};
        }
        ask!(u8, i8, i16, i32, i64, f16, bf16, f32, f64);
        all
    }

    #[test]
    fn a_scalar_converts_to_the_dtypes_that_can_hold_it() {
        use DType::*;
        let floats = [F16, BF16, F32, F64];
        let and = |ints: &[DType]| [ints, &floats].concat();
        assert_eq!(dtypes_holding(Scalar::Int(300)), and(&[I16, I32, I64]));
        assert_eq!(dtypes_holding(Scalar::Int(-1)), and(&[I8, I16, I32, I64]));
        assert_eq!(dtypes_holding(Scalar::Int(255)), and(&[U8, I16, I32, I64]));
        assert_eq!(
            dtypes_holding(Scalar::Int(70_000)),
            [I32, I64, BF16, F32, F64],
            "above the maximum of F16"
        );
        assert_eq!(dtypes_holding(Scalar::Int(i64::MIN)), [I64, BF16, F32, F64]);
        assert_eq!(dtypes_holding(Scalar::Bool(true)), and(&[U8, I8, I16, I32, I64]));
        assert_eq!(dtypes_holding(Scalar::Float(-128.0)), and(&[I8, I16, I32, I64]));
        assert_eq!(dtypes_holding(Scalar::Float(1.5)), floats);
        assert_eq!(dtypes_holding(Scalar::Float(TWO_63)), [BF16, F32, F64]);
        assert_eq!(dtypes_holding(Scalar::Float(1e300)), [F64]);
        for only_float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(dtypes_holding(Scalar::Float(only_float)), floats);
        }
        assert_eq!(u8::from_scalar(Scalar::Float(255.0)), Some(255));
        assert_eq!(i64::from_scalar(Scalar::Float(-TWO_63)), Some(i64::MIN));
        assert_eq!(bool::from_scalar(Scalar::Int(-2)), Some(true));
    }

    #[test]
    fn all_is_indexed_by_discriminant() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(d as usize, i);
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
    }

    #[test]
    fn promotion_is_commutative_and_has_its_two_exceptions() {
        for a in DType::ALL {
            for b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a));
            }
        }
        assert_eq!(DType::U8.promote(DType::I8), DType::I16);
        assert_eq!(DType::F16.promote(DType::BF16), DType::F32);
    }
}
