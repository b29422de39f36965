//! Folds of elements on the CPU.

use std::array::from_fn;
use std::ops::Range;

use warpline_runtime::host::{Cast, CastAny, HostElement, Number, Truth};
use warpline_runtime::{DType, Scalar};

use super::table::folds::{Max, Min};
use crate::fill;
use crate::math::exact_sum;

/// Number of partial results that are updated together. They fill several vector registers. With
/// fewer, compilers unroll the loop over chunks and gather elements across iterations, which is
/// slower.
pub(super) const LANES: usize = 64;

/// Number of rows that are processed together. Each partial result is read and written only once
/// for all of these rows.
const ROWS: usize = 8;

/// Maximum number of neighbouring results that are processed together. They fit the level 1 cache.
pub(super) const TILE: usize = 1024;

/// Elements per block in the search for the index of an extreme. Only the block with the extreme is
/// searched for the index.
const BLOCK: usize = 1024;

/// A fold of elements of type `T`, such as a sum. Every function that loops call is `inline(always)`,
/// so that [`vectorized`] compiles it for each level of vector instructions.
pub(super) trait Fold<T: ReduceElement>: 'static {
    /// Type of a partial result.
    type Acc: Copy + Send + Sync;
    /// Type of the result before the conversion to its dtype.
    type Result: Number + CastAny;
    fn identity() -> Self::Acc;
    fn make(element: T, index: usize) -> Self::Acc;
    fn merge(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn result(acc: Self::Acc) -> Self::Result;
    /// Returns the neutral element, which changes no result.
    fn neutral() -> Scalar {
        Self::result(Self::identity()).to_scalar()
    }

    /// Folds adjacent elements. The first element has the index `first`.
    #[inline(always)]
    fn run(accs: &mut [Self::Acc; LANES], elements: &[T], first: usize) {
        let mut local = *accs;
        let (chunks, rest) = elements.as_chunks::<LANES>();
        for (i, chunk) in chunks.iter().enumerate() {
            for (j, acc) in local.iter_mut().enumerate() {
                *acc = Self::merge(*acc, Self::make(chunk[j], first + i * LANES + j));
            }
        }
        *accs = local;
        let first = first + chunks.len() * LANES;
        for (j, (acc, &element)) in accs.iter_mut().zip(rest).enumerate() {
            *acc = Self::merge(*acc, Self::make(element, first + j));
        }
    }

    /// Folds the rows `range` into adjacent columns, at most [`TILE`]. `row(i)` returns the
    /// elements of row `i`.
    #[inline(always)]
    fn columns<'a>(accs: &mut [Self::Acc], range: Range<usize>, row: impl Fn(usize) -> &'a [T]) {
        fold_columns::<Self, T>(accs, range, row);
    }

    /// Merges all partial results, always in the same order.
    #[inline(always)]
    fn total(mut accs: [Self::Acc; LANES]) -> Self::Acc {
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for j in 0..width {
                accs[j] = Self::merge(accs[j], accs[j + width]);
            }
        }
        accs[0]
    }
}

/// [`Fold::columns`] of folds that have no implementation of their own.
#[inline(always)]
fn fold_columns<'a, F: Fold<T> + ?Sized, T: ReduceElement>(
    accs: &mut [F::Acc],
    range: Range<usize>,
    row: impl Fn(usize) -> &'a [T],
) {
    let n = accs.len();
    let whole = range.start + range.len() / ROWS * ROWS;
    for first in (range.start..whole).step_by(ROWS) {
        let rows: [&[T]; ROWS] = from_fn(|i| &row(first + i)[..n]);
        for (k, to) in accs.iter_mut().enumerate() {
            let mut acc = *to;
            for (i, row) in rows.iter().enumerate() {
                acc = F::merge(acc, F::make(row[k], first + i));
            }
            *to = acc;
        }
    }
    for index in whole..range.end {
        for (acc, &element) in accs.iter_mut().zip(row(index)) {
            *acc = F::merge(*acc, F::make(element, index));
        }
    }
}

