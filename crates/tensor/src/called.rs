//! Errors under the name of the function that was called.

use crate::Result;

/// Names the op of an error.
pub(crate) trait Called {
    /// The same, an error as that of `op`: [`crate::Error::of`].
    fn of(self, op: &'static str) -> Self;
}

impl<T> Called for Result<T> {
    #[inline]
    fn of(self, op: &'static str) -> Self {
        self.map_err(|error| error.of(op))
    }
}
