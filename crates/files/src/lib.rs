//! Writes files atomically (completely or not at all), opens files without blocking, and locks folders.
//!
//! Internal to Warpline: the interface changes with the crates that use it.

#![forbid(unsafe_code)]

mod calls;
mod new_file;
mod open;

#[cfg(any(test, feature = "testing"))]
pub use calls::watch;
pub use calls::{SaveCall, remove};
pub use new_file::{NewFile, name_of_temporary, random};
pub use open::{lock_folder, open};
