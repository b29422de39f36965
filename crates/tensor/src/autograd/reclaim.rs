//! Drops graphs without recursion.
//!
//! A tensor owns the node that made it, its gradient and its hooks. A node owns the nodes of its
//! inputs, its rule with the saved tensors, and its hooks. Rules and hooks own values of the
//! program, by closures and fields, and these may own tensors. Such a chain can be as long as the
//! program makes it. So each drop hands its values to a list of the thread, which drops one at a
//! time. The sources of memory pools use the same list. If a `Drop` of the program panics, the list
//! is emptied first, and then the panic continues.
//!
//! Invariant: values of the program are dropped without a lock. Hooks, gradients and saved tensors
//! are moved out from under a lock before they are dropped.

use std::any::Any;
use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use super::meta::Meta;
use super::node::Parts;

/// The values that a dropped tensor or node owned. Dropping them may run code of the program, and drop more
/// tensors and nodes.
#[expect(dead_code, reason = "owned only to be dropped")]
#[expect(clippy::large_enum_variant, reason = "a box would cost each node an allocation")]
pub(super) enum Owned {
    Node(Parts),
    Meta(Box<Meta>),
    Value(Arc<dyn Any + Send + Sync>),
}

/// A value of the program, stored outside of the graph, that may own tensors. [`reclaim`] drops it.
pub(crate) struct Reclaimed<T: Send + Sync + 'static> {
    value: Arc<T>,
    /// Dropped after `value`, so that this is the last reference.
    _last: Last,
}

struct Last(Option<Arc<dyn Any + Send + Sync>>);

impl<T: Send + Sync> Reclaimed<T> {
    pub(crate) fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self { _last: Last(Some(Arc::clone(&value) as _)), value }
    }
}

impl<T: Send + Sync> Deref for Reclaimed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            reclaim(Owned::Value(last));
        }
    }
}

thread_local! {
    /// Values that wait for the thread to drop them. `None` while the thread drops nothing. The list has no
    /// destructor, so that it serves tensors in other thread-locals while the thread ends.
    static WAITING: RefCell<Option<ManuallyDrop<Vec<Owned>>>> = const { RefCell::new(None) };
}

/// Drops `owned`: at once, or after the value that this thread is dropping.
///
/// If a `Drop` of the program panics, the other values are dropped first; then the panic continues, the last
/// one of several. It does not continue if the thread is already panicking, because that would abort the
/// process.
pub(super) fn reclaim(owned: Owned) {
    let first = WAITING.with_borrow_mut(|waiting| {
        if let Some(waiting) = waiting {
            waiting.push(owned);
            return None;
        }
        *waiting = Some(ManuallyDrop::default());
        Some(owned)
    });
    let (mut next, mut panic) = (first, None);
    if next.is_none() {
        return;
    }
    while let Some(owned) = next {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(owned))) {
            // Leaked, because a payload may panic in its own `Drop`.
            mem::forget(panic.replace(payload));
        }
        next = WAITING.with_borrow_mut(|waiting| waiting.as_mut().and_then(|list| list.pop()));
    }
    drop(WAITING.take().map(ManuallyDrop::into_inner));
    match panic {
        Some(payload) if thread::panicking() => mem::forget(payload),
        Some(payload) => resume_unwind(payload),
        None => {}
    }
}
