//! Gives errors the name of the called function and the location of the call.
//!
//! Every function that can fail is `#[track_caller]`, and so is every function between a public function and
//! the failing code. A closure takes the location as an argument, or its caller adds the location to the
//! error. A function that calls other public functions enters a [`CallScope`](crate::CallScope), which gives its own
//! name to their errors and to the ops that they record.

use std::panic::Location;

use crate::Result;

/// Sets the op and the location of an error. `warpline-nn` uses this trait too.
pub trait Called: Sized {
    /// Returns `self`. If it is an error, sets its op to `op` ([`crate::Error::of`]), and its location to
    /// the caller of the current function. This also corrects the location of errors that were created in
    /// closures.
    #[track_caller]
    fn of(self, op: &'static str) -> Self;

    /// Returns `self`. If it is an error, sets its location to the caller of the current function. Needed after
    /// calls of trait-object methods, which do not know their caller.
    #[track_caller]
    fn here(self) -> Self;
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

    #[inline]
    #[track_caller]
    fn here(self) -> Self {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(error.at(Location::caller())),
        }
    }
}
