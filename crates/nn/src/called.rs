//! Errors under the name of the module that was called, at the line of the call.

use std::panic::Location;

use warpline::Result;

/// Names the call of an error.
pub(crate) trait Called {
    /// Returns an error as that of `module`, called by the caller of the function that calls this.
    #[track_caller]
    fn of(self, module: &'static str) -> Self;

    /// Returns an error as one of a call by the caller of the function that calls this. Methods of trait objects do not
    /// know their caller.
    #[track_caller]
    fn here(self) -> Self;
}

impl<T> Called for Result<T> {
    #[track_caller]
    fn of(self, module: &'static str) -> Self {
        let location = Location::caller();
        self.map_err(|error| error.of(module).at(location))
    }

    #[track_caller]
    fn here(self) -> Self {
        let location = Location::caller();
        self.map_err(|error| error.at(location))
    }
}
