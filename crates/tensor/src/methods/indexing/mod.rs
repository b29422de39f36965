//! Indexing by numbers, ranges, and tensors of indices or bools: reads, writes, counts.

mod advanced;
pub(super) mod basic;
mod count;
mod gather;
mod masked;
mod scatter;
mod scatter_reduce;
mod take;
mod whole;

use warpline_runtime::{Layout, Strides};

use crate::exec::check_together;
use crate::{DType, Result, Tensor};

pub use basic::{Ellipsis, IndexRange, IntoIndices, TensorIndex};
pub use count::{BincountOptions, HistcOptions};
pub use gather::embedding;
pub(crate) use gather::embedding_padded;
pub use scatter_reduce::ScatterReduce;

/// Converts indices to `int64`, which kernels require. Fails if they cannot be used on the device of `of`.
/// Converts only `int32`; kernels refuse other dtypes.
#[track_caller]
pub(super) fn as_indices(op: &'static str, of: &Tensor, index: &Tensor) -> Result<Tensor> {
    check_together(op, of, index)?;
    if index.dtype() == DType::I32 { index.converted(DType::I64) } else { Ok(index.clone()) }
}

/// Expands a vector of indices along `dim` to `sizes`.
fn expand_index(index: &Tensor, dim: usize, sizes: &[usize]) -> Tensor {
    let mut strides = Strides::from_elem(0, sizes.len());
    if let (Some(to), Some(&stride)) = (strides.get_mut(dim), index.stride().first()) {
        *to = stride;
    }
    index.with_layout(Layout::from_parts(sizes.into(), strides, index.layout().offset()))
}
