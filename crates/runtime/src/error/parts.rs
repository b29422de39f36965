//! How errors are made of others, and what they are asked for.

use std::panic::Location;
use std::sync::Arc;

use warpline_alloc::AllocError;
use warpline_cuda_sys_safe::DriverError;
use warpline_stream::StreamError;

use super::Error;

const FIND_ONE: &str = "Run on a machine with an NVIDIA GPU and its driver, use the device 'cpu', or \
                        ask for simulated GPUs with WARPLINE_DRIVER=sim:N";
const SHOW_ONE: &str = "Let CUDA_VISIBLE_DEVICES name devices that are there, or unset it; or use the \
                        device 'cpu'";
const SIMULATE_ONE: &str = "Ask for simulated GPUs with `sim:1` or more, or use the device 'cpu'";

impl Error {
    /// An argument that cannot be accepted.
    #[must_use]
    #[track_caller]
    pub fn invalid(op: &'static str, reason: String) -> Self {
        Self::InvalidArgument { op, reason, location: Location::caller() }
    }

    /// A gradient that cannot be had.
    #[must_use]
    #[track_caller]
    pub fn gradient(op: &'static str, reason: String) -> Self {
        Self::Gradient { op, reason, location: Location::caller() }
    }

    /// Something that a capture cannot hold.
    #[must_use]
    #[track_caller]
    pub fn capture(op: &'static str, reason: String) -> Self {
        Self::Capture { op, reason, location: Location::caller() }
    }

    /// The error as that of the op that was called, where it is one of what that consists of.
    #[must_use]
    pub fn of(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::Driver { op, .. } | Self::InvalidDeviceString { op, .. } => *op = name,
            error => {
                if let Some((op, _)) = error.call_mut() {
                    *op = name;
                }
            }
        }
        self
    }

    /// The error as one of the call there: closures do not know their function's caller.
    #[must_use]
    pub fn at(mut self, place: &'static Location<'static>) -> Self {
        match &mut self {
            Self::InvalidDeviceString { location, .. } => *location = Some(place),
            error => {
                if let Some((_, location)) = error.call_mut() {
                    *location = place;
                }
            }
        }
        self
    }

    fn call_mut(&mut self) -> Option<(&mut &'static str, &mut &'static Location<'static>)> {
        match self {
            Self::Alloc { op, location, .. }
            | Self::CudaUnavailable { op, location, .. }
            | Self::NoSuchDevice { op, location, .. }
            | Self::DeviceMismatch { op, location, .. }
            | Self::RuntimeMismatch { op, location, .. }
            | Self::ShapeMismatch { op, location, .. }
            | Self::IndexOutOfRange { op, location, .. }
            | Self::UnsupportedDType { op, location, .. }
            | Self::CannotCast { op, location, .. }
            | Self::DTypeMismatch { op, location, .. }
            | Self::OperandDTypes { op, location, .. }
            | Self::ValueDoesNotFit { op, location, .. }
            | Self::OverlappingWrite { op, location, .. }
            | Self::OverlappingOperands { op, location, .. }
            | Self::OutOfStorage { op, location, .. }
            | Self::TooManyDims { op, location, .. }
            | Self::Capture { op, location, .. }
            | Self::NotReplayed { op, location, .. }
            | Self::SharedHostMemory { op, location, .. }
            | Self::CannotShare { op, location, .. }
            | Self::InvalidArgument { op, location, .. }
            | Self::TimedOut { op, location, .. }
            | Self::Gradient { op, location, .. }
            | Self::Moved { op, location, .. }
            | Self::BroadcastMismatch { op, location, .. }
            | Self::ExpandMismatch { op, location, .. }
            | Self::InvalidReshape { op, location, .. }
            | Self::DimOutOfRange { op, location, .. }
            | Self::SizeOverflow { op, location, .. }
            | Self::NotAScalar { op, location, .. }
            | Self::CannotPin { op, location, .. } => Some((op, location)),
            _ => None,
        }
    }

    /// Where the op was called that the error is of, if it knows.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match self {
            Self::Alloc { location, .. }
            | Self::CudaUnavailable { location, .. }
            | Self::NoSuchDevice { location, .. }
            | Self::DeviceMismatch { location, .. }
            | Self::RuntimeMismatch { location, .. }
            | Self::ShapeMismatch { location, .. }
            | Self::IndexOutOfRange { location, .. }
            | Self::UnsupportedDType { location, .. }
            | Self::CannotCast { location, .. }
            | Self::DTypeMismatch { location, .. }
            | Self::OperandDTypes { location, .. }
            | Self::ValueDoesNotFit { location, .. }
            | Self::OverlappingWrite { location, .. }
            | Self::OverlappingOperands { location, .. }
            | Self::OutOfStorage { location, .. }
            | Self::TooManyDims { location, .. }
            | Self::Capture { location, .. }
            | Self::NotReplayed { location, .. }
            | Self::SharedHostMemory { location, .. }
            | Self::CannotShare { location, .. }
            | Self::PeerGone { location, .. }
            | Self::TimedOut { location, .. }
            | Self::InvalidArgument { location, .. }
            | Self::Gradient { location, .. }
            | Self::Moved { location, .. }
            | Self::BroadcastMismatch { location, .. }
            | Self::ExpandMismatch { location, .. }
            | Self::InvalidReshape { location, .. }
            | Self::DimOutOfRange { location, .. }
            | Self::SizeOverflow { location, .. }
            | Self::NotAScalar { location, .. }
            | Self::CannotPin { location, .. }
            | Self::ViewNeedsCopy { location, .. }
            | Self::NotStarted { location, .. }
            | Self::Collective { location, .. } => Some(location),
            Self::InvalidDeviceString { location, .. } => *location,
            Self::IndexCheck(failed) => Some(failed.location),
            Self::Stream(cause) => cause.location(),
            _ => None,
        }
    }

    /// Makes an allocator's error one of an op, at the line of this call: `map_err`'s closures have no
    /// caller.
    #[track_caller]
    pub(crate) fn alloc(op: &'static str) -> impl FnOnce(AllocError) -> Self {
        let location = Location::caller();
        move |cause| Self::Alloc { op, cause: Arc::new(cause), location }
    }

    /// A failed driver call of an op.
    #[must_use]
    pub fn driver(op: &'static str, source: DriverError) -> Self {
        match source {
            DriverError::InvalidVariable(variable) => Self::InvalidVariable(variable),
            cause => Self::Driver { op, cause },
        }
    }

    /// Why there is no CUDA, as what needs it returns it: [`Error::CudaUnavailable`] where there is no
    /// GPU to use, what is wrong otherwise.
    #[track_caller]
    pub(crate) fn no_cuda(reason: DriverError) -> Self {
        let hint = match &reason {
            DriverError::DevicesHidden { .. } => SHOW_ONE,
            DriverError::NoneSimulated { .. } => SIMULATE_ONE,
            reason if reason.is_no_device() => FIND_ONE,
            _ => return Self::driver("CUDA cannot be used", reason),
        };
        let (op, location) = ("", Location::caller());
        Self::CudaUnavailable { reason: reason.to_string(), hint, op, location }
    }

    /// The driver's error behind this one, if there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::Driver { cause, .. } => Some(cause),
            Self::Stream(cause) | Self::NotStarted { cause, .. } => cause.driver_error(),
            _ => None,
        }
    }
}

impl From<StreamError> for Error {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::IndexCheck(failed) => Self::IndexCheck(failed),
            error => Self::Stream(error),
        }
    }
}
