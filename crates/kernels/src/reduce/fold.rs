//! What reductions do with elements, on the host.

use std::marker::PhantomData;

use warpline_runtime::host::{Cast, CastAny, HostElement, Number};

/// A reduction of values `V`, such as a sum.
pub(super) trait Fold: 'static {
    /// What an element's value is before it is reduced.
    type Value: Copy;
    /// What is kept meanwhile.
    type Acc: Copy + Send + Sync;
    fn identity() -> Self::Acc;
    fn make(value: Self::Value, index: usize) -> Self::Acc;
    fn merge(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// What the result is stored from.
    type Result: Wide;
    fn result(acc: Self::Acc) -> Self::Result;
}

/// A type that partial results are computed in: `f64` for floats, `i64` for integers and bool.
pub(super) trait Wide: Number + CastAny {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
}

impl Wide for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const LOWEST: Self = f64::NEG_INFINITY;
    const HIGHEST: Self = f64::INFINITY;
}

impl Wide for i64 {
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LOWEST: Self = i64::MIN;
    const HIGHEST: Self = i64::MAX;
}

macro_rules! folds {
    ($($(#[$doc:meta])* $name:ident: $identity:ident, $merge:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name<V>(PhantomData<V>);

        impl<V: Wide> Fold for $name<V> {
            type Value = V;
            type Acc = V;
            #[inline(always)]
            fn identity() -> V {
                V::$identity
            }
            #[inline(always)]
            fn make(value: V, _: usize) -> V {
                value
            }
            #[inline(always)]
            fn merge(a: V, b: V) -> V {
                let merge: fn(V, V) -> V = $merge;
                merge(a, b)
            }
            type Result = V;
            fn result(acc: V) -> V {
                acc
            }
        }
    )*};
}

folds! {
    /// The sum.
    Sum: ZERO, |a, b| a.add(b);
    /// The product.
    Prod: ONE, |a, b| a.mul(b);
    /// The largest, or NaN.
    Max: LOWEST, |a, b| a.maximum(b);
    /// The smallest, or NaN.
    Min: HIGHEST, |a, b| a.minimum(b);
}

/// Whether all (`ALL`) or any of the elements are not zero.
pub(super) struct Truths<V, const ALL: bool>(PhantomData<V>);

impl<V: Wide, const ALL: bool> Fold for Truths<V, ALL> {
    type Value = V;
    type Acc = i64;
    fn identity() -> i64 {
        ALL.into()
    }
    #[inline(always)]
    fn make(value: V, _: usize) -> i64 {
        (value != V::ZERO).into()
    }
    #[inline(always)]
    fn merge(a: i64, b: i64) -> i64 {
        if ALL { a & b } else { a | b }
    }
    type Result = i64;
    fn result(acc: i64) -> i64 {
        acc
    }
}

/// The first index of the largest value (`MAX`) or the smallest; of the first NaN if there is one.
pub(super) struct Arg<V, const MAX: bool>(PhantomData<V>);

impl<V: Wide, const MAX: bool> Fold for Arg<V, MAX> {
    type Value = V;
    type Acc = (V, i64);
    #[inline(always)]
    fn identity() -> (V, i64) {
        (if MAX { V::LOWEST } else { V::HIGHEST }, i64::MAX)
    }
    #[inline(always)]
    fn make(value: V, index: usize) -> (V, i64) {
        (value, index as i64)
    }
    #[inline(always)]
    fn merge(a: (V, i64), b: (V, i64)) -> (V, i64) {
        let same = a.0 == b.0 || (a.0.is_nan() && b.0.is_nan());
        let better = a.0.is_nan() || (!b.0.is_nan() && if MAX { a.0 > b.0 } else { a.0 < b.0 });
        if if same { a.1 < b.1 } else { better } { a } else { b }
    }
    type Result = i64;
    fn result(acc: (V, i64)) -> i64 {
        acc.1
    }
}

/// An element type with the wide type of its values.
pub(super) trait Source: HostElement {
    type Wide: Wide;
    fn wide(self) -> Self::Wide;
}

macro_rules! sources {
    ($($ty:ty => $wide:ty;)*) => {$(
        impl Source for $ty {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide {
                self.get().cast()
            }
        }
    )*};
}

sources! {
    warpline_runtime::host::Truth => i64;
    u8 => i64;
    i8 => i64;
    i16 => i64;
    i32 => i64;
    i64 => i64;
    half::f16 => f64;
    half::bf16 => f64;
    f32 => f64;
    f64 => f64;
}
