//! Elements named by tensors of indices or bools: read, written, counted.

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

/// Indices as kernels take them: `int64`, beside what they index. `int32` is converted; what any other dtype is,
/// the kernel says.
#[track_caller]
pub(super) fn as_indices(op: &'static str, of: &Tensor, index: &Tensor) -> Result<Tensor> {
    check_together(op, of, index)?;
    if index.dtype() == DType::I32 { index.converted(DType::I64) } else { Ok(index.clone()) }
}

/// A vector of indices as those of each element of `sizes` along `dim`, of which there are as many.
fn spread(index: &Tensor, dim: usize, sizes: &[usize]) -> Tensor {
    let mut strides = Strides::from_elem(0, sizes.len());
    if let (Some(to), Some(&stride)) = (strides.get_mut(dim), index.stride().first()) {
        *to = stride;
    }
    index.with_layout(Layout::from_parts(sizes.into(), strides, index.layout().offset()))
}
