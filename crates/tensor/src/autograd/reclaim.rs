//! Drops graphs without recursion.
//!
//! A tensor owns the node that computed it, its gradient and its hooks. A node owns the nodes of its
//! inputs, its gradient function with the saved tensors, and its hooks. Gradient functions and hooks
//! own user values, which may own further tensors. The length of such a chain is unbounded, so each
//! drop moves its values to a list of the thread, which drops one value at a time. Sources of memory
//! pools use the same list. If the `Drop` of a user value panics, the rest of the list is dropped
//! before the panic continues.
//!
//! Invariant: user values are dropped without a lock. Hooks, gradients and saved tensors are moved out
//! of the locked structure first.

use std::any::Any;
use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use super::meta::AutogradMeta;
use super::node::NodeParts;

/// Values that a dropped tensor, node or [`Reclaimed`] owned. Dropping them may run user code, and may drop
/// more tensors and nodes.
#[expect(dead_code, reason = "owned only to be dropped")]
#[expect(clippy::large_enum_variant, reason = "a box would cost each node an allocation")]
pub(super) enum DeferredDrop {
    Node(NodeParts),
    Meta(Box<AutogradMeta>),
    Value(Arc<dyn Any + Send + Sync>),
}

/// A user value outside of the graph that may own tensors. [`reclaim`] drops the value.
pub(crate) struct Reclaimed<T: Send + Sync + 'static> {
    value: Arc<T>,
    /// Declared after `value`, and therefore dropped last.
    _last: LastReference,
}

struct LastReference(Option<Arc<dyn Any + Send + Sync>>);

impl<T: Send + Sync> Reclaimed<T> {
    pub(crate) fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self { _last: LastReference(Some(Arc::clone(&value) as _)), value }
    }
}

impl<T: Send + Sync> Deref for Reclaimed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl Drop for LastReference {
    fn drop(&mut self) {
        if let Some(last) = self.0.take() {
            reclaim(DeferredDrop::Value(last));
        }
    }
}

thread_local! {
    /// Values that this thread has yet to drop. `None` while the thread drops nothing. The list has no
    /// destructor, so destructors of other thread-locals can still use it while the thread ends.
    static DEFERRED: RefCell<Option<ManuallyDrop<Vec<DeferredDrop>>>> = const { RefCell::new(None) };
}

/// Drops `owned` at once, or after the value that this thread is currently dropping.
///
/// If the `Drop` of a user value panics, the remaining values are dropped first. Then the panic continues. If
/// several values panic, the last panic continues. While the thread is already panicking, the panic is
/// discarded, because a second panic would abort the process.
pub(super) fn reclaim(owned: DeferredDrop) {
    let first = DEFERRED.with_borrow_mut(|deferred| {
        if let Some(deferred) = deferred {
            deferred.push(owned);
            return None;
        }
        *deferred = Some(ManuallyDrop::default());
        Some(owned)
    });
    let (mut next, mut panic) = (first, None);
    if next.is_none() {
        return;
    }
    while let Some(owned) = next {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(owned))) {
            // Leaks a replaced payload, whose own `Drop` might panic.
            mem::forget(panic.replace(payload));
        }
        next = DEFERRED.with_borrow_mut(|deferred| deferred.as_mut().and_then(|list| list.pop()));
    }
    drop(DEFERRED.take().map(ManuallyDrop::into_inner));
    match panic {
        Some(payload) if thread::panicking() => mem::forget(payload),
        Some(payload) => resume_unwind(payload),
        None => {}
    }
}
