//! Elements picked by tensors of indices.

use smallvec::smallvec;
use warpline_kernels::{indexing, scatter};
use warpline_runtime::launch::report_as;

use super::as_indices;
use crate::autograd::{Backward, Gradients, Inputs, record, saved, wanted};
use crate::called::Called;
use crate::exec::check_together;
use crate::{Result, Site, Tensor};

impl Tensor {
    /// Of dimension `dim` what `index` names, one after the other, in memory of its own
    /// (`torch.index_select`). `index` is `int32` or `int64`, a vector or a single number.
    ///
    /// An index that is negative or too large is an error, which names the index and this call. On the
    /// CPU this call returns it. On a GPU each read of the result, or of anything computed from it,
    /// returns it until the result is overwritten, and this thread's next `synchronize` does, once. The
    /// device stays usable.
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
    /// [`ErrorKind::IndexCheck`](crate::ErrorKind::IndexCheck) as above;
    /// [`ErrorKind::DimOutOfRange`](crate::ErrorKind::DimOutOfRange);
    /// [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) for an index of several dimensions;
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for one of another dtype;
    /// [`ErrorKind::DeviceMismatch`](crate::ErrorKind::DeviceMismatch).
    #[track_caller]
    pub fn index_select(&self, dim: isize, index: &Tensor) -> Result<Self> {
        check_together("index_select", self, index)?;
        let dim = self.layout().dim(dim).of("index_select")?;
        let sizes = indexing::index_select_sizes(self.size(), dim, index.size())?;
        let exec = self.exec()?;
        let out = exec.empty(&sizes, self.dtype()).of("index_select")?;
        indexing::index_select(exec.target(), self.as_view(), dim, index.as_view(), out.as_view())?;
        if !out.dtype().is_float() || !wanted(&[self]) {
            return Ok(out);
        }
        record(
            "index_select",
            out,
            &[self],
            IndexSelect { dim: dim as isize, index: index.clone() },
        )
    }

    /// The elements at the places of `index`, but along dimension `dim` at what it holds
    /// (`torch.gather`). `index` is `int32` or `int64`, has as many dimensions, and is no larger in
    /// any but `dim`; the result has its sizes. Indices out of range are errors as of
    /// [`Tensor::index_select`].
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
    /// As [`Tensor::index_select`].
    #[track_caller]
    pub fn gather(&self, dim: isize, index: &Tensor) -> Result<Self> {
        self.gather_as("gather", dim, index)
    }

    /// [`Tensor::gather`] within the op `op`.
    #[track_caller]
    pub(crate) fn gather_as(&self, op: &'static str, dim: isize, index: &Tensor) -> Result<Self> {
        check_together(op, self, index)?;
        let dim = self.layout().dim(dim).of(op)?;
        let exec = self.exec()?;
        let out = exec.empty(index.size(), self.dtype()).of(op)?;
        let (from, at, to) = (self.as_view(), index.as_view(), out.as_view());
        indexing::gather_as(op, exec.target(), from, dim, at, to)?;
        if !out.dtype().is_float() || !wanted(&[self]) {
            return Ok(out);
        }
        let (dim, index, call) = (dim as isize, index.clone(), Site::here(op));
        record("gather", out, &[self], Gather { dim, index, call })
    }
}

saved! {
    struct IndexSelect { dim: isize, index: Tensor }

    struct Gather {
        dim: isize,
        index: Tensor,
        /// The op that gathers. The node is named as in PyTorch, which gathers within other ops, too.
        call: Site,
    }
}

impl Backward for IndexSelect {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        Ok(smallvec![Some(whole.index_add_(self.dim, &self.index, grad)?.clone())])
    }
}

impl Backward for Gather {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        let add = || whole.scatter_add_(self.dim, &self.index, grad).cloned();
        Ok(smallvec![Some(report_as(Some(self.call), add)?)])
    }
}

/// The rows of the matrix `weight` that `indices` name, which are `int32` or `int64` and of any
/// sizes: the result has these and then a row's (`torch.nn.functional.embedding`). Indices out of
/// range are errors as of [`Tensor::index_select`].
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
/// As [`Tensor::index_select`]; [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) unless `weight`
/// has two dimensions.
#[track_caller]
pub fn embedding(weight: &Tensor, indices: &Tensor) -> Result<Tensor> {
    embedding_padded(weight, indices, None)
}

/// [`embedding`] of which the row `padding`, an index that is in range, gets no gradient.
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
    if !out.dtype().is_float() || !wanted(&[weight]) {
        return Ok(out);
    }
    record("embedding", out, &[weight], Embedding { indices: indices.clone(), padding })
}

saved! {
    struct Embedding { indices: Tensor, padding: Option<usize> }

    struct EmbeddingBackward { indices: Tensor, padding: Option<usize> }
}

impl Backward for Embedding {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let rows = inputs.sizes(0)[0];
        Ok(smallvec![Some(embedding_backward(grad, &self.indices, rows, self.padding)?)])
    }
}

impl Backward for EmbeddingBackward {
    fn backward(&self, grad: &Tensor, _: &Inputs<'_>) -> Result<Gradients> {
        let all = embedding(grad, &self.indices)?;
        let Some(row) = self.padding else { return Ok(smallvec![Some(all)]) };
        let skipped = self.indices.eq(row as i64)?.unsqueeze(-1)?;
        Ok(smallvec![Some(all.masked_fill(&skipped, 0)?)])
    }
}

/// The gradient of an embedding's weight of `rows` rows, from that of its result; of the row `padding` it is 0.
/// Sums have the order of the indices, so that a training run is the same each time.
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
    if !wanted(&[grad]) {
        return Ok(out);
    }
    record(OP, out, &[grad], EmbeddingBackward { indices: indices.clone(), padding })
}
