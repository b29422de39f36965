//! Elements gathered by tensors of indices.

use smallvec::smallvec;
use warpline_kernels::{indexing, scatter};

use super::as_indices;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::called::Called;
use crate::exec::check_together;
use crate::{Integer, Result, Tensor};

impl Tensor {
    /// Copies the slices of dimension `dim` that `index` selects (`torch.index_select`). `index` must have
    /// dtype `int32` or `int64`, and be a vector or, for a single index, have no dimensions.
    ///
    /// A negative or too large index is an error, which names the index and the line of this call. On the CPU,
    /// this call returns the error. On a GPU, each read of the result, or of a tensor computed from it, returns
    /// the error until the result is overwritten. The next `synchronize` of this thread also returns it, once.
    /// The device stays usable.
    ///
    /// ```
    /// # use warpline::{ErrorKind, tensor};
    /// let t = tensor(&[[1, 2, 3], [4, 5, 6]], ())?;
    /// let columns = t.index_select(1, &tensor([2i64, 0], ())?)?;
    /// assert_eq!(columns.to_vec::<i32>()?, [3, 1, 6, 4]);
    /// let error = t.index_select(0, &tensor([2i64], ())?).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::IndexCheck { index: 2, dim: 0, size: 2 }));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`](crate::ErrorKind::IndexCheck) if an index is out of range. On a GPU, this call
    /// succeeds, and reads of the result return the error.
    /// [`ErrorKind::DimOutOfRange`](crate::ErrorKind::DimOutOfRange) if the tensor lacks the dimension.
    /// [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) if `index` has several dimensions, or if the
    /// tensor has no dimensions and `index` does not have exactly one element.
    /// [`ErrorKind::DTypeMismatch`](crate::ErrorKind::DTypeMismatch) if the dtype of `index` is neither `int32` nor
    /// `int64`. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn index_select(&self, dim: impl Integer, index: &Tensor) -> Result<Self> {
        let dim = dim.into_isize();
        check_together("index_select", self, index)?;
        let dim = self.layout().dim(dim).of("index_select")?;
        let sizes = indexing::index_select_sizes(self.size(), dim, index.size())?;
        let exec = self.exec()?;
        let out = exec.empty(&sizes, self.dtype()).of("index_select")?;
        indexing::index_select(exec.target(), self.as_view(), dim, index.as_view(), out.as_view())?;
        if !out.dtype().is_float() || !should_record(&[self]) {
            return Ok(out);
        }
        record(
            "index_select",
            out,
            &[self],
            IndexSelect { dim: dim as isize, index: index.clone() },
        )
    }

    /// Gathers one element for each element of `index` (`torch.gather`): the element at the same position,
    /// except that along dimension `dim` the position is the value in `index`. `index` must have dtype `int32`
    /// or `int64` and as many dimensions as this tensor. The result has the sizes of `index`, which must not
    /// exceed those of this tensor in any dimension except `dim`.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[1, 2], [3, 4]], ())?;
    /// let index = tensor(&[[0i64, 0], [1, 0]], ())?;
    /// assert_eq!(t.gather(1, &index)?.to_vec::<i32>()?, [1, 1, 4, 3]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) if `index` has a different number of dimensions
    /// than the tensor, or is larger in a dimension other than `dim`. Otherwise the same as [`Tensor::index_select`].
    #[track_caller]
    pub fn gather(&self, dim: impl Integer, index: &Tensor) -> Result<Self> {
        let op = "gather";
        check_together(op, self, index)?;
        let dim = self.layout().dim(dim.into_isize()).of(op)?;
        let exec = self.exec()?;
        let out = exec.empty(index.size(), self.dtype()).of(op)?;
        let (from, at, to) = (self.as_view(), index.as_view(), out.as_view());
        indexing::gather(exec.target(), from, dim, at, to)?;
        if !out.dtype().is_float() || !should_record(&[self]) {
            return Ok(out);
        }
        record("gather", out, &[self], Gather { dim: dim as isize, index: index.clone() })
    }
}

