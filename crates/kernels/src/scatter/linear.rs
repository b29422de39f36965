//! Conversion of indices along several dimensions to linear indices.

use super::cpu;
use crate::programs::kernels;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, Result, Target, View, cuda_struct};

kernels! {
    pub(super) LINEAR = "linear_index", &[""], |_, _| {
        let of = Source::new().with::<Linear>().push(module::REPORT).push(module::WALK);
        of.push(include_str!("linear.cuh"))
    } => {
        // SAFETY: only `linear_index` makes `Linear`s, with the sizes and strides of the launch's
        // operands. Each element of the result belongs to one thread. For the first dimension, the
        // thread does not read the element, which may be uninitialized.
        unsafe ADVANCE: Kernel<Linear, 2> = any cpu::linear_index;
    }
}

cuda_struct! {
    pub(super) struct Linear {
        pub(super) report: Report,
        pub(super) elements: u64,
        pub(super) first: u64,
        pub(super) walk: Walk<2>,
    }
}

/// Extends linear indices by dimension `dim`, which has size `size`: computes `out = out * size +
/// index`, or `out = index` if `first` is true. A negative index counts from the end. Both views
/// must have dtype `int64` and the same sizes.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if a view does not have dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if the sizes differ.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if the views share memory.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn linear_index(
    target: Target<'_>,
    op: &'static str,
    out: View<'_>,
    index: View<'_>,
    (dim, size): (usize, usize),
    first: bool,
) -> Result<()> {
    super::check_index_dtype(op, index)?;
    super::check_index_dtype(op, out)?;
    if out.sizes() != index.sizes() {
        let reason =
            format!("the indices have different sizes, {:?} and {:?}", out.sizes(), index.sizes());
        return Err(Error::shape(op, reason));
    }
    let operands = [index.read(), if first { out.write() } else { out.read_write() }];
    check_operands(op, &operands)?;
    let dims = (0..out.sizes().len()).rev();
    let dims = dims.map(|d| (out.sizes()[d], [index.strides()[d], out.strides()[d]]));
    let elements = out.numel();
    let params = Linear {
        report: Report::new(dim, size),
        elements: elements as u64,
        first: first.into(),
        walk: Walk::new(op, dims)?,
    };
    ADVANCE.launch(target, op, &operands, &params, Grid::cover(elements, BLOCK))
}