/// An element type, with the types in which it is reduced.
pub(super) trait ReduceElement: HostElement {
    /// Type of sums and products: `f64` for floats, `i64` for integers and bool.
    type Wide: Number + CastAny;
    /// Type of extremes and comparisons, which represents the element's values.
    type Own: Number + CastAny;
    fn wide(self) -> Self::Wide;
    fn own(self) -> Self::Own;

    /// Returns 0 if the element is zero, otherwise 1.
    #[inline(always)]
    fn truth(self) -> u8 {
        (self.own() != Self::Own::from_number(0i64)).into()
    }
}

macro_rules! reduce_elements {
    ($($ty:ty => $wide:ty, $own:ty;)*) => {$(
        impl ReduceElement for $ty {
            type Wide = $wide;
            type Own = $own;
            #[inline(always)]
            fn wide(self) -> $wide {
                self.get().cast()
            }
            #[inline(always)]
            fn own(self) -> $own {
                self.get().cast()
            }
        }
    )*};
}

reduce_elements! {
    Truth => i64, u8;
    u8 => i64, u8;
    i8 => i64, i8;
    i16 => i64, i16;
    i32 => i64, i32;
    i64 => i64, i64;
    half::f16 => f64, f32;
    half::bf16 => f64, f32;
    f32 => f64, f32;
    f64 => f64, f64;
}

/// A sum.
pub(super) struct Sum;

impl<T: ReduceElement> Fold<T> for Sum {
    type Acc = T::Wide;
    type Result = T::Wide;
    #[inline(always)]
    fn identity() -> T::Wide {
        T::Wide::from_number(0i64)
    }
    #[inline(always)]
    fn make(element: T, _: usize) -> T::Wide {
        element.wide()
    }
    #[inline(always)]
    fn merge(a: T::Wide, b: T::Wide) -> T::Wide {
        a.add(b)
    }
    fn result(acc: T::Wide) -> T::Wide {
        acc
    }

    /// Adds the rounding errors of `f64` at the end. Otherwise they would grow with the number of rows.
    #[inline(always)]
    fn columns<'a>(accs: &mut [T::Wide], range: Range<usize>, row: impl Fn(usize) -> &'a [T]) {
        if T::DTYPE != DType::F64 {
            return fold_columns::<Self, T>(accs, range, row);
        }
        let mut errors = [0.0; TILE];
        for index in range {
            for ((acc, errors), &element) in accs.iter_mut().zip(&mut errors).zip(row(index)) {
                let (sum, error) = exact_sum((*acc).cast(), element.wide().cast());
                *acc = T::Wide::from_number(sum);
                *errors += error;
            }
        }
        for (acc, error) in accs.iter_mut().zip(errors) {
            // After an overflow, or with elements that are not finite, the errors are NaN.
            let error = if error.is_nan() { 0.0 } else { error };
            *acc = acc.add(T::Wide::from_number(error));
        }
    }
}

/// A fold to the index of the first largest value if `MAX` is true, otherwise of the first smallest
/// value. A NaN is preferred to every number.
pub(super) struct Arg<const MAX: bool>;

/// Returns whether value `a` is preferred to `b`.
#[inline(always)]
fn better<V: Number, const MAX: bool>(a: V, b: V) -> bool {
    let beyond = if MAX { a > b } else { a < b };
    (beyond | a.is_nan()) & !b.is_nan()
}

