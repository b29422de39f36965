//! Views, which share memory with the tensor from which they are made.

use std::panic::Location;

use smallvec::{SmallVec, smallvec};
use warpline_runtime::{Layout, Sizes, checked_numel, resolve_dim};

use super::indexing::{IndexRange, basic};
use super::reduce::{IntoDim, IntoDims};
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, linear, record, reshape_back, saved, should_record,
};
use crate::called::Called;
use crate::{
    CallScope, Error, ErrorKind, Integer, IntoOptions, IntoSizes, MemoryFormat, Result, Tensor,
};

/// The range of dimensions that [`Tensor::flatten`] merges: `()` for all dimensions, the first dimension of the
/// range, or a tuple of the first and the last.
#[derive(Clone, Copy, Debug)]
pub struct DimRange(isize, isize);

impl From<()> for DimRange {
    fn from((): ()) -> Self {
        Self(0, -1)
    }
}

impl<I: Integer> From<I> for DimRange {
    fn from(first: I) -> Self {
        Self(first.into_isize(), -1)
    }
}

impl<A: Integer, B: Integer> From<(A, B)> for DimRange {
    fn from((first, last): (A, B)) -> Self {
        Self(first.into_isize(), last.into_isize())
    }
}

impl Tensor {
    /// Returns the elements in another shape (`torch.reshape`): a view if the strides allow it, otherwise a
    /// copy. One size may be −1; this size is computed from the others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReshape`] if the shape has a different number of elements, and [`ErrorKind::SizeOverflow`]
    /// if that number does not fit `isize`. [`ErrorKind::InvalidArgument`] if several sizes are −1. Errors of [every
    /// op](Tensor#errors-of-every-op) if a copy is made.
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoSizes) -> Result<Self> {
        let sizes = self.infer_sizes(&shape.into_sizes()).of("reshape")?;
        match self.layout().view(&sizes) {
            Some(layout) => self.viewed_reshaped("view", layout),
            None => self.contiguous()?.unsafe_view(&sizes).of("reshape"),
        }
    }

    /// Returns a view in another shape (`torch.Tensor.view`). One size may be −1; this size is computed from
    /// the others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReshape`] if the shape has a different number of elements, and [`ErrorKind::SizeOverflow`]
    /// if that number does not fit `isize`. [`ErrorKind::InvalidArgument`] if several sizes are −1.
    /// [`ErrorKind::ViewNeedsCopy`] if the strides do not allow a view in this shape.
    #[track_caller]
    pub fn view(&self, shape: impl IntoSizes) -> Result<Self> {
        let sizes = self.infer_sizes(&shape.into_sizes()).of("view")?;
        let location = Location::caller();
        let layout = self.layout().view(&sizes).ok_or_else(|| {
            ErrorKind::ViewNeedsCopy {
                from: self.size().into(),
                strides: self.stride().into(),
                to: sizes.to_vec(),
            }
            .of("view")
            .at(location)
        })?;
        self.viewed_reshaped("view", layout)
    }

    /// Reshapes a contiguous tensor that has no other handle (`torch._unsafe_view`). Autograd does not treat
    /// the result as a view, so an in-place op on the result does not change the graph of the original.
    #[track_caller]
    pub(crate) fn unsafe_view(&self, sizes: &[usize]) -> Result<Self> {
        let view = self.with_layout(Layout::contiguous(sizes)?);
        if !should_record(&[self]) {
            return Ok(view);
        }
        record("view", view, &[self], linear(reshape_back))
    }

    /// Replaces the size -1 in a shape by the size that the number of elements implies.
    #[track_caller]
    fn infer_sizes(&self, shape: &[isize]) -> Result<Sizes> {
        let numel = self.numel();
        let location = Location::caller();
        let invalid =
            || ErrorKind::InvalidReshape { shape: shape.to_vec(), numel }.of("").at(location);
        let mut sizes = Sizes::new();
        let mut open = None;
        for (d, &size) in shape.iter().enumerate() {
            if size == -1 && open.replace(d).is_some() {
                let reason = format!("only one size can be inferred, but {shape:?} has several -1");
                return Err(Error::invalid("", reason));
            }
            sizes.push(if size == -1 {
                1
            } else {
                usize::try_from(size).map_err(|_| invalid())?
            });
        }
        let known = checked_numel(&sizes)?;
        if let Some(d) = open {
            if known == 0 || !numel.is_multiple_of(known) {
                return Err(invalid());
            }
            sizes[d] = numel / known;
        } else if known != numel {
            return Err(invalid());
        }
        Ok(sizes)
    }

    /// Returns a view with two dimensions swapped (`torch.transpose`).
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions.
    #[track_caller]
    pub fn transpose(&self, dim0: impl Integer, dim1: impl Integer) -> Result<Self> {
        let (dim0, dim1) = (dim0.into_isize(), dim1.into_isize());
        if self.dim() == 0 {
            resolve_dim(dim0, 0).of("transpose")?;
            resolve_dim(dim1, 0).of("transpose")?;
            return Ok(self.clone());
        }
        let layout = self.layout().transpose(dim0, dim1).of("transpose")?;
        self.viewed("transpose", layout, linear(move |grad, _| grad.transpose(dim0, dim1)))
    }

    /// Returns the transpose of a matrix, as a view (`torch.t`). Returns a vector or scalar itself.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor has more than two dimensions.
    #[track_caller]
    pub fn t(&self) -> Result<Self> {
        match self.dim() {
            0 | 1 => Ok(self.clone()),
            2 => {
                let layout = self.layout().transpose(0, 1)?;
                self.viewed("t", layout, linear(|grad, _| grad.t()))
            }
            n => Err(Error::shape(
                "t",
                format!(
                    "expects at most 2 dimensions, but the tensor has {n}; `m_t()` transposes the last two, and \
                     `transpose(a, b)` any two"
                ),
            )),
        }
    }

    /// Returns a view with all dimensions in another order (`torch.permute`).
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if `dims` is not a permutation of all dimensions.
    #[track_caller]
    pub fn permute(&self, dims: impl IntoDims) -> Result<Self> {
        let dims = dims.into_dims();
        let layout = self.layout().permute(&dims).of("permute")?;
        self.viewed("permute", layout, Permute { dims })
    }

    /// Returns a view in which dimensions of size 1, and new leading dimensions, are repeated without a copy
    /// (`torch.Tensor.expand`). A size of −1 keeps the size of the dimension.
    ///
    /// # Errors
    /// [`ErrorKind::ExpandMismatch`] if a dimension whose size is not 1 would change, or if there are fewer sizes than
    /// dimensions. [`ErrorKind::InvalidArgument`] for a negative size other than −1, and for −1 as the size of a new
    /// dimension. [`ErrorKind::SizeOverflow`] if the number of elements does not fit `isize`.
    #[track_caller]
    pub fn expand(&self, sizes: impl IntoSizes) -> Result<Self> {
        let sizes = sizes.into_sizes();
        let mut to = Sizes::new();
        for (d, &size) in sizes.iter().enumerate() {
            let own = (d + self.dim()).checked_sub(sizes.len()).map(|own| self.size()[own]);
            to.push(match (usize::try_from(size), own) {
                (Ok(size), _) => size,
                (Err(_), Some(own)) if size == -1 => own,
                _ => {
                    return Err(Error::invalid(
                        "expand",
                        format!("the size {size} is not allowed for dimension {d} of {sizes:?}"),
                    ));
                }
            });
        }
        // The gradient function is the identity, because the engine sums gradients over broadcast dimensions.
        let layout = self.layout().expand(&to).of("expand")?;
        self.viewed("expand", layout, linear(|grad, _| Ok(grad.clone())))
    }

    /// Returns a view of `length` indices of a dimension, beginning with `start` (`torch.narrow`). A negative
    /// `start` counts from the end.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::IndexOutOfRange`] if an
    /// index is outside the dimension. [`ErrorKind::InvalidArgument`] if `length` is negative.
    /// [`ErrorKind::ShapeMismatch`] if the tensor has no dimensions.
    #[track_caller]
    pub fn narrow(
        &self,
        dim: impl Integer,
        start: impl Integer,
        length: impl Integer,
    ) -> Result<Self> {
        let _call = CallScope::enter("narrow");
        let (dim, start) = (dim.into_isize(), start.into_isize());
        self.check_has_dims("narrow")?;
        let length = not_negative("narrow", "length", length)?;
        let layout = self.layout().narrow(dim, start, length)?;
        self.viewed_part("slice", layout, move |whole| whole.narrow(dim, start, length))
    }

    /// Returns a view of one index of a dimension; the view lacks this dimension (`torch.select`). A negative
    /// index counts from the end.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::IndexOutOfRange`] if the
    /// index is not in the dimension. [`ErrorKind::ShapeMismatch`] if the tensor has no dimensions.
    #[track_caller]
    pub fn select(&self, dim: impl Integer, index: impl Integer) -> Result<Self> {
        let (dim, index) = (dim.into_isize(), index.into_isize());
        self.check_has_dims("select")?;
        let layout = self.layout().select(dim, index).of("select")?;
        self.viewed_part("select", layout, move |whole| whole.select(dim, index))
    }

    /// Returns a view of every `step`-th index in a range of a dimension, like Python's `t[start:end:step]`. As
    /// in Python, negative bounds count from the end, and bounds beyond the dimension are clamped.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(6, ())?;
    /// assert_eq!(t.slice(0, 1..-1, 2)?.to_vec::<i64>()?, [1, 3]);
    /// assert_eq!(t.slice(0, ..100, 4)?.to_vec::<i64>()?, [0, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if `step`
    /// is zero or negative. [`ErrorKind::ShapeMismatch`] if the tensor has no dimensions.
    #[track_caller]
    pub fn slice(
        &self,
        dim: impl Integer,
        range: impl IndexRange,
        step: impl Integer,
    ) -> Result<Self> {
        let dim = dim.into_isize();
        self.check_has_dims("slice")?;
        let step = not_negative("slice", "step", step)?;
        let size = self.size()[self.layout().dim(dim).of("slice")?];
        let range = basic::within(range.bounds(), size);
        let (start, end) = (range.start, range.end);
        let layout = self.layout().slice(dim, start, end, step)?;
        self.viewed_part("slice", layout, move |whole| whole.slice(dim, start..end, step))
    }

    #[track_caller]
    pub(super) fn check_has_dims(&self, op: &'static str) -> Result<()> {
        if self.dim() == 0 {
            return Err(Error::shape(op, "cannot be applied to a 0-dim tensor"));
        }
        Ok(())
    }

    /// Returns a view without a dimension of size 1 (`torch.squeeze`). `None` or `()` removes all dimensions of
    /// size 1. If the dimension has a different size, the view keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension.
    #[track_caller]
    pub fn squeeze(&self, dim: impl IntoDim) -> Result<Self> {
        let layout = match dim.into_dim() {
            None => self.layout().squeeze_all(),
            Some(dim) => self.layout().squeeze(dim).of("squeeze")?,
        };
        self.viewed_reshaped("squeeze", layout)
    }

    /// Returns a view with a new dimension of size 1 before `dim`, which may be one past the last
    /// (`torch.unsqueeze`).
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if `dim` is out of range.
    #[track_caller]
    pub fn unsqueeze(&self, dim: impl Integer) -> Result<Self> {
        let layout = self.layout().unsqueeze(dim.into_isize()).of("unsqueeze")?;
        self.viewed_reshaped("unsqueeze", layout)
    }

    /// Merges a range of dimensions into one (`torch.flatten`). The range is `()` for all dimensions, its first
    /// dimension, or a tuple of its first and last dimension, both included. The result is a view if the
    /// strides allow it, otherwise a copy.
    ///
    /// ```
    /// # use warpline::zeros;
    /// let t = zeros([2, 3, 4, 5], ())?;
    /// assert_eq!(t.flatten(())?.size(), [120]);
    /// assert_eq!(t.flatten(1)?.size(), [2, 60]);
    /// assert_eq!(t.flatten((1, -2))?.size(), [2, 12, 5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if the first dimension comes after the last. Errors of [every op](Tensor#errors-of-every-op) if a copy is made.
    #[track_caller]
    pub fn flatten(&self, dims: impl IntoOptions<DimRange>) -> Result<Self> {
        let DimRange(start, end) = dims.into_options();
        let (first, last) =
            (self.layout().dim(start).of("flatten")?, self.layout().dim(end).of("flatten")?);
        if first > last {
            return Err(Error::invalid(
                "flatten",
                format!("the first dimension, {start}, comes after the last, {end}"),
            ));
        }
        if self.dim() == 0 {
            return self.reshape([1]);
        }
        let as_shape = |sizes: &[usize]| sizes.iter().map(|&n| n as isize).collect::<Vec<_>>();
        let mut shape = as_shape(&self.size()[..first]);
        shape.push(self.size()[first..=last].iter().product::<usize>() as isize);
        shape.extend(as_shape(&self.size()[last + 1..]));
        self.reshape(&shape)
    }

    /// Returns the tensor itself if it is contiguous, otherwise a contiguous copy (`torch.Tensor.contiguous`).
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op) if a copy is made.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Self> {
        self.contiguous_in(MemoryFormat::Contiguous)
    }

    /// Returns the tensor itself if its elements are adjacent in the order of `format`, otherwise a copy in
    /// this order (`torch.Tensor.contiguous` with `memory_format`).
    ///
    /// ```
    /// # use warpline::{MemoryFormat, zeros};
    /// let images = zeros([2, 3, 4, 5], ())?.contiguous_in(MemoryFormat::ChannelsLast)?;
    /// assert_eq!(images.stride(), [60, 1, 15, 3]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the format does not apply to the tensor's number of dimensions. Errors
    /// of [every op](Tensor#errors-of-every-op) if a copy is made.
    #[doc(alias = "memory_format")]
    #[track_caller]
    pub fn contiguous_in(&self, format: MemoryFormat) -> Result<Self> {
        let _call = CallScope::enter("contiguous");
        if self.is_contiguous_in(format) {
            return Ok(self.clone());
        }
        self.copy_in(format)
    }

    /// Copies the elements to new memory, in the order of `format`.
    #[track_caller]
    pub(crate) fn copy_in(&self, format: MemoryFormat) -> Result<Self> {
        let layout = self.layout_in(Some(format))?;
        let copy = self.copied_to(&self.exec()?, layout, self.dtype())?;
        self.recorded_copy("clone", copy)
    }

    /// Returns whether the elements are adjacent in the order of `format` (`torch.Tensor.is_contiguous` with
    /// `memory_format`).
    #[must_use]
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> bool {
        self.layout().is_contiguous_in(format)
    }
}

/// Converts a length or a step to an unsigned number. Fails if it is negative.
#[track_caller]
fn not_negative(op: &'static str, name: &str, number: impl Integer) -> Result<usize> {
    let number = number.into_isize();
    match usize::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) => Err(Error::invalid(op, format!("the {name} is {number}"))),
    }
}

saved! {
    struct Permute { dims: SmallVec<[isize; 6]> }
}

impl OpBackward for Permute {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let mut inverse: SmallVec<[isize; 6]> = SmallVec::from_elem(0, self.dims.len());
        for (to, &from) in self.dims.iter().enumerate() {
            inverse[resolve_dim(from, self.dims.len())?] = to as isize;
        }
        Ok(smallvec![Some(grad.permute(&inverse[..])?)])
    }
}
