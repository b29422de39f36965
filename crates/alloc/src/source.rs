//! Calls of the backend for memory, which may run a program's code: the source of a pool. A lock is held
//! meanwhile that a request needs, so a request from there is an error.

use std::cell::Cell;

use warpline_sync::thread_local;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Restores the former value, after a panic too.
struct Former(bool);

/// Whether this thread is in such a call.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Makes such a call.
pub(crate) fn inside<R>(call: impl FnOnce() -> R) -> R {
    let _former = Former(INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false));
    call()
}

impl Drop for Former {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.0));
    }
}
