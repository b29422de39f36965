//! Tensors in a memory format.

use warpline_kernels::copy::copy;
use warpline_runtime::testing::Tensor;
use warpline_runtime::{DType, Layout, MemoryFormat, Target};

/// Creates a tensor of these values in a memory format.
pub(crate) fn placed(
    target: Target<'_>,
    dtype: DType,
    sizes: &[usize],
    values: &[f64],
    format: MemoryFormat,
) -> Tensor {
    let from = Tensor::new(target, dtype, sizes, values);
    let to = Tensor::garbage(target, dtype, sizes).with(|_| Layout::in_format(sizes, format));
    copy(target, from.view(), to.view()).unwrap();
    to
}