impl<T: ReduceElement, const MAX: bool> Fold<T> for Arg<MAX> {
    type Acc = (T::Own, i64);
    type Result = i64;
    #[inline(always)]
    fn identity() -> (T::Own, i64) {
        (if MAX { T::Own::LOWEST } else { T::Own::HIGHEST }, i64::MAX)
    }
    #[inline(always)]
    fn make(element: T, index: usize) -> (T::Own, i64) {
        (element.own(), index as i64)
    }
    #[inline(always)]
    fn merge(a: (T::Own, i64), b: (T::Own, i64)) -> (T::Own, i64) {
        let (before, after) = (better::<_, MAX>(a.0, b.0), better::<_, MAX>(b.0, a.0));
        if before || (!after && a.1 < b.1) { a } else { b }
    }
    fn result(acc: (T::Own, i64)) -> i64 {
        acc.1
    }
    fn neutral() -> Scalar {
        <Self as Fold<T>>::identity().0.to_scalar()
    }

    /// Computes the extreme of each block with vector instructions, then searches only the best
    /// block for the index.
    #[inline(always)]
    fn run(accs: &mut [(T::Own, i64); LANES], elements: &[T], first: usize) {
        let (mut best, index) = accs[0];
        let mut found = None;
        for (i, block) in elements.chunks(BLOCK).enumerate() {
            let extreme = if MAX { extreme::<Max, T>(block) } else { extreme::<Min, T>(block) };
            let is_first = index == i64::MAX && found.is_none();
            if is_first || better::<_, MAX>(extreme, best) {
                (best, found) = (extreme, Some((i * BLOCK, block)));
            }
        }
        if let Some((start, block)) = found {
            let at = first + start + position(block, best);
            accs[0] = <Self as Fold<T>>::merge(accs[0], (best, at as i64));
        }
    }

    /// Keeps values and indices in separate arrays, and indices in 32 bits, so that compilers can
    /// use vector instructions.
    #[inline(always)]
    fn columns<'a>(
        accs: &mut [(T::Own, i64)],
        range: Range<usize>,
        row: impl Fn(usize) -> &'a [T],
    ) {
        let (mut values, mut indices) = ([T::Own::LOWEST; TILE], [0u32; TILE]);
        let (values, indices) = (&mut values[..accs.len()], &mut indices[..accs.len()]);
        for first in range.clone().step_by(u32::MAX as usize) {
            for (value, &element) in values.iter_mut().zip(row(first)) {
                *value = element.own();
            }
            indices.fill(0);
            for (index, i) in (first + 1..range.end).zip(1..u32::MAX) {
                for ((value, at), &element) in values.iter_mut().zip(&mut *indices).zip(row(index))
                {
                    let element = element.own();
                    let is_better = better::<_, MAX>(element, *value);
                    *value = if is_better { element } else { *value };
                    *at = if is_better { i } else { *at };
                }
            }
            for ((acc, &value), &at) in accs.iter_mut().zip(&*values).zip(&*indices) {
                let index = (first + at as usize) as i64;
                *acc = <Self as Fold<T>>::merge(*acc, (value, index));
            }
        }
    }
}

/// Returns the largest or smallest element, as the fold `F` selects.
#[inline(always)]
fn extreme<F: Fold<T, Acc = T::Own>, T: ReduceElement>(elements: &[T]) -> T::Own {
    let mut accs = [F::identity(); LANES];
    F::run(&mut accs, elements, 0);
    F::total(accs)
}

/// Returns the index of the first element that equals the extreme.
#[inline(always)]
fn position<T: ReduceElement>(elements: &[T], extreme: T::Own) -> usize {
    let is_it = |x: &T| (x.own() == extreme) | (extreme.is_nan() & x.own().is_nan());
    let has_it = |chunk: &[T]| chunk.iter().fold(false, |any, x| any | is_it(x));
    let start = LANES * elements.chunks(LANES).position(has_it).unwrap_or(0);
    start + elements[start..].iter().position(is_it).unwrap_or(0)
}

/// Returns the bits of the neutral element, which changes no result, repeated to fill eight bytes.
pub(super) fn neutral<F: Fold<T>, T: ReduceElement>() -> u64 {
    let ones = u64::MAX >> (64 - 8 * size_of::<T>());
    fill::bits_of(T::DTYPE, F::neutral()) * (u64::MAX / ones)
}
