//! Call sites: an op and the source location of its call.

use std::panic::Location;

/// An op and the source location of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the op.
    pub op: &'static str,
    /// Source location of the call.
    pub location: &'static Location<'static>,
}

impl Site {
    /// Returns a call site of `op`. The location is that of the call to the `#[track_caller]` function that calls
    /// `here`.
    #[inline]
    #[must_use]
    #[track_caller]
    pub const fn here(op: &'static str) -> Self {
        Self { op, location: Location::caller() }
    }
}
