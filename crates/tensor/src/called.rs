//! Errors under the name of the called function, at the line of the call.
//!
//! A function that can fail, and every function on the way from a public function to it, is
//! `#[track_caller]`. Closures get the location as an argument, or their errors do. A function that
//! consists of other public functions puts its own name on their errors.

use std::panic::Location;

use crate::Result;

/// Names the op of an error.
pub(crate) trait Called {
    /// The same, an error as that of `op` ([`crate::Error::of`]), called by the caller of the function
    /// that calls this: also where the error is made in a closure, which does not know that one.
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
