//! Basic indexing: `t.i((1, .., 2..5))`.

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use smallvec::SmallVec;

use crate::{Error, Result, Tensor};

/// What is taken of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Index {
    /// One index, which removes the dimension; counts from the end if negative.
    At(isize),
    /// The indices from a start to an end, both as Python's: negative counts from the end, what
    /// lies outside is cut off. `None` is the dimension's own end.
    Slice(Option<isize>, Option<isize>),
}

macro_rules! from_int {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Index {
            fn from(index: $ty) -> Self {
                // What does not fit is out of range of any dimension, and is said to be so.
                Self::At(isize::try_from(index).unwrap_or(isize::MAX))
            }
        }
        impl From<Range<$ty>> for Index {
            fn from(range: Range<$ty>) -> Self {
                let end = |i: $ty| isize::try_from(i).unwrap_or(isize::MAX);
                Self::Slice(Some(end(range.start)), Some(end(range.end)))
            }
        }
        impl From<RangeFrom<$ty>> for Index {
            fn from(range: RangeFrom<$ty>) -> Self {
                Self::Slice(Some(isize::try_from(range.start).unwrap_or(isize::MAX)), None)
            }
        }
        impl From<RangeTo<$ty>> for Index {
            fn from(range: RangeTo<$ty>) -> Self {
                Self::Slice(None, Some(isize::try_from(range.end).unwrap_or(isize::MAX)))
            }
        }
    )*};
}

from_int!(i32, isize, usize);

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::Slice(None, None)
    }
}

/// What [`Tensor::i`] takes: one [`Index`], or a tuple or slice of several.
pub trait IntoIndices {
    /// The indices, for the first dimensions in order.
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
    /// A view by basic indexing, the first dimensions first; those not named stay whole.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(24, ())?.reshape(&[2, 3, 4])?;
    /// assert_eq!(t.i(1)?.size(), [3, 4]);
    /// assert_eq!(t.i((.., -1, 1..3))?.to_vec::<i64>()?, [9, 10, 21, 22]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for a single index outside its dimension;
    /// [`Error::InvalidArgument`] for more indices than dimensions.
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
        for index in indices {
            match index {
                Index::At(index) => layout = layout.select(dim, index)?,
                Index::Slice(start, end) => {
                    let size = layout.sizes()[dim as usize] as isize;
                    let clamp =
                        |i: isize| (if i < 0 { i.saturating_add(size) } else { i }).clamp(0, size);
                    let start = clamp(start.unwrap_or(0));
                    let end = clamp(end.unwrap_or(size));
                    layout = layout.narrow(dim, start, (end - start).max(0) as usize)?;
                    dim += 1;
                }
            }
        }
        Ok(self.with_layout(layout))
    }
}

/// Row-major strides.
pub(crate) fn row_major(sizes: &[usize]) -> SmallVec<[usize; 6]> {
    let mut strides = SmallVec::from_elem(1, sizes.len());
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    strides
}
