//! Calls of the backend that may run a program's code: a pool's source allocates memory, and the owner of foreign
//! memory is dropped. The thread holds locks then that a request needs, so such a request is an error.

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
