//! Indexing: `t.i((1, .., 2..5))`, also with tensors of indices.

use std::convert::Infallible;

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::{SmallVec, smallvec};
use warpline_runtime::Layout;

use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, embed, saved};
use crate::called::Called;
use crate::into_shape::list_tuples;
use crate::{CallScope, DType, Error, ErrorKind, Result, Tensor};

/// The index of one dimension.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TensorIndex {
    /// A single index, which removes the dimension. A negative index counts from the end.
    At(isize),
    /// The indices from a start up to but excluding an end, as in Python: negative bounds count from the end,
    /// and bounds outside the dimension are clamped. `None` is the start or end of the dimension.
    Slice(Option<isize>, Option<isize>),
    /// A new dimension of size 1: `None`, as in Python.
    NewAxis,
    /// All dimensions for which there are no other indices: [`Ellipsis`].
    Ellipsis,
    /// The indices in a tensor, or the indices of a mask's true elements, as in [`Tensor::index`]. A mask with
    /// `n` dimensions indexes `n` dimensions.
    Tensor(Tensor),
}

/// The index `...` of Python: all dimensions for which there are no other indices. `..` is one whole dimension.
///
/// ```
/// use warpline::{Ellipsis, arange};
///
/// let t = arange(24, ())?.reshape([2, 3, 4])?;
/// assert_eq!(t.i((Ellipsis, -1))?.size(), [2, 3]);
/// assert_eq!(t.i((0, Ellipsis, None))?.size(), [3, 4, 1]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ellipsis;

impl From<Ellipsis> for TensorIndex {
    fn from(_: Ellipsis) -> Self {
        Self::Ellipsis
    }
}

/// `None` makes a new dimension.
impl From<Option<Infallible>> for TensorIndex {
    fn from(_: Option<Infallible>) -> Self {
        Self::NewAxis
    }
}

impl From<&Tensor> for TensorIndex {
    fn from(indices: &Tensor) -> Self {
        Self::Tensor(indices.clone())
    }
}

impl From<Tensor> for TensorIndex {
    fn from(indices: Tensor) -> Self {
        Self::Tensor(indices)
    }
}

/// A range of indices in Rust's syntax: `1..3`, `1..=3`, `1..`, `..-1`, `..`. Bounds are `i32`, `i64`, `isize`
/// or `usize`; negative bounds count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of indices",
    label = "expected a range such as `1..3`, `1..`, `..-1` or `..`",
    note = "bounds may be `i32`, `i64`, `isize` or `usize`"
)]
pub trait IndexRange {
    /// Returns the first index, and the index after the last. `None` means the start or end of the dimension.
    fn bounds(self) -> (Option<isize>, Option<isize>);
}

impl IndexRange for RangeFull {
    fn bounds(self) -> (Option<isize>, Option<isize>) {
        (None, None)
    }
}

