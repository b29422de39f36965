//! Relabels errors with the called module and the location of the call.

use std::panic::Location;

use warpline::Result;

/// Sets the call that an error reports.
pub(crate) trait Called {
    /// Sets the error's op to `module` and its location to the caller of the function that calls this method.
    #[track_caller]
    fn of(self, module: &'static str) -> Self;

    /// Sets the error's location to the caller of the function that calls this method. Needed after calls of
    /// trait-object methods, which do not know their caller.
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
