//! Warnings about calls that are valid but often mistakes.

use std::collections::HashSet;
use std::io::Write as _;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// The printed warnings, each with the line of the program that caused it.
static PRINTED: Mutex<Option<HashSet<(Location<'static>, String)>>> = Mutex::new(None);

/// Logs a warning through `tracing`. If the program has never set a subscriber, not even for a scope, prints the warning
/// to stderr instead, once for each line of the caller and each text, as Python's `warnings` do.
#[track_caller]
pub fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
        return;
    }
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    if printed.get_or_insert_default().insert((*Location::caller(), text.to_owned())) {
        // `eprintln!` would panic if stderr is closed.
        let _ = writeln!(std::io::stderr(), "warning: {text}");
    }
}
