//! What can go wrong with devices, streams and events.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;

use crate::{IndexCheck, PendingLaunches};

/// The result of an operation of this crate.
pub type Result<T, E = StreamError> = std::result::Result<T, E>;

/// Why a device, stream or event could not do what was asked.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The driver's own error, those of earlier asynchronous work among them.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver's error at a wait, query or later launch: it may be of any work that was not
    /// known to be complete. An error that loses the device may also be of another stream's.
    #[error("{cause}; {}", pending.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Surfaced {
        /// What the driver said.
        cause: DriverError,
        /// That work, first of the stream that was asked.
        pending: Arc<[PendingLaunches]>,
    },
    /// A kernel met an index that is out of range. `synchronize` (of a device, stream or event) reports
    /// it once, to the thread that launched the kernel, or to any thread if that one has ended. Of
    /// several failures of one stream it reports the oldest. The device stays usable; data that depends
    /// on the result keeps the failure ([`crate::CheckedLaunch`]).
    #[error(transparent)]
    IndexCheck(#[from] IndexCheck),
    /// The index names no device.
    #[error(
        "invalid device ordinal: cuda:{index} was asked for, but {count} device(s) are visible"
    )]
    NoSuchDevice {
        /// The index that was asked for.
        index: usize,
        /// How many devices there are.
        count: usize,
    },
    /// An object of one device was given where another device's is needed.
    #[error(
        "{call}: it is on cuda:{found}, but one on cuda:{expected} is needed (called at {location})"
    )]
    WrongDevice {
        /// The operation and the object, such as `record: the stream`.
        call: &'static str,
        /// The device that is needed.
        expected: usize,
        /// The device the object is on.
        found: usize,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Two objects belong to different [`crate::Devices`].
    #[error(
        "{call}: the stream or event belongs to another driver's devices (called at {location})"
    )]
    OtherDevices {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The event has never been recorded.
    #[error(
        "{call}: both events must have been recorded; record them with `record` first (called at {location})"
    )]
    EventNotRecorded {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The event keeps no times.
    #[error(
        "{call}: both events must keep times; make them with `Event::timing()` (called at {location})"
    )]
    NoTiming {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The event's work is not done yet.
    #[error(
        "{call}: both events must have been completed; `synchronize` them first (called at {location})"
    )]
    EventNotFinished {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The thread is ending and its current device and streams are gone.
    #[error("{call}: this thread is ending; it has no current device or stream any more")]
    ThreadEnding {
        /// The operation.
        call: &'static str,
    },
    /// The stream cannot be captured.
    #[error("begin_capture: the stream cannot be captured: {reason} (called at {location})")]
    CannotCapture {
        /// Why not.
        reason: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// No capture began on the stream.
    #[error(
        "{call}: no capture that is still under way began on this stream (called at {location})"
    )]
    NotCapturing {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// Captured work does not run, so that the host cannot wait for it.
    #[error(
        "{call}: operation not permitted when stream is capturing; do it before the capture or after it (called at {location})"
    )]
    Capturing {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// A captured stream was to wait for work that is not part of its capture.
    #[error(
        "{call}: the stream is being captured and cannot depend on work outside its capture; wait for that before the capture begins (called at {location})"
    )]
    OutsideCapture {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
    /// The event was last recorded in a capture, and stands for nothing outside it.
    #[error(
        "{call}: the event was last recorded in a capture; record it anew outside (called at {location})"
    )]
    CapturedEvent {
        /// The operation.
        call: &'static str,
        /// Where it was called.
        location: &'static Location<'static>,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StreamError {
    /// The error as that of the operation that was called, where it names one that that consists of.
    #[must_use]
    pub fn of(mut self, name: &'static str) -> Self {
        match &mut self {
            Self::OtherDevices { call, .. }
            | Self::EventNotRecorded { call, .. }
            | Self::NotCapturing { call, .. }
            | Self::Capturing { call, .. }
            | Self::OutsideCapture { call, .. }
            | Self::CapturedEvent { call, .. } => *call = name,
            _ => {}
        }
        self
    }

    /// Where the operation was called that was refused, if that is what it is.
    #[must_use]
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match self {
            Self::WrongDevice { location, .. }
            | Self::OtherDevices { location, .. }
            | Self::EventNotRecorded { location, .. }
            | Self::NoTiming { location, .. }
            | Self::EventNotFinished { location, .. }
            | Self::CannotCapture { location, .. }
            | Self::NotCapturing { location, .. }
            | Self::Capturing { location, .. }
            | Self::OutsideCapture { location, .. }
            | Self::CapturedEvent { location, .. } => Some(location),
            _ => None,
        }
    }

    /// The driver's error behind this one, if there is one.
    #[must_use]
    pub fn driver_error(&self) -> Option<&DriverError> {
        match self {
            Self::Driver(cause) | Self::Surfaced { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
