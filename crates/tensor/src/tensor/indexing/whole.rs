//! Whole parts along a dimension, named by a vector of indices: `index_add` and its like.

use warpline_kernels::scatter::{self, Reduce};

use super::{as_indices, spread};
use crate::called::Called;
use crate::exec::check_together;
use crate::{Error, Result, Scalar, Tensor};

use std::panic::Location;

impl Tensor {
    /// With each part of `source` along `dim` added to the part that `index` names, one after the other
    /// (`torch.index_add`). `index` is `int64` or `int32`, a vector with an index for each part. Sums are taken
    /// in its order, so that they are the same each time; but on a GPU not those of millions of indices into as
    /// many parts. Indices out of range are errors as of [`Tensor::index_select`].
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
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn index_add(&self, dim: isize, index: &Tensor, source: &Tensor) -> Result<Self> {
        let out = self.duplicate()?;
        out.index_add_raw("index_add", dim, index, source)?;
        Ok(out)
    }

    /// [`Tensor::index_add`] in place.
    ///
    /// # Errors
    /// As there; [`Error::OverlappingOperands`] where `source` shares memory with this tensor.
    #[track_caller]
    pub fn index_add_(&self, dim: isize, index: &Tensor, source: &Tensor) -> Result<&Self> {
        self.index_add_raw("index_add_", dim, index, source)?;
        Ok(self)
    }

    /// [`Tensor::index_add`] of `alpha * source`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn index_add_scaled(
        &self,
        dim: isize,
        index: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<Self> {
        self.index_add(dim, index, &source.mul(alpha.into()).of("index_add")?)
    }

    /// [`Tensor::index_add_scaled`] in place.
    ///
    /// # Errors
    /// As [`Tensor::index_add_`].
    #[track_caller]
    pub fn index_add_scaled_(
        &self,
        dim: isize,
        index: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<&Self> {
        self.index_add_(dim, index, &source.mul(alpha.into()).of("index_add_")?)
    }

    /// With each part of `source` along `dim` in place of the part that `index` names
    /// (`torch.index_copy`). Where several name one, the last counts on the CPU, and any on a GPU.
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn index_copy(&self, dim: isize, index: &Tensor, source: &Tensor) -> Result<Self> {
        let index = self.parts("index_copy", dim, index, Some(source.size()))?;
        self.scatter(dim, &index, source).of("index_copy")
    }

    /// [`Tensor::index_copy`] in place.
    ///
    /// # Errors
    /// As [`Tensor::index_add_`].
    #[track_caller]
    pub fn index_copy_(&self, dim: isize, index: &Tensor, source: &Tensor) -> Result<&Self> {
        let index = self.parts("index_copy_", dim, index, Some(source.size()))?;
        self.scatter_(dim, &index, source).of("index_copy_")
    }

    /// With `value` in all parts along `dim` that `index` names (`torch.index_fill`).
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn index_fill(&self, dim: isize, index: &Tensor, value: impl Into<Scalar>) -> Result<Self> {
        let index = self.parts("index_fill", dim, index, None)?;
        self.scatter(dim, &index, value.into()).of("index_fill")
    }

    /// [`Tensor::index_fill`] in place.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn index_fill_(
        &self,
        dim: isize,
        index: &Tensor,
        value: impl Into<Scalar>,
    ) -> Result<&Self> {
        let index = self.parts("index_fill_", dim, index, None)?;
        self.scatter_(dim, &index, value.into()).of("index_fill_")
    }

    #[track_caller]
    pub(super) fn index_add_raw(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        source: &Tensor,
    ) -> Result<()> {
        let index = as_indices(op, self, index)?;
        check_together(op, self, source)?;
        let dim = self.layout().dim(dim).of(op)?;
        let (index, source) = (index.as_view(), source.as_view());
        scatter::index_add(self.exec()?.target(), self.as_view(), dim, index, source).of(op)
    }

    /// A vector of indices for each element of the parts that it names; what is put there has these sizes, or
    /// those that follow.
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
                "an index of sizes {:?} into dimension {d} of {:?}, for a source of {:?}; there must be one \
                 index for each part of the source, and its other sizes be this tensor's",
                index.size(),
                self.size(),
                sizes.unwrap_or(&all)
            );
            return Err(Error::ShapeMismatch { location: Location::caller(), op, reason });
        }
        Ok(spread(&index, d, &all))
    }
}

/// The gradient of an embedding's weight of `rows` rows, from that of its result; of the row `padding` it is 0.
/// Sums have the order of the indices, so that a training run is the same each time.
#[track_caller]
pub(crate) fn embedding_backward(
    grad: &Tensor,
    indices: &Tensor,
    rows: usize,
    padding: Option<usize>,
) -> Result<Tensor> {
    const OP: &str = "embedding_backward";
    let index = as_indices(OP, grad, indices)?.reshape(-1).of(OP)?;
    let columns = grad.size().last().copied().unwrap_or(1);
    let grad = grad.reshape([index.numel() as isize, columns as isize]).of(OP)?;
    let exec = grad.exec()?;
    let out = exec.empty(&[rows, columns], grad.dtype()).of(OP)?;
    let (to, from) = (out.as_view(), grad.as_view());
    scatter::embedding_backward(exec.target(), to, index.as_view(), from, padding)?;
    Ok(out)
}

/// What [`Tensor::scatter_raw`] of whole parts is called with.
#[track_caller]
pub(super) fn put_rows(out: &Tensor, op: &'static str, index: &Tensor, rows: &Tensor) -> Result<()> {
    let index = spread(index, 0, rows.size());
    out.scatter_raw(op, 0, &index, rows, Reduce::Assign)
}
