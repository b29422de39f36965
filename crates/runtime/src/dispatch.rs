//! Dispatch from a dtype at run time to a type at compile time.

/// Evaluates an expression with a type alias for the host type of a dtype:
/// `dispatch!(dtype, all T => f::<T>)`. With `float`, `int` or `number` (both) instead of `all`, a
/// last arm handles the other dtypes: `dispatch!(dtype, float T => f::<T>, _ => return err)`.
///
/// `T` is a [`crate::host::HostElement`]. The host type of bool is [`crate::host::Truth`].
#[macro_export]
macro_rules! dispatch {
    ($dtype:expr, all $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => { type $t = $crate::host::Truth; $body }
            other => $crate::dispatch!(other, number $t => $body, _ => unreachable!("bool is above")),
        }
    };
    ($dtype:expr, number $t:ident => $body:expr, _ => $else:expr) => {
        $crate::dispatch_arms!(
            $dtype, $t, $body, _, $else,
            U8, I8, I16, I32, I64, F16, BF16, F32, F64
        )
    };
    ($dtype:expr, int $t:ident => $body:expr, $other:pat => $else:expr) => {
        $crate::dispatch_arms!(
            $dtype, $t, $body, $other, $else,
            U8, I8, I16, I32, I64
        )
    };
    ($dtype:expr, float $t:ident => $body:expr, $other:pat => $else:expr) => {
        $crate::dispatch_arms!(
            $dtype, $t, $body, $other, $else,
            F16, BF16, F32, F64
        )
    };
}

/// Makes an array with a value for each dtype, in the order of [`DType::ALL`](crate::DType::ALL):
/// `by_dtype!(all T => f::<T>())`. The types are those of [`dispatch!`].
///
/// ```
/// use warpline_runtime::{DType, by_dtype};
///
/// static SIZES: [usize; DType::ALL.len()] = by_dtype!(all T => size_of::<T>());
/// assert_eq!(SIZES[DType::BF16 as usize], 2);
/// ```
#[macro_export]
macro_rules! by_dtype {
    (all $t:ident => $value:expr) => {
        $crate::by_dtype!(
            @ $t => $value, $crate::host::Truth, u8, i8, i16, i32, i64, $crate::f16, $crate::bf16, f32, f64
        )
    };
    (@ $t:ident => $value:expr, $($ty:ty),*) => {
        [$({ type $t = $ty; $value }),*]
    };
}

/// The host type of a dtype's name, as [`dispatch!`] and [`hosts!`](crate::hosts) use it.
#[doc(hidden)]
#[macro_export]
macro_rules! dtype_type {
    (Bool) => {
        $crate::host::Truth
    };
    (U8) => {
        u8
    };
    (I8) => {
        i8
    };
    (I16) => {
        i16
    };
    (I32) => {
        i32
    };
    (I64) => {
        i64
    };
    (F16) => {
        $crate::f16
    };
    (BF16) => {
        $crate::bf16
    };
    (F32) => {
        f32
    };
    (F64) => {
        f64
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! dispatch_arms {
    ($dtype:expr, $t:ident, $body:expr, $other:pat, $else:expr, $($variant:ident),*) => {
        match $dtype {
            $($crate::DType::$variant => { type $t = $crate::dtype_type!($variant); $body })*
            $other => $else,
        }
    };
}
