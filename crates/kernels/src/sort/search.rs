//! Binary search in sorted rows: `searchsorted`.

use super::cpu;
use crate::programs::{NUMBERS, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct};

const OP: &str = "searchsorted";

kernels! {
    pub(super) SEARCH = "searchsorted", NUMBERS, |_, ty| {
        let of = Source::new().with::<Search>().push(module::ELEMENT).push(module::WALK);
        of.push(include_str!("search.cuh")).push(&format!("SEARCH(searchsorted_{ty}, {ty})"))
    } => {
        // SAFETY: only `searchsorted` makes `Search`es, with the sizes and strides of the launch's
        // operands. Each element of the result belongs to one thread.
        unsafe COUNT: Kernel<Search, 3> = number cpu::searchsorted;
    }
}

cuda_struct! {
    /// Sorted rows have `size` elements with stride `step`. `walk` gives, for each value, the
    /// offsets of its sorted row, of the value, and of its result.
    pub(super) struct Search {
        pub(super) elements: u64,
        pub(super) size: u64,
        pub(super) step: i64,
        pub(super) right: u64,
        pub(super) walk: Walk<3>,
    }
}

/// Counts, for each value, the elements of a sorted row that are less than the value or, if `right`
/// is true, less than or equal to it (`torch.searchsorted`).
///
/// `sorted` must be one vector for all values, or have the sizes of `values` except in the last
/// dimension. `sorted` and `values` must have the same dtype, which can be any dtype except bool.
/// `out` must have dtype `int64` and the sizes of `values`.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `values` has a different dtype than `sorted`, or `out` does
///   not have dtype `int64`.
/// - [`ErrorKind::UnsupportedDType`] if the dtype is bool.
/// - [`ErrorKind::ShapeMismatch`] if `sorted` is not a vector and differs from `values` in the
///   number of dimensions or in a size before the last, or if `out` differs from `values` in a
///   size.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn searchsorted(
    target: Target<'_>,
    sorted: View<'_>,
    values: View<'_>,
    out: View<'_>,
    right: bool,
) -> Result<()> {
    values.check_dtype(OP, sorted.dtype)?;
    out.check_dtype(OP, DType::I64)?;
    COUNT.check_dtype(OP, sorted.dtype)?;
    let (rows, sizes) = (sorted.sizes(), values.sizes());
    let ndim = sizes.len();
    let alike = rows.len() == ndim && ndim > 0 && rows[..ndim - 1] == sizes[..ndim - 1];
    if !(rows.len() == 1 || alike) || out.sizes() != sizes {
        let reason = format!(
            "the sorted rows have sizes {rows:?} and the values {sizes:?}; there must be one \
             sorted row for all values, or one for each row of values"
        );
        return Err(Error::shape(OP, reason));
    }
    let operands = [sorted.read(), values.read(), out.write()];
    check_operands(OP, &operands)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let (&size, &step) = match (rows.last(), sorted.strides().last()) {
        (Some(size), Some(step)) => (size, step),
        _ => (&1, &0),
    };
    let row_stride = |d: usize| {
        if rows.len() == ndim && d + 1 < ndim { sorted.strides()[d] } else { 0 }
    };
    let dims = (0..ndim).rev();
    let dims = dims.map(|d| (sizes[d], [row_stride(d), values.strides()[d], out.strides()[d]]));
    let params = Search {
        elements: out.numel() as u64,
        size: size as u64,
        step: step as i64,
        right: right.into(),
        walk: Walk::new(OP, dims)?,
    };
    COUNT.launch(target, OP, &operands, &params, Grid::cover(out.numel(), BLOCK))
}
