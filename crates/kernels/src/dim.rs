//! The check of a dimension index, which several ops share.

use warpline_runtime::{ErrorKind, Result};

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
