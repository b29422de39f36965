//! Backend calls that may run the program's code: a pool's source allocates memory, or the owner of
//! foreign memory is dropped. The thread then holds locks that a request needs, so a request fails.

use std::cell::Cell;

use warpline_sync::thread_local;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Restores the former value on drop, also after a panic.
struct Former(bool);

/// Returns whether this thread is inside such a call.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Runs `call` as such a call.
pub(crate) fn inside<R>(call: impl FnOnce() -> R) -> R {
    let _former = Former(INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false));
    call()
}

impl Drop for Former {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.0));
    }
}
