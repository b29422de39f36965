//! Writes and reductions at the positions of a tensor of indices: `scatter` and similar methods.

use smallvec::smallvec;
use warpline_kernels::scatter::{self, Reduce};

use super::as_indices;
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, check_in_place, record, record_in_place, saved,
    should_record, should_record_in_place,
};
use crate::called::Called;
use crate::exec::check_together;
use crate::methods::TensorOrScalar;
use crate::methods::inplace::check_filled;
use crate::{CallScope, Integer, IntoOperand, Result, Scalar, Tensor};

impl Tensor {
    /// Copies this tensor, and writes each element of `src` to a position in the copy (`torch.scatter`). Along
    /// dimension `dim`, the position is the value in `index`. In all other dimensions, it is the position of the
    /// element in `src`. If `src` is a number, writes it to all these positions. `index` must have dtype `int64` or
    /// `int32` and as many dimensions as this tensor. In every dimension, `index` must not be larger than `src`. In
    /// every dimension except `dim`, `index` must not be larger than this tensor. If several elements have the same
    /// position, the CPU writes the last of them, and a GPU any of them.
    ///
    /// ```
    /// # use warpline::{tensor, zeros};
    /// let index = tensor(&[[1i64], [0]], ())?;
    /// let t = zeros([2, 2], ())?.scatter(1, &index, &tensor(&[[5f32], [6.0]], ())?)?;
    /// assert_eq!(t.to_vec::<f32>()?, [0.0, 5.0, 6.0, 0.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`] if an index is out of range, as described at [`Tensor::index_select`].
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::ShapeMismatch`] if the
    /// tensor, `index` and `src` differ in the number of dimensions, or if `index` is larger than `src`, or
    /// larger than the tensor in a dimension other than `dim`. [`ErrorKind::DTypeMismatch`] if `src` has a
    /// different dtype than this tensor, or if the dtype of `index` is neither `int64` nor `int32`.
    /// [`ErrorKind::InvalidArgument`] if this tensor's dtype cannot hold the number `src`. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn scatter<'a>(
        &self,
        dim: impl Integer,
        index: &Tensor,
        src: impl IntoOperand<'a>,
    ) -> Result<Self> {
        let _call = CallScope::enter("scatter");
        self.put("scatter", dim.into_isize(), index, src.into_operand(), false)
    }

    /// [`Tensor::scatter`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`]. [`ErrorKind::OverlappingOperands`] if `src` shares memory with this
    /// tensor.
    #[track_caller]
    pub fn scatter_<'a>(
        &self,
        dim: impl Integer,
        index: &Tensor,
        src: impl IntoOperand<'a>,
    ) -> Result<&Self> {
        self.put("scatter_", dim.into_isize(), index, src.into_operand(), true)?;
        Ok(self)
    }

    /// Adds each element of `src` to the element that [`Tensor::scatter`] would overwrite
    /// (`torch.scatter_add`). Elements are added in the order of the indices. Only on a GPU with many indices
    /// and a large tensor, the order varies from run to run.
    ///
    /// ```
    /// # use warpline::{tensor, zeros};
    /// let sums = zeros([2], ())?;
    /// sums.scatter_add_(0, &tensor(&[0i64, 1, 0], ())?, &tensor(&[1f32, 2.0, 3.0], ())?)?;
    /// assert_eq!(sums.to_vec::<f32>()?, [4.0, 2.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_add(&self, dim: impl Integer, index: &Tensor, src: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("scatter_add");
        let (this, dim) = (self, dim.into_isize());
        autocast_operands!(Widest, Keep, [this, src] => this.scatter_add(dim, index, src));
        self.scattered("scatter_add", dim, index, src, Reduce::Sum, false)
    }

    /// [`Tensor::scatter_add`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::scatter_`].
    #[track_caller]
    pub fn scatter_add_(&self, dim: impl Integer, index: &Tensor, src: &Tensor) -> Result<&Self> {
        self.scattered("scatter_add_", dim.into_isize(), index, src, Reduce::Sum, true)?;
        Ok(self)
    }

    /// Runs [`Tensor::scatter`] or [`Tensor::scatter_`] as a part of the op `op`. Errors name `op`.
    #[track_caller]
    pub(crate) fn put(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: TensorOrScalar<'_>,
        in_place: bool,
    ) -> Result<Self> {
        let number;
        let src = match src {
            TensorOrScalar::Tensor(src) => src,
            TensorOrScalar::Scalar(value) => {
                number = self.expanded_scalar(op, value, index.size())?;
                &number
            }
        };
        self.scattered(op, dim, index, src, Reduce::Assign, in_place)
    }

    /// Computes [`Tensor::scatter`] or [`Tensor::scatter_add`], and records the op for autograd.
    #[track_caller]
    pub(super) fn scattered(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: Reduce,
        in_place: bool,
    ) -> Result<Self> {
        let wanted = self.dtype().is_float()
            && if in_place {
                should_record_in_place(self, &[src])
            } else {
                should_record(&[self, src])
            };
        if wanted && in_place {
            check_in_place(op, self)?;
        }
        let index = &as_indices(op, self, index)?;
        let out = if in_place { self.clone() } else { self.duplicate()? };
        out.scatter_raw(op, dim, index, src, reduce)?;
        if !wanted {
            return Ok(out);
        }
        let replaces = reduce == Reduce::Assign;
        let index = (replaces || src.requires_grad()).then(|| index.clone());
        let saved = Scatter { dim, index, replaces };
        if in_place {
            record_in_place(op, &[self, src], saved)?;
            return Ok(out);
        }
        record(op, out, &[self, src], saved)
    }

    /// Returns one element of this dtype, expanded to `sizes`.
    #[track_caller]
    pub(super) fn expanded_scalar(
        &self,
        op: &'static str,
        value: Scalar,
        sizes: &[usize],
    ) -> Result<Self> {
        check_filled(op, value, self.dtype())?;
        let one = self.new_full((), value, ()).of(op)?;
        Ok(one.with_layout(one.layout().expand(sizes)?))
    }

    #[track_caller]
    pub(super) fn scatter_raw(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: Reduce,
    ) -> Result<()> {
        let index = as_indices(op, self, index)?;
        check_together(op, self, src)?;
        let dim = self.layout().dim(dim).of(op)?;
        let (index, src) = (index.as_view(), src.as_view());
        scatter::scatter(self.exec()?.target(), op, self.as_view(), dim, index, src, reduce)
    }
}

saved! {
    struct Scatter {
        dim: isize,
        /// The index, which gradients need. `None` if elements are added and the source requires no gradient.
        index: Option<Tensor>,
        /// Whether elements are replaced. If false, the source is added to them.
        replaces: bool,
    }
}

impl OpBackward for Scatter {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let of_self = inputs.gradient(0, || match &self.index {
            Some(index) if self.replaces => grad.scatter(self.dim, index, 0),
            _ => Ok(grad.clone()),
        })?;
        let of_src = |index| pad_gradient(&grad.gather(self.dim, index)?, inputs.sizes(1));
        let index = self.index.as_ref().filter(|_| inputs.needs(1));
        Ok(smallvec![of_self, index.map(of_src).transpose()?])
    }
}

/// Pads a gradient with zeros at the end of each dimension, to `sizes`.
pub(super) fn pad_gradient(grad: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    if grad.size() == sizes {
        return Ok(grad.clone());
    }
    let all = grad.new_zeros(sizes, ())?;
    let mut part = all.clone();
    for (d, &n) in grad.size().iter().enumerate() {
        part = part.narrow(d as isize, 0, n)?;
    }
    part.copy_(grad, ())?;
    Ok(all)
}
