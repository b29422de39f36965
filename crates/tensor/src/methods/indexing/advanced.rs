//! Advanced indexing: `t[rows, :, columns]` by tensors of indices and masks.
//!
//! An op with several tensors of indices first combines each tuple of indices into one linear index
//! (`linear_index`, which checks each index against its dimension). It then calls `index_select`, `index_copy`
//! or `index_add` on rows.

use smallvec::SmallVec;
use warpline_kernels::scatter::linear_index;
use warpline_runtime::{Sizes, broadcast};

use super::as_indices;
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::{autocast_operands, keep_operands};
use crate::{CallScope, DType, Error, IntoOptions, OrDefault, Result, Tensor};

/// An indexing whose indices have been checked. The indexed dimensions are moved to the front and merged into
/// one, and the indices are linear indices into the merged dimension.
struct AdvancedIndexing {
    /// Permutation that moves the indexed dimensions to the front.
    order: SmallVec<[isize; 6]>,
    /// Number of indexed dimensions.
    count: usize,
    /// The sizes to which all indices broadcast.
    sizes: Sizes,
    /// First dimension of the result that comes from `sizes`.
    at: usize,
    /// Linear indices into the merged dimension.
    linear: Tensor,
}

impl Tensor {
    /// Gathers the elements at tensors of indices, as Python's `t[rows, :, columns]` does. `indices` has one
    /// entry per dimension: a tensor of indices, or `None` to keep the whole dimension. Dimensions after the
    /// last entry are kept whole. Tensors of indices must be `int64` or `int32`; they broadcast, and negative
    /// indices count from the end. A boolean mask selects its true elements; it is one entry for as many
    /// dimensions as it has. On a GPU, the host waits for the number of true elements.
    ///
    /// In the result, the dimensions of the indices replace the first indexed dimension. They are at the front
    /// if a whole dimension lies between indexed dimensions. The result is a copy. [`Tensor::i`] also accepts
    /// single indices and ranges, for which it returns a view.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[1, 2, 3], [4, 5, 6]], ())?;
    /// let (rows, columns) = (tensor(&[0i64, 1], ())?, tensor(&[2i64, -3], ())?);
    /// assert_eq!(t.index(&[Some(&rows), Some(&columns)])?.to_vec::<i32>()?, [3, 4]);
    /// assert_eq!(t.index(&[None, Some(&columns)])?.to_vec::<i32>()?, [3, 1, 6, 4]);
    /// assert_eq!(t.index(&[Some(&t.gt(4)?)])?.to_vec::<i32>()?, [5, 6]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`] if an index is out of range, as described at [`Tensor::index_select`].
    /// [`ErrorKind::InvalidArgument`] if there are more indices than dimensions. [`ErrorKind::DTypeMismatch`] if the
    /// dtype of an index is not `int64`, `int32` or bool. [`ErrorKind::ShapeMismatch`] if the sizes of a mask differ
    /// from those of the dimensions that it indexes. [`ErrorKind::BroadcastMismatch`] if the indices do not broadcast.
    /// [`ErrorKind::Capture`] if there is a mask and the stream is being captured. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[doc(alias = "__getitem__")]
    #[track_caller]
    pub fn index(&self, indices: &[Option<&Tensor>]) -> Result<Self> {
        let _call = CallScope::enter("index");
        let Some(of) = self.indexed("index", indices)? else { return self.copy() };
        let rows = self.as_rows(&of)?.index_select(0, &of.linear)?;
        of.result(self.size(), &rows)
    }

