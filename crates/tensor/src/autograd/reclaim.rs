//! Drops graphs without recursion.
//!
//! A tensor owns the node that computed it, its gradient and its hooks. A node owns the nodes of its
//! inputs, its gradient function with the saved tensors, and its hooks. Gradient functions and hooks
//! own user values, which may own further tensors. The length of such a chain is unbounded, so each
//! drop moves its values to a list of the thread, which drops one value at a time. Sources of memory
//! pools, modules, schedulers and stores use the same list. If the `Drop` of a user value panics, the rest of the list is dropped
//! before the panic continues.
//!
//! Invariant: user values are dropped without a lock. Hooks, gradients and saved tensors are moved out
//! of the locked structure first.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;

use warpline_sync::CaughtPanic;

use super::meta::AutogradMeta;
use super::node::NodeParts;

/// Values that a dropped tensor, node or [`Reclaimed`] owned. Dropping them may run user code, and may drop
/// more tensors and nodes.
#[expect(dead_code, reason = "owned only to be dropped")]
#[expect(clippy::large_enum_variant, reason = "a box would cost each node an allocation")]
pub(super) enum DeferredDrop {
    Node(NodeParts),
    Meta(Box<AutogradMeta>),
    Shared(Arc<dyn Any + Send + Sync>),
    Owned(Box<dyn Any>),
}

/// Drops a value at once, or after the value that this thread is currently dropping. For the `Drop` of types that may
/// own further values of the same type, in chains of any length.
pub fn drop_in_turn(value: impl Any) {
    reclaim(DeferredDrop::Owned(Box::new(value)));
}

/// A user value outside of the graph that may own tensors, or further values of its kind. It is dropped in turn.
pub struct Reclaimed<T: Send + Sync + 'static> {
    value: Arc<T>,
    /// Declared after `value`, and therefore dropped last.
    _last: LastReference,
}

struct LastReference(Option<Arc<dyn Any + Send + Sync>>);

impl<T: Send + Sync> Reclaimed<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self { _last: LastReference(Some(Arc::clone(&value) as _)), value }
    }
}

impl<T: Send + Sync> fmt::Debug for Reclaimed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimed").finish_non_exhaustive()
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
            reclaim(DeferredDrop::Shared(last));
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
        if let Err(next) = CaughtPanic::catch(|| drop(owned)) {
            panic = Some(next);
        }
        next = DEFERRED.with_borrow_mut(|deferred| deferred.as_mut().and_then(|list| list.pop()));
    }
    drop(DEFERRED.take().map(ManuallyDrop::into_inner));
    if let Some(panic) = panic.filter(|_| !thread::panicking()) {
        panic.resume();
    }
}
