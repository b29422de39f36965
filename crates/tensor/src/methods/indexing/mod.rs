//! Elements named by tensors of indices or bools: reads, writes, counts.

mod advanced;
pub(super) mod basic;
mod count;
mod gather;
mod masked;
mod reduced;
mod scatter;
mod take;
mod whole;

use warpline_runtime::{Layout, Strides};

use crate::exec::check_together;
use crate::{DType, Result, Tensor};

pub use basic::{Index, IndexRange, IntoIndices};
pub use gather::embedding;
pub(crate) use gather::embedding_padded;
pub use scatter::ScatterReduce;

/// Returns indices as kernels take them: `int64`, on a device that `of` can be used with. `int32` is converted;
/// a kernel refuses other dtypes.
#[track_caller]
pub(super) fn as_indices(op: &'static str, of: &Tensor, index: &Tensor) -> Result<Tensor> {
    check_together(op, of, index)?;
    if index.dtype() == DType::I32 { index.converted(DType::I64) } else { Ok(index.clone()) }
}

/// Expands a vector of indices along `dim` to `sizes`.
fn spread(index: &Tensor, dim: usize, sizes: &[usize]) -> Tensor {
    let mut strides = Strides::from_elem(0, sizes.len());
    if let (Some(to), Some(&stride)) = (strides.get_mut(dim), index.stride().first()) {
        *to = stride;
    }
    index.with_layout(Layout::from_parts(sizes.into(), strides, index.layout().offset()))
}
