//! Dimensions and sizes of operands, which several ops check and walk alike.

use warpline_runtime::iter::Walk;
use warpline_runtime::{DType, Error, ErrorKind, Layout, Result, View};

/// Returns an error unless operands of `ndim` dimensions have dimension `dim`. A scalar has
/// dimension 0.
///
/// # Errors
/// [`ErrorKind::DimOutOfRange`] if `dim` is not less than `ndim.max(1)`.
#[track_caller]
pub(crate) fn check_dim(op: &'static str, dim: usize, ndim: usize) -> Result<()> {
    if dim < ndim.max(1) {
        return Ok(());
    }
    Err(ErrorKind::DimOutOfRange { dim: dim as isize, ndim }.of(op))
}

/// Returns an error unless `view` has this dtype and the sizes of `input`.
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`] if `view` has another dtype. [`ErrorKind::ShapeMismatch`] if its
/// sizes differ from the sizes of `input`.
#[track_caller]
pub(crate) fn check_result(
    op: &'static str,
    view: View<'_>,
    dtype: DType,
    input: View<'_>,
) -> Result<()> {
    view.check_dtype(op, dtype)?;
    if view.sizes() == input.sizes() {
        return Ok(());
    }
    let reason =
        format!("the result has sizes {:?}, but the input has {:?}", view.sizes(), input.sizes());
    Err(Error::shape(op, reason))
}

/// Returns the layout, or that of one element in one dimension for a scalar.
#[track_caller]
pub(crate) fn at_least_1d(layout: &Layout) -> Result<Layout> {
    if layout.ndim() == 0 { layout.unsqueeze(0) } else { Ok(layout.clone()) }
}

/// Returns the size of dimension `dim` of views of the same sizes, their strides in this dimension,
/// and a walk of the other dimensions. A scalar is a row of one element.
#[track_caller]
pub(crate) fn rows_along<const N: usize>(
    op: &'static str,
    dim: usize,
    views: [View<'_>; N],
) -> Result<(usize, [i64; N], Walk<N>)> {
    let sizes = views[0].sizes();
    let strides = |d: usize| views.map(|view| view.strides()[d]);
    let others = (0..sizes.len()).rev().filter(|&d| d != dim);
    let walk = Walk::new(op, others.map(|d| (sizes[d], strides(d))))?;
    let steps = if sizes.is_empty() { [0; N] } else { strides(dim) };
    Ok((sizes.get(dim).copied().unwrap_or(1), steps.map(|step| step as i64), walk))
}