macro_rules! from_int {
    ($($ty:ty),*) => {$(
        impl From<$ty> for TensorIndex {
            fn from(index: $ty) -> Self {
                // Saturate an index that does not fit `isize`: it is out of range for every dimension anyway.
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

/// Returns the exclusive bound `end + beyond`; `beyond` is 1 for an inclusive range. An inclusive bound of -1,
/// the last index, gives `None`, the end of the dimension.
fn after(end: isize, beyond: isize) -> Option<isize> {
    if beyond == 1 && end == -1 { None } else { Some(end.saturating_add(beyond)) }
}

from_int!(i32, i64, isize, usize);

impl<R: IndexRange> From<R> for TensorIndex {
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

/// An argument of [`Tensor::i`]: one [`TensorIndex`], or a tuple or slice of several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index",
    label = "expected an index, a range such as `1..3` or `..`, or a tuple of up to six of them",
    note = "an index is an integer, a range, a tensor of indices or bools, `None` for a new dimension, or `Ellipsis`"
)]
pub trait IntoIndices {
    /// Returns the indices, for the first dimensions in order.
    fn into_indices(self) -> SmallVec<[TensorIndex; 6]>;
}

impl<I: Into<TensorIndex>> IntoIndices for I {
    fn into_indices(self) -> SmallVec<[TensorIndex; 6]> {
        SmallVec::from_iter([self.into()])
    }
}

impl IntoIndices for &[TensorIndex] {
    fn into_indices(self) -> SmallVec<[TensorIndex; 6]> {
        self.iter().cloned().collect()
    }
}

list_tuples!(IntoIndices::into_indices -> [TensorIndex], Into<TensorIndex>, into);

impl Tensor {
    /// Returns the elements at indices, as Python's `t[…]` does. The indices apply to the first dimensions, in
    /// order; all other dimensions stay whole. Indices after an [`Ellipsis`] apply to the last dimensions. Integers,
    /// ranges and `None` give a view. If a tensor of indices or a mask is among the indices, the result is a copy,
    /// with dimensions in the order of [`Tensor::index`].
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(24, ())?.reshape([2, 3, 4])?;
    /// assert_eq!(t.i(1)?.size(), [3, 4]);
    /// assert_eq!(t.i((.., -1, 1..3))?.to_vec::<i64>()?, [9, 10, 21, 22]);
    /// assert_eq!(t.i((0, 1..=1, ..=-3))?.to_vec::<i64>()?, [4, 5]);
    /// assert_eq!(t.i((.., None, 0))?.size(), [2, 1, 4]);
    /// let columns = arange(2, ())?;
    /// assert_eq!(t.i((0, .., &columns))?.to_vec::<i64>()?, [0, 1, 4, 5, 8, 9]);
    /// assert_eq!(t.i(t.gt(21)?)?.to_vec::<i64>()?, [22, 23]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexOutOfRange`] if a single index is outside its dimension.
    /// [`ErrorKind::InvalidArgument`] if there are more indices than dimensions, or several [`Ellipsis`]. With a tensor
    /// among the indices, also the errors of [`Tensor::index`].
    #[doc(alias = "index")]
    #[doc(alias = "get")]
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn i(&self, indices: impl IntoIndices) -> Result<Self> {
        let _call = CallScope::enter("i");
        let mut indices = indices.into_indices();
        let used: usize = indices.iter().map(TensorIndex::dims).sum();
        if used > self.dim() {
            return Err(Error::invalid(
                "i",
                format!("too many indices for a tensor of dimension {}", self.dim()),
            ));
        }
        if let Some(at) = indices.iter().position(TensorIndex::is_ellipsis) {
            if indices[at + 1..].iter().any(TensorIndex::is_ellipsis) {
                return Err(Error::invalid("i", "indices can have only one ellipsis"));
            }
            indices.remove(at);
            let whole = TensorIndex::Slice(None, None);
            indices.insert_many(at, std::iter::repeat_n(whole, self.dim() - used));
        }
        // The view keeps the dimensions that tensors index; `index` then selects from the view.
        let mut basic = SmallVec::<[BasicIndex; 6]>::new();
        let mut tensors = Vec::new();
        for index in &indices {
            match index {
                TensorIndex::At(index) => basic.push(BasicIndex::At(*index)),
                TensorIndex::Slice(start, end) => {
                    basic.push(BasicIndex::Slice(*start, *end));
                    tensors.push(None);
                }
                TensorIndex::NewAxis => {
                    basic.push(BasicIndex::NewAxis);
                    tensors.push(None);
                }
                TensorIndex::Ellipsis => {} // replaced above
                TensorIndex::Tensor(indices) => {
                    basic.extend((0..index.dims()).map(|_| BasicIndex::Slice(None, None)));
                    tensors.push(Some(indices));
                }
            }
        }
        let view = self.basic_view(basic)?;
        if tensors.iter().all(Option::is_none) {
            return Ok(view);
        }
        view.index(&tensors)
    }

    /// Returns the view at indices.
    #[track_caller]
    fn basic_view(&self, indices: SmallVec<[BasicIndex; 6]>) -> Result<Self> {
        let mut layout = self.layout().clone();
        let (mut dim, mut own) = (0, 0);
        for index in &indices {
            match *index {
                BasicIndex::At(index) => {
                    layout = select(&layout, dim, index, own).of("i")?;
                    own += 1;
                }
                BasicIndex::Slice(start, end) => {
                    let range = within((start, end), layout.sizes()[dim as usize]);
                    layout = layout.narrow(dim, range.start as isize, range.len()).of("i")?;
                    dim += 1;
                    own += 1;
                }
                BasicIndex::NewAxis => {
                    layout = layout.unsqueeze(dim).of("i")?;
                    dim += 1;
                }
            }
        }
        self.viewed("index", layout, BasicIndexing { indices })
    }
}

impl TensorIndex {
    fn is_ellipsis(&self) -> bool {
        matches!(self, Self::Ellipsis)
    }

    /// Returns the number of dimensions that are indexed. An ellipsis counts as 0.
    fn dims(&self) -> usize {
        match self {
            Self::NewAxis | Self::Ellipsis => 0,
            Self::Tensor(mask) if mask.dtype() == DType::Bool => mask.dim(),
            _ => 1,
        }
    }
}

/// An index that gives a view: a [`TensorIndex`] without a tensor and an ellipsis.
#[derive(Clone, Copy)]
enum BasicIndex {
    At(isize),
    Slice(Option<isize>, Option<isize>),
    NewAxis,
}

impl Saved for BasicIndex {}

saved! {
    /// A view at indices.
    struct BasicIndexing { indices: SmallVec<[BasicIndex; 6]> }
}

impl OpBackward for BasicIndexing {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let view = |whole: &Tensor| whole.basic_view(self.indices.clone());
        Ok(smallvec![Some(embed(grad, inputs.sizes(0), view)?)])
    }
}

/// Selects one index of `dim`. Errors name `own`, which is the number of this dimension in the original tensor,
/// because `layout` lacks the dimensions that were already selected.
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
