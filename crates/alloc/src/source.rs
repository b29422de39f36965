//! Flags backend calls that may run the program's code: a pool's source allocates memory, or the
//! value that keeps foreign memory alive is dropped. The thread holds locks that a request may need,
//! so inside such a call every request fails that `AllocatorState::hit` does not serve.

use std::cell::Cell;

use warpline_sync::thread_local;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Restores the former value of the thread's flag on drop, also after a panic.
struct InsideGuard(bool);

/// Returns whether this thread is inside a flagged call.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Runs a call with the flag set.
pub(crate) fn inside<R>(call: impl FnOnce() -> R) -> R {
    let _former = InsideGuard(INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(false));
    call()
}

impl Drop for InsideGuard {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.0));
    }
}
