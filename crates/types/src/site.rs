//! Call sites: an op and the line that called it.

use std::panic::Location;

/// An op, and where it was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The op's name.
    pub op: &'static str,
    /// The line of the call.
    pub location: &'static Location<'static>,
}

impl Site {
    /// The site of a call of `op` by the caller of the function that calls this.
    #[inline]
    #[must_use]
    #[track_caller]
    pub const fn here(op: &'static str) -> Self {
        Self { op, location: Location::caller() }
    }
}
