//! Conversion of lower layers' errors to errors of an op.

use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::DriverError;

use crate::{Error, ErrorKind};

const FIND_ONE: &str = "Run on a machine with an NVIDIA GPU and its driver, use the device 'cpu', or \
                        ask for simulated GPUs with WARPLINE_DRIVER=sim:N";
const SHOW_ONE: &str =
    "Set CUDA_VISIBLE_DEVICES to existing devices, or unset it; or use the device 'cpu'";
const SIMULATE_ONE: &str = "Ask for simulated GPUs with `sim:1` or more, or use the device 'cpu'";

/// Converts an allocator's error to [`ErrorKind::Alloc`] of `op`. The location is that of the
/// caller of this function, because closures do not know their caller.
#[track_caller]
pub(crate) fn alloc(op: &'static str) -> impl FnOnce(AllocError) -> Error {
    let location = Location::caller();
    move |source| ErrorKind::Alloc.of(op).at(location).with_source(Arc::new(source))
}

/// Converts a driver's error at startup: [`ErrorKind::CudaUnavailable`] if no GPU can be used,
/// otherwise the driver's error.
#[track_caller]
pub(crate) fn no_cuda(source: DriverError) -> Error {
    let hint = match &source {
        DriverError::DevicesHidden { .. } => SHOW_ONE,
        DriverError::NoneSimulated { .. } => SIMULATE_ONE,
        source if source.is_no_device() => FIND_ONE,
        _ => return Error::driver("CUDA cannot be used", source),
    };
    ErrorKind::CudaUnavailable { reason: source.to_string(), hint }.of("")
}
