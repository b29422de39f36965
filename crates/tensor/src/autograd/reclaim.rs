//! Drops graphs without recursion.
//!
//! A tensor owns the node that computed it, its gradient and its hooks. A node owns the nodes of its inputs, its
//! gradient function with the saved tensors, and its hooks. Gradient functions and hooks own user values, which may own
//! further tensors. The length of such a chain is unbounded, so each drop moves its values to a list of the thread. The
//! outermost drop of the thread then drops the listed values one at a time. With [`Reclaimed`], other values of the
//! program use the same list, such as sources of memory pools, modules, hooks and schedulers. If the `Drop` of a user
//! value panics, the rest of the list is dropped before the panic continues.
//!
//! Invariant: user values are dropped without a lock. Hooks, gradients and saved tensors are moved out
//! of the locked structure first.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use warpline_sync::DropList;

use super::meta::AutogradMeta;
use super::node::NodeParts;

/// Values that a dropped tensor, node or [`Reclaimed`] owned. Dropping them may run user code, and may drop
/// more tensors and nodes.
#[expect(dead_code, reason = "owned only to be dropped")]
#[expect(clippy::large_enum_variant, reason = "a box would cost each node an allocation")]
pub(super) enum DeferredDrop {
    Node(NodeParts),
    Meta(Box<AutogradMeta>),
    Value(Box<dyn Any>),
}

/// A value of the program outside of the graph, which may own tensors or further values of its kind. It is dropped at
/// once, or after the value that this thread is currently dropping.
#[derive(Clone)]
pub struct Reclaimed<T: 'static>(Option<T>);

const PRESENT: &str = "the value is present until it is moved out or dropped";

impl<T> Reclaimed<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Returns the value.
    pub fn into_inner(mut self) -> T {
        self.0.take().expect(PRESENT)
    }
}

impl<T> fmt::Debug for Reclaimed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimed").finish_non_exhaustive()
    }
}

impl<T> Deref for Reclaimed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(PRESENT)
    }
}

impl<T> DerefMut for Reclaimed<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(PRESENT)
    }
}

impl<T> Drop for Reclaimed<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            reclaim(DeferredDrop::Value(Box::new(value)));
        }
    }
}

/// While this value lives, this thread keeps the values of dropped graphs and of dropped [`Reclaimed`]s. They are
/// dropped together with this value, or, if it is nested, at the end of the outermost drop or `DeferredDrops`. A lock
/// that is released before this value is dropped is therefore not held when user code runs.
#[derive(Debug)]
#[must_use = "the values are dropped with this value"]
pub struct DeferredDrops {
    /// Whether an outer drop or an outer `DeferredDrops` drops the values.
    outer: bool,
    /// The list belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl DeferredDrops {
    /// Begins to keep values.
    pub fn begin() -> Self {
        Self { outer: !DEFERRED.with(DropList::begin), not_send: PhantomData }
    }
}

impl Drop for DeferredDrops {
    fn drop(&mut self) {
        if !self.outer {
            DEFERRED.with(DropList::end);
        }
    }
}

thread_local! {
    static DEFERRED: DropList<DeferredDrop> = const { DropList::new() };
}

/// Drops `owned` at once, or after the value that this thread is currently dropping ([`DropList::drop_in_turn`]).
pub(super) fn reclaim(owned: DeferredDrop) {
    DEFERRED.with(|list| list.drop_in_turn(owned));
}
