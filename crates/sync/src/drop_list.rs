//! Drops chains of owners without recursion.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::thread;

use crate::CaughtPanic;

/// Values that a thread has yet to drop, for a thread-local. A type whose values may own one another in a chain of any
/// length has a `Drop` that moves the values it owns to the list. The outermost drop of the thread then drops the listed
/// values one at a time.
///
/// The list has no destructor, so destructors of other thread-locals can still use it while the thread ends.
#[derive(Debug)]
pub struct DropList<T>(
    /// `None` while the thread drops nothing.
    RefCell<Option<ManuallyDrop<Vec<T>>>>,
);

impl<T> DropList<T> {
    /// Creates an empty list.
    #[expect(clippy::new_without_default, reason = "a thread-local needs a constant")]
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// Begins to keep values until [`end`](Self::end). Returns `false` if the list keeps values already; then the outer
    /// drop or `begin` drops the values.
    pub fn begin(&self) -> bool {
        let mut kept = self.0.borrow_mut();
        let begins = kept.is_none();
        kept.get_or_insert_default();
        begins
    }

    /// Drops `value` at once, or after the value that this thread is currently dropping.
    ///
    /// # Panics
    /// If the `Drop` of a value panics, the remaining values are dropped first. Then the panic continues. If several
    /// values panic, the last panic continues. While the thread is already panicking, the panic is discarded, because a
    /// second panic would abort the process.
    pub fn drop_in_turn(&self, value: T) {
        let first = match &mut *self.0.borrow_mut() {
            Some(kept) => return kept.push(value),
            none => {
                *none = Some(ManuallyDrop::default());
                value
            }
        };
        self.drop_all(Some(first));
    }

    /// Drops the values that were kept since [`begin`](Self::begin) returned `true`.
    ///
    /// # Panics
    /// As [`drop_in_turn`](Self::drop_in_turn).
    pub fn end(&self) {
        self.drop_all(self.next());
    }

    fn next(&self) -> Option<T> {
        self.0.borrow_mut().as_mut().and_then(|kept| kept.pop())
    }

    /// Drops a value and all values on the list, and then keeps no more values.
    fn drop_all(&self, mut next: Option<T>) {
        let mut panic = None;
        while let Some(value) = next {
            if let Err(next) = CaughtPanic::catch(|| drop(value)) {
                panic = Some(next);
            }
            next = self.next();
        }
        drop(self.0.take().map(ManuallyDrop::into_inner));
        if let Some(panic) = panic.filter(|_| !thread::panicking()) {
            panic.resume();
        }
    }
}
