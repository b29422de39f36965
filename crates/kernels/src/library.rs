//! Libraries that compute in place of kernels.

use warpline_cuda_sys_safe::DriverError;
use warpline_runtime::{CudaDevice, Error, Result};

/// Returns whether a library can be used on a device; `load` loads it. An environment variable that
/// names an unusable library is an error; otherwise the fallback to this crate's kernels would go
/// unnoticed.
#[track_caller]
pub(crate) fn is_usable<T>(
    op: &'static str,
    device: &CudaDevice,
    load: fn() -> Result<T, DriverError>,
) -> Result<bool> {
    // Only the real driver calls the library. A simulated device runs the CPU implementation instead.
    if device.driver().name() != "cuda" {
        return Ok(true);
    }
    match load() {
        Ok(_) => Ok(true),
        Err(error @ DriverError::InvalidVariable(_)) => Err(Error::driver(op, error)),
        Err(_) => Ok(false),
    }
}