saved! {
    struct IndexSelect { dim: isize, index: Tensor }

    struct Gather { dim: isize, index: Tensor }
}

impl OpBackward for IndexSelect {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        Ok(smallvec![Some(whole.index_add_(self.dim, &self.index, grad)?.clone())])
    }
}

impl OpBackward for Gather {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        Ok(smallvec![Some(whole.scatter_add_(self.dim, &self.index, grad)?.clone())])
    }
}

/// Copies the rows of the matrix `weight` that `indices` select (`torch.nn.functional.embedding`). `indices`
/// must have dtype `int32` or `int64`, and may have any shape. The shape of the result is the shape of
/// `indices`, followed by the length of a row.
///
/// ```
/// # use warpline::{embedding, tensor};
/// let weight = tensor(&[[0.5f32, 1.0], [1.5, 2.0]], ())?;
/// let rows = embedding(&weight, &tensor(&[[1i64, 0]], ())?)?;
/// assert_eq!(rows.size(), [1, 2, 2]);
/// assert_eq!(rows.to_vec::<f32>()?, [1.5, 2.0, 0.5, 1.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`Tensor::index_select`]. [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) if
/// `weight` is not a matrix.
#[track_caller]
pub fn embedding(weight: &Tensor, indices: &Tensor) -> Result<Tensor> {
    embedding_padded(weight, indices, None)
}

/// Computes [`embedding`]. Row `padding`, which must be in range, gets no gradient.
#[track_caller]
pub(crate) fn embedding_padded(
    weight: &Tensor,
    indices: &Tensor,
    padding: Option<usize>,
) -> Result<Tensor> {
    check_together("embedding", weight, indices)?;
    let sizes = indexing::embedding_sizes(weight.size(), indices.size())?;
    let exec = weight.exec()?;
    let out = exec.empty(&sizes, weight.dtype()).of("embedding")?;
    indexing::embedding(exec.target(), weight.as_view(), indices.as_view(), out.as_view())?;
    if !out.dtype().is_float() || !should_record(&[weight]) {
        return Ok(out);
    }
    record("embedding", out, &[weight], Embedding { indices: indices.clone(), padding })
}

saved! {
    struct Embedding { indices: Tensor, padding: Option<usize> }

    struct EmbeddingBackward { indices: Tensor, padding: Option<usize> }
}

impl OpBackward for Embedding {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let rows = inputs.sizes(0)[0];
        Ok(smallvec![Some(embedding_backward(grad, &self.indices, rows, self.padding)?)])
    }
}

impl OpBackward for EmbeddingBackward {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let all = embedding(grad, &self.indices)?;
        let Some(row) = self.padding else { return Ok(smallvec![Some(all)]) };
        let skipped = self.indices.eq(row as i64)?.unsqueeze(-1)?;
        Ok(smallvec![Some(all.masked_fill(&skipped, 0)?)])
    }
}

/// Computes the gradient of an embedding's weight, which has `rows` rows, from the gradient of the result.
/// The gradient of the row `padding` is 0. Gradients are added in the order of the indices, so that training
/// is reproducible.
#[track_caller]
fn embedding_backward(
    grad: &Tensor,
    indices: &Tensor,
    rows: usize,
    padding: Option<usize>,
) -> Result<Tensor> {
    const OP: &str = "embedding_backward";
    let index = as_indices(OP, grad, indices)?.reshape([indices.numel() as isize])?;
    let columns = grad.size().last().copied().unwrap_or(1);
    let by_row = grad.with_layout(match grad.layout().view(&[index.numel(), columns]) {
        Some(layout) => layout,
        None => return embedding_backward(&grad.contiguous()?, indices, rows, padding),
    });
    let exec = grad.exec()?;
    let out = exec.empty(&[rows, columns], grad.dtype()).of(OP)?;
    let (to, from) = (out.as_view(), by_row.as_view());
    scatter::embedding_backward(exec.target(), to, index.as_view(), from, padding)?;
    if !should_record(&[grad]) {
        return Ok(out);
    }
    record(OP, out, &[grad], EmbeddingBackward { indices: indices.clone(), padding })
}
