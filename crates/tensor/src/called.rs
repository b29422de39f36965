//! Gives errors the name of the called function and the location of the call.
//!
//! Every function that can fail is `#[track_caller]`, and so is every function between a public function and
//! it. A closure takes the location as an argument, or its caller adds the location to the error. A function
//! that is made of other public functions puts its own name on their errors.

use std::panic::Location;

use crate::Result;

/// Names the op of an error.
pub(crate) trait Called {
    /// Returns the same result. An error gets the name `op` ([`crate::Error::of`]) and the location of the
    /// caller of the calling function. This also corrects errors made in a closure, which does not know that
    /// location.
    #[track_caller]
    fn of(self, op: &'static str) -> Self;
}

impl<T> Called for Result<T> {
    #[inline]
    #[track_caller]
    fn of(self, op: &'static str) -> Self {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(error.of(op).at(Location::caller())),
        }
    }
}
