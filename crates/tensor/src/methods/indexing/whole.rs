//! Ops on slices along a dimension, selected by a vector of indices: `index_add` and similar methods.

use smallvec::smallvec;
use warpline_kernels::scatter;

use super::{as_indices, expand_index};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, check_in_place, record, record_in_place, saved,
    should_record, should_record_in_place,
};
use crate::called::Called;
use crate::exec::check_together;
use crate::{CallScope, Error, Integer, Result, Scalar, Tensor};

impl Tensor {
    /// Adds slice `i` of `source` along `dim` to slice `index[i]` of this tensor, for all `i`
    /// (`torch.index_add`). `index` must be a vector of dtype `int64` or `int32` with one index per slice of
    /// `source`. Slices are added in the order of `index`, so sums are deterministic. The exception is a GPU
    /// with both many indices and many slices, such as a million of each.
    ///
    /// ```
    /// # use warpline::{tensor, zeros};
    /// let t = zeros([2, 2], ())?;
    /// t.index_add_(0, &tensor(&[1i64, 1], ())?, &tensor(&[[1f32, 2.0], [3.0, 4.0]], ())?)?;
    /// assert_eq!(t.to_vec::<f32>()?, [0.0, 0.0, 4.0, 6.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`], with `source` for `src`.
    #[track_caller]
    pub fn index_add(&self, dim: impl Integer, index: &Tensor, source: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("index_add");
        self.added("index_add", dim.into_isize(), index, source, false)
    }

    /// [`Tensor::index_add`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::index_add`]. [`ErrorKind::OverlappingOperands`] if `source` shares memory with
    /// this tensor.
    #[track_caller]
    pub fn index_add_(&self, dim: impl Integer, index: &Tensor, source: &Tensor) -> Result<&Self> {
        self.added("index_add_", dim.into_isize(), index, source, true)?;
        Ok(self)
    }

    /// [`Tensor::index_add`] of `alpha * source` (`torch.index_add` with `alpha`).
    ///
    /// # Errors
    /// The same as [`Tensor::index_add`] and [`Tensor::mul`].
    #[track_caller]
    pub fn index_add_scaled(
        &self,
        dim: impl Integer,
        index: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<Self> {
        let op = "index_add_scaled";
        let _call = CallScope::enter(op);
        self.added(op, dim.into_isize(), index, &source.mul(alpha.into())?, false)
    }

    /// [`Tensor::index_add_scaled`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::index_add_`] and [`Tensor::mul`].
    #[track_caller]
    pub fn index_add_scaled_(
        &self,
        dim: impl Integer,
        index: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<&Self> {
        let op = "index_add_scaled_";
        let _call = CallScope::enter(op);
        self.added(op, dim.into_isize(), index, &source.mul(alpha.into())?, true)?;
        Ok(self)
    }

    /// Replaces slice `index[i]` of this tensor along `dim` with slice `i` of `source`, for all `i`
    /// (`torch.index_copy`). If an index occurs several times, the CPU writes the last of its slices, and a GPU
    /// any of them.
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`], with `source` for `src`.
    #[track_caller]
    pub fn index_copy(&self, dim: impl Integer, index: &Tensor, source: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("index_copy");
        let (this, dim) = (self, dim.into_isize());
        autocast_operands!(Keep, Widest, [this, source] => this.index_copy(dim, index, source));
        let index = self.parts("index_copy", dim, index, Some(source.size()))?;
        self.put("index_copy", dim, &index, source.into(), false)
    }

    /// [`Tensor::index_copy`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::index_add_`].
    #[track_caller]
    pub fn index_copy_(&self, dim: impl Integer, index: &Tensor, source: &Tensor) -> Result<&Self> {
        let dim = dim.into_isize();
        let index = self.parts("index_copy_", dim, index, Some(source.size()))?;
        self.put("index_copy_", dim, &index, source.into(), true)?;
        Ok(self)
    }

    /// Replaces all elements of the slices `index[i]` along `dim` with `value` (`torch.index_fill`).
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`] of a number.
    #[track_caller]
    pub fn index_fill(
        &self,
        dim: impl Integer,
        index: &Tensor,
        value: impl Into<Scalar>,
    ) -> Result<Self> {
        let _call = CallScope::enter("index_fill");
        let dim = dim.into_isize();
        let index = self.parts("index_fill", dim, index, None)?;
        self.put("index_fill", dim, &index, value.into().into(), false)
    }

    /// [`Tensor::index_fill`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::index_fill`].
    #[track_caller]
    pub fn index_fill_(
        &self,
        dim: impl Integer,
        index: &Tensor,
        value: impl Into<Scalar>,
    ) -> Result<&Self> {
        let dim = dim.into_isize();
        let index = self.parts("index_fill_", dim, index, None)?;
        self.put("index_fill_", dim, &index, value.into().into(), true)?;
        Ok(self)
    }

    #[track_caller]
    fn added(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        source: &Tensor,
        in_place: bool,
    ) -> Result<Self> {
        let wanted = self.dtype().is_float()
            && if in_place {
                should_record_in_place(self, &[source])
            } else {
                should_record(&[self, source])
            };
        if wanted && in_place {
            check_in_place(op, self)?;
        }
        let index = &as_indices(op, self, index)?;
        check_together(op, self, source)?;
        let d = self.layout().dim(dim).of(op)?;
        let out = if in_place { self.clone() } else { self.duplicate()? };
        let (to, at, from) = (out.as_view(), index.as_view(), source.as_view());
        scatter::index_add_as(op, self.exec()?.target(), to, d, at, from)?;
        if !wanted {
            return Ok(out);
        }
        let saved = IndexAdd { dim, index: source.requires_grad().then(|| index.clone()) };
        if in_place {
            record_in_place(op, &[self, source], saved)?;
            return Ok(out);
        }
        record(op, out, &[self, source], saved)
    }

    /// Expands a vector of indices to one index per element of the selected slices. Fails if `sizes` is given
    /// and differs from the sizes of all selected slices together.
    #[track_caller]
    fn parts(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        sizes: Option<&[usize]>,
    ) -> Result<Tensor> {
        let index = as_indices(op, self, index)?;
        let d = self.layout().dim(dim).of(op)?;
        let mut all = self.layout().sizes().to_vec();
        if let Some(size) = all.get_mut(d) {
            *size = index.numel();
        }
        let one = index.dim() <= 1 && (self.dim() > 0 || index.numel() == 1);
        if !one || sizes.is_some_and(|sizes| sizes != all) {
            let reason = format!(
                "an index of sizes {:?} into dimension {d} of a tensor of sizes {:?} does not fit \
                 a source of sizes {:?}; there must be one index for each slice of the source, and \
                 the source's other sizes must be the tensor's",
                index.size(),
                self.size(),
                sizes.unwrap_or(&all)
            );
            return Err(Error::shape(op, reason));
        }
        Ok(expand_index(&index, d, &all))
    }
}

saved! {
    struct IndexAdd {
        dim: isize,
        /// The index, which the gradient of the source needs. `None` if the source requires no gradient.
        index: Option<Tensor>,
    }
}

impl OpBackward for IndexAdd {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let of_source = self.index.as_ref().map(|index| grad.index_select(self.dim, index));
        let of_source = of_source.transpose()?;
        Ok(smallvec![inputs.needs(0).then(|| grad.clone()), of_source])
    }
}
