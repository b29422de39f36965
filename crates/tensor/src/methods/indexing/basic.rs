//! Basic indexing: `t.i((1, .., 2..5))`.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::{SmallVec, smallvec};
use warpline_runtime::Layout;

use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, embed};
use crate::called::Called;
use crate::{Error, ErrorKind, Result, Tensor};

/// The index of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Index {
    /// A single index, which removes the dimension. A negative index counts from the end.
    At(isize),
    /// The indices from a start up to but excluding an end, as in Python: negative bounds count from the end,
    /// and bounds outside the dimension are clamped. `None` is the start or end of the dimension.
    Slice(Option<isize>, Option<isize>),
}

/// A range of indices in Rust's syntax: `1..3`, `1..=3`, `1..`, `..-1`, `..`. Bounds are `i32`, `i64`, `isize`
/// or `usize`; negative bounds count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no range of indices",
    label = "expected a range such as `1..3`, `1..`, `..-1` or `..`",
    note = "bounds may be `i32`, `i64`, `isize` or `usize`"
)]
pub trait IndexRange {
    /// Returns the first index, and the index after the last. `None` is the start or end of the dimension.
    fn bounds(self) -> (Option<isize>, Option<isize>);
}

impl IndexRange for RangeFull {
    fn bounds(self) -> (Option<isize>, Option<isize>) {
        (None, None)
    }
}

macro_rules! from_int {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Index {
            fn from(index: $ty) -> Self {
                // Saturates an index that exceeds `isize`, which is out of range for any dimension.
                Self::At(isize::try_from(index).unwrap_or(isize::MAX))
            }
        }
        from_int!(@range $ty, Range<$ty>, range, Some(range.start), Some(range.end), 0);
        from_int!(@range $ty, RangeFrom<$ty>, range, Some(range.start), None, 0);
        from_int!(@range $ty, RangeTo<$ty>, range, None, Some(range.end), 0);
        from_int!(@range $ty, RangeInclusive<$ty>, range, Some(*range.start()), Some(*range.end()), 1);
        from_int!(@range $ty, RangeToInclusive<$ty>, range, None, Some(range.end), 1);
    )*};
    (@range $ty:ty, $range:ty, $value:ident, $start:expr, $end:expr, $beyond:expr) => {
        impl IndexRange for $range {
            fn bounds(self) -> (Option<isize>, Option<isize>) {
                let $value = self;
                let (start, end): (Option<$ty>, Option<$ty>) = ($start, $end);
                let bound = |bound: $ty| isize::try_from(bound).unwrap_or(isize::MAX);
                (start.map(bound), end.map(bound).and_then(|end| after(end, $beyond)))
            }
        }
    };
}

/// Returns the exclusive bound `end + beyond`. An inclusive bound of -1, the last index, gives `None`, the end
/// of the dimension.
fn after(end: isize, beyond: isize) -> Option<isize> {
    if beyond == 1 && end == -1 { None } else { Some(end.saturating_add(beyond)) }
}

from_int!(i32, i64, isize, usize);

impl<R: IndexRange> From<R> for Index {
    fn from(range: R) -> Self {
        let (start, end) = range.bounds();
        Self::Slice(start, end)
    }
}

/// Clamps a range to a dimension.
pub(in crate::methods) fn within(
    (start, end): (Option<isize>, Option<isize>),
    size: usize,
) -> Range<usize> {
    let size = size as isize;
    let clamp = |i: isize| (if i < 0 { i.saturating_add(size) } else { i }).clamp(0, size) as usize;
    let start = clamp(start.unwrap_or(0));
    start..clamp(end.unwrap_or(size)).max(start)
}

/// An argument of [`Tensor::i`]: one [`Index`], or a tuple or slice of several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no index",
    label = "expected an index, a range such as `1..3` or `..`, or a tuple of up to six of them",
    note = "a tensor of indices is for `index_select` and `gather`"
)]
pub trait IntoIndices {
    /// Returns the indices, for the first dimensions in order.
    fn into_indices(self) -> SmallVec<[Index; 6]>;
}

impl<I: Into<Index>> IntoIndices for I {
    fn into_indices(self) -> SmallVec<[Index; 6]> {
        SmallVec::from_iter([self.into()])
    }
}

impl IntoIndices for &[Index] {
    fn into_indices(self) -> SmallVec<[Index; 6]> {
        self.iter().copied().collect()
    }
}

macro_rules! tuples {
    ($($($name:ident)+;)*) => {$(
        impl<$($name: Into<Index>),+> IntoIndices for ($($name,)+) {
            fn into_indices(self) -> SmallVec<[Index; 6]> {
                #[allow(non_snake_case)] // the tuple's parts are named after their types
                let ($($name,)+) = self;
                SmallVec::from_iter([$($name.into()),+])
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

impl Tensor {
    /// Returns a view by basic indexing. The indices are for the first dimensions, in order; further dimensions
    /// stay whole.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(24, ())?.reshape([2, 3, 4])?;
    /// assert_eq!(t.i(1)?.size(), [3, 4]);
    /// assert_eq!(t.i((.., -1, 1..3))?.to_vec::<i64>()?, [9, 10, 21, 22]);
    /// assert_eq!(t.i((0, 1..=1, ..=-3))?.to_vec::<i64>()?, [4, 5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexOutOfRange`] if a single index is outside its dimension.
    /// [`ErrorKind::InvalidArgument`] if there are more indices than dimensions.
    #[doc(alias = "index")]
    #[doc(alias = "get")]
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn i(&self, indices: impl IntoIndices) -> Result<Self> {
        let indices = indices.into_indices();
        if indices.len() > self.dim() {
            return Err(Error::invalid(
                "i",
                format!("too many indices for a tensor of dimension {}", self.dim()),
            ));
        }
        let mut layout = self.layout().clone();
        let mut dim = 0;
        for (own, index) in indices.iter().copied().enumerate() {
            match index {
                Index::At(index) => layout = select(&layout, dim, index, own).of("i")?,
                Index::Slice(start, end) => {
                    let range = within((start, end), layout.sizes()[dim as usize]);
                    layout = layout.narrow(dim, range.start as isize, range.len()).of("i")?;
                    dim += 1;
                }
            }
        }
        self.viewed("index", layout, BasicIndexing(indices))
    }
}

#[derive(Clone)]
struct BasicIndexing(SmallVec<[Index; 6]>);

impl Saved for BasicIndexing {}

impl OpBackward for BasicIndexing {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(embed(grad, inputs.sizes(0), |whole| whole.i(&self.0[..]))?)])
    }
}

/// Selects one index of `dim`. Errors name the dimension `own` of the original tensor, because the layout
/// lacks the dimensions that were already selected.
fn select(layout: &Layout, dim: isize, index: isize, own: usize) -> Result<Layout> {
    layout.select(dim, index).map_err(|error| match *error.kind() {
        ErrorKind::IndexOutOfRange { index, length, size, .. } => {
            error.with_kind(ErrorKind::IndexOutOfRange { dim: own, index, length, size })
        }
        _ => error,
    })
}

/// Returns row-major strides.
pub(crate) fn row_major(sizes: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides = SmallVec::from_elem(1, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    strides
}
