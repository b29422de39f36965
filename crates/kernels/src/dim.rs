//! The check of a dimension's number, which kernels share.

use warpline_runtime::{ErrorKind, Result};

/// Refuses a dimension that operands of `ndim` dimensions do not have. A scalar has dimension 0.
///
/// # Errors
/// [`ErrorKind::DimOutOfRange`].
#[track_caller]
pub(crate) fn check_dim(op: &'static str, dim: usize, ndim: usize) -> Result<()> {
    if dim < ndim.max(1) {
        return Ok(());
    }
    Err(ErrorKind::DimOutOfRange { dim: dim as isize, ndim }.of(op))
}