    /// Replaces the elements that [`Tensor::index`] gathers with `values`, in a copy (`torch.index_put`). If
    /// `accumulate` is true, adds `values` to the elements instead. `values` broadcast. If an element is
    /// indexed several times and `accumulate` is false, it gets the last of its values on the CPU, and any of
    /// them on a GPU. Default of `accumulate`: `false`.
    ///
    /// # Errors
    /// The same as [`Tensor::index`]. [`ErrorKind::DTypeMismatch`] if `values` have a different dtype than this
    /// tensor. [`ErrorKind::ExpandMismatch`] if `values` do not broadcast to the indexed shape.
    #[track_caller]
    pub fn index_put(
        &self,
        indices: &[Option<&Tensor>],
        values: &Tensor,
        accumulate: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Self> {
        const OP: &str = "index_put";
        let _call = CallScope::enter(OP);
        let (this, accumulate) = (self, accumulate.into_options().or(false));
        autocast_operands!(Widest, KeepAll, [this, values] => this.index_put(indices, values, accumulate));
        let Some(of) = self.indexed(OP, indices)? else {
            return self.put_all(OP, values, accumulate);
        };
        let rows = self.as_rows(&of)?;
        let values = of.values(self.size(), values)?;
        let rows = if accumulate {
            rows.index_add(0, &of.linear, &values)
        } else {
            rows.index_copy(0, &of.linear, &values)
        };
        of.unflatten_rows(self.size(), &rows?)
    }

    /// [`Tensor::index_put`] in place: Python's `t[rows, columns] = values`. With `accumulate`, a `+=` that
    /// adds all values of an element that is indexed several times.
    ///
    /// # Errors
    /// The same as [`Tensor::index_put`]. [`ErrorKind::OverlappingOperands`] if `values` share memory with this
    /// tensor.
    #[doc(alias = "__setitem__")]
    #[track_caller]
    pub fn index_put_(
        &self,
        indices: &[Option<&Tensor>],
        values: &Tensor,
        accumulate: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<&Self> {
        const OP: &str = "index_put_";
        let _call = CallScope::enter(OP);
        let accumulate = accumulate.into_options().or(false);
        let _region = keep_operands();
        let Some(of) = self.indexed(OP, indices)? else {
            let all = self.put_all(OP, values, accumulate)?;
            return self.copy_(&all, ());
        };
        let moved = self.permute(&of.order[..])?;
        match moved.view(of.merged_sizes(self.size())) {
            Ok(rows) => {
                let values = of.values(self.size(), values)?;
                if accumulate {
                    rows.index_add_(0, &of.linear, &values)?;
                } else {
                    rows.index_copy_(0, &of.linear, &values)?;
                }
                Ok(self)
            }
            // The strides do not allow a view that merges the dimensions.
            Err(_) => {
                let all = self.index_put(indices, values, accumulate)?;
                self.copy_(&all, ())
            }
        }
    }

    /// Implements [`Tensor::index_put`] for an index without tensors, which selects the whole tensor.
    #[track_caller]
    fn put_all(&self, op: &'static str, values: &Tensor, accumulate: bool) -> Result<Self> {
        values.as_view().check_operand_dtype(op, "the values", self.dtype())?;
        if accumulate {
            let values = values.expand(shape(self.size()))?;
            return self.add(&values);
        }
        values.expand(shape(self.size()))?.copy()
    }

    /// Returns the tensor with the indexed dimensions merged into a first dimension.
    #[track_caller]
    fn as_rows(&self, of: &AdvancedIndexing) -> Result<Self> {
        self.permute(&of.order[..])?.reshape(of.merged_sizes(self.size()))
    }

    /// Checks the indices and combines them. Returns `None` if there are no indices.
    #[track_caller]
    fn indexed(
        &self,
        op: &'static str,
        indices: &[Option<&Tensor>],
    ) -> Result<Option<AdvancedIndexing>> {
        let each = self.each_index(op, indices)?;
        let mut sizes = Sizes::new();
        for (_, index) in &each {
            sizes = broadcast(&sizes, index.size())?;
        }
        let Some((first, _)) = each.first() else { return Ok(None) };
        let side_by_side = each.iter().enumerate().all(|(n, (d, _))| *d == first + n);
        let at = if side_by_side { *first } else { 0 };
        let linear = self.exec()?.empty(&sizes, DType::I64)?;
        for (n, (d, index)) in each.iter().enumerate() {
            let layout = index.layout().expand(&sizes)?;
            let index = index.with_layout(layout);
            let size = self.size()[*d];
            let target = linear.exec()?;
            let to = linear.as_view();
            linear_index(target.target(), op, to, index.as_view(), (*d, size), n == 0)?;
        }
        let is_indexed = |d: &usize| each.iter().any(|(own, _)| own == d);
        let others = (0..self.dim()).filter(|d| !is_indexed(d));
        let order = each.iter().map(|(d, _)| *d).chain(others).map(|d| d as isize).collect();
        let linear = linear.reshape(-1isize)?;
        Ok(Some(AdvancedIndexing { order, count: each.len(), sizes, at, linear }))
    }

    /// Returns the indexed dimensions with their indices. Converts each mask to the indices of its true
    /// elements.
    #[track_caller]
    fn each_index(
        &self,
        op: &'static str,
        indices: &[Option<&Tensor>],
    ) -> Result<SmallVec<[(usize, Tensor); 4]>> {
        let (mut each, mut dim) = (SmallVec::new(), 0);
        for index in indices {
            let Some(index) = index else {
                dim += 1;
                continue;
            };
            // Indices on the host may index a tensor on a GPU, as in PyTorch.
            let here = if index.is_cuda() { (*index).clone() } else { index.to(self.device())? };
            if here.dtype() == DType::Bool {
                let sizes = self.size().get(dim..dim + here.dim());
                if sizes != Some(here.size()) || here.dim() == 0 {
                    let reason = format!(
                        "a mask of sizes {:?} does not fit the dimensions from {dim} on of a \
                         tensor of sizes {:?}",
                        here.size(),
                        self.size()
                    );
                    return Err(Error::shape(op, reason));
                }
                let held = here.nonzero()?;
                for d in 0..here.dim() {
                    each.push((dim + d, held.select(1, d as isize)?));
                }
                dim += here.dim();
            } else {
                each.push((dim, as_indices(op, self, &here)?));
                dim += 1;
            }
        }
        if dim > self.dim() {
            let reason = format!(
                "too many indices for a tensor of dimension {}: they index {dim} dimensions",
                self.dim()
            );
            return Err(Error::invalid(op, reason));
        }
        Ok(each)
    }
}

impl AdvancedIndexing {
    /// Returns the sizes of the dimensions without an index.
    fn unindexed_sizes<'a>(&'a self, sizes: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        self.order[self.count..].iter().map(|&d| sizes[d as usize])
    }

    /// Returns the sizes of the tensor with the indexed dimensions merged into a first dimension.
    fn merged_sizes(&self, sizes: &[usize]) -> Vec<isize> {
        let indexed = self.order[..self.count].iter().map(|&d| sizes[d as usize]);
        [indexed.product()]
            .into_iter()
            .chain(self.unindexed_sizes(sizes))
            .map(|n| n as isize)
            .collect()
    }

    /// Returns the sizes of the result, with the dimensions of the indices moved to the front.
    fn indices_first_sizes(&self, sizes: &[usize]) -> Vec<isize> {
        self.sizes.iter().copied().chain(self.unindexed_sizes(sizes)).map(|n| n as isize).collect()
    }

    /// Returns the permutation that moves the dimensions of the indices from the front to their position in
    /// the result.
    fn result_order(&self) -> Vec<isize> {
        let (n, whole) = (self.sizes.len(), self.order.len() - self.count);
        let before = (n..n + self.at).chain(0..n).chain(n + self.at..n + whole);
        before.map(|d| d as isize).collect()
    }

    /// Converts gathered rows to the result.
    #[track_caller]
    fn result(&self, sizes: &[usize], rows: &Tensor) -> Result<Tensor> {
        rows.reshape(self.indices_first_sizes(sizes))?.permute(self.result_order())
    }

    /// Broadcasts values to the shape of the result, and converts them to rows.
    #[track_caller]
    fn values(&self, sizes: &[usize], values: &Tensor) -> Result<Tensor> {
        let (front, back) = (self.indices_first_sizes(sizes), self.result_order());
        let all: Vec<isize> = back.iter().map(|&d| front[d as usize]).collect();
        let moved = values.expand(all)?.permute(inverse(&back))?;
        let mut rows = vec![self.linear.numel() as isize];
        rows.extend(self.unindexed_sizes(sizes).map(|n| n as isize));
        moved.reshape(rows)
    }

    /// Converts rows back to the shape of the indexed tensor.
    #[track_caller]
    fn unflatten_rows(&self, sizes: &[usize], rows: &Tensor) -> Result<Tensor> {
        let moved: Vec<isize> = self.order.iter().map(|&d| sizes[d as usize] as isize).collect();
        rows.reshape(moved)?.permute(inverse(&self.order))
    }
}

/// Returns the inverse of a permutation.
fn inverse(order: &[isize]) -> Vec<isize> {
    let mut inverse = vec![0; order.len()];
    for (at, &d) in order.iter().enumerate() {
        inverse[d as usize] = at as isize;
    }
    inverse
}

fn shape(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|&n| n as isize).collect()
}
