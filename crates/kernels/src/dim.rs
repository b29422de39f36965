//! The check of a dimension's number, which kernels share.

use std::panic::Location;

use warpline_runtime::{Error, Result};

/// Refuses a dimension that operands of `ndim` dimensions do not have. A scalar has dimension 0.
///
/// # Errors
/// [`Error::DimOutOfRange`].
#[track_caller]
pub(crate) fn check_dim(op: &'static str, dim: usize, ndim: usize) -> Result<()> {
    if dim < ndim.max(1) {
        return Ok(());
    }
    Err(Error::DimOutOfRange { op, location: Location::caller(), dim: dim as isize, ndim })
}
