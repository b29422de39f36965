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

impl Error {
    /// An argument that cannot be accepted.
    #[must_use]
    #[track_caller]
    pub fn invalid(op: &'static str, reason: String) -> Self {
        Self::InvalidArgument { op, reason, location: Location::caller() }
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
        if let Some(op) = self.op_mut() {
            *op = name;
        }
        self
    }

    fn op_mut(&mut self) -> Option<&mut &'static str> {
        match self {
            Self::DeviceMismatch { op, .. }
            | Self::RuntimeMismatch { op, .. }
            | Self::ShapeMismatch { op, .. }
            | Self::IndexOutOfRange { op, .. }
            | Self::UnsupportedDType { op, .. }
            | Self::CannotCast { op, .. }
            | Self::DTypeMismatch { op, .. }
            | Self::OperandDTypes { op, .. }
            | Self::ValueDoesNotFit { op, .. }
            | Self::OverlappingWrite { op, .. }
            | Self::OverlappingOperands { op, .. }
            | Self::OutOfStorage { op, .. }
            | Self::TooManyDims { op, .. }
            | Self::Capture { op, .. }
            | Self::NotReplayed { op, .. }
            | Self::SharedHostMemory { op, .. }
            | Self::CannotShare { op, .. }
            | Self::PeerGone { op, .. }
            | Self::InvalidArgument { op, .. }
            | Self::BroadcastMismatch { op, .. }
            | Self::ExpandMismatch { op, .. }
            | Self::InvalidReshape { op, .. }
            | Self::DimOutOfRange { op, .. }
            | Self::SizeOverflow { op, .. }
            | Self::NotAScalar { op, .. }
            | Self::CannotPin { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Where the op was called that the error is of, if it knows.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match self {
            Self::DeviceMismatch { location, .. }
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
            | Self::InvalidArgument { location, .. }
            | Self::ViewNeedsCopy { location, .. }
            | Self::BroadcastMismatch { location, .. }
            | Self::ExpandMismatch { location, .. }
            | Self::InvalidReshape { location, .. }
            | Self::DimOutOfRange { location, .. }
            | Self::SizeOverflow { location, .. }
            | Self::NotAScalar { location, .. }
            | Self::CannotPin { location, .. }
            | Self::NotStarted { location, .. }
            | Self::Collective { location, .. } => Some(location),
            _ => None,
        }
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
    pub(crate) fn no_cuda(reason: DriverError) -> Self {
        let hint = match &reason {
            DriverError::DevicesHidden { .. } => SHOW_ONE,
            reason if reason.is_no_device() => FIND_ONE,
            _ => return Self::driver("CUDA cannot be used", reason),
        };
        Self::CudaUnavailable { reason: reason.to_string(), hint }
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

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        Self::Alloc(Arc::new(error))
    }
}
