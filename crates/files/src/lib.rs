//! Files that are written completely or not at all, and opened without waiting.
//!
//! Not for other programs: it has what Warpline's crates use and changes with them.

#![forbid(unsafe_code)]

mod calls;
mod new_file;
mod open;

#[cfg(any(test, feature = "testing"))]
pub use calls::watch;
pub use calls::{Call, remove};
pub use new_file::{NewFile, random};
pub use open::{lock_folder, open};
