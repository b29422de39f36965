//! The autograd state of a tensor, allocated on first use.
//!
//! A `Tensor` is a handle of an `Inner`, as in Python it is a handle of a `TensorImpl`: clones are
//! the same tensor, and a view or the result of `detach` is another tensor over the same memory.
//! Beside storage, layout and dtype, `Inner` has a slot. The slot is empty until a gradient is
//! wanted, and names the base of a view. A tensor that is not tracked costs one look at the slot.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use smallvec::SmallVec;

use super::hooks::{LeafHooks, keep_at};
use super::node::{Edge, Node, Work};
use super::reclaim::{Owned, reclaim};
use super::{mode, views};
use crate::Tensor;

/// The part of a tensor for autograd: its [`Meta`], once it has one, and the base if it is a view.
pub(crate) struct AutogradSlot {
    meta: OnceLock<Box<Meta>>,
    view_of: Option<ViewOf>,
    inference: bool,
}

struct ViewOf {
    /// The base, which is never a view itself.
    base: Tensor,
    /// Whether the view was made while ops were recorded.
    recorded: bool,
}

impl AutogradSlot {
    #[inline]
    pub(crate) fn new() -> Self {
        let inference = mode::get().inference;
        Self { meta: OnceLock::new(), view_of: None, inference }
    }

    #[inline]
    fn view(base: Tensor) -> Self {
        let mode = mode::get();
        let view_of = Some(ViewOf { base, recorded: mode.grad });
        Self { meta: OnceLock::new(), view_of, inference: mode.inference }
    }
}

impl Drop for AutogradSlot {
    #[inline]
    fn drop(&mut self) {
        if let Some(meta) = self.meta.take() {
            reclaim(Owned::Meta(meta));
        }
    }
}

/// The autograd state of a tensor.
pub(crate) struct Meta {
    /// Whether the tensor requires a gradient, as a leaf or because it was computed from one.
    tracked: AtomicBool,
    /// For a base: how many times an in-place op has given it a new node. For a view: the base's number when
    /// the view's node was made.
    history: AtomicU32,
    state: Mutex<State>,
    /// Held from reading the gradient until the sum with another gradient is stored.
    accumulating: Mutex<()>,
    /// The leaf's name in a module that has replaced it with another tensor.
    moved: OnceLock<Arc<str>>,
}

#[derive(Default)]
struct State {
    /// The op that computed the tensor; `None` for a leaf.
    edge: Option<Edge>,
    grad: Option<Tensor>,
    /// For a leaf: its accumulator, which the graph owns.
    accumulator: Weak<Node>,
    /// The tensor's own hooks, and those of leaves that it replaced.
    hooks: SmallVec<[Arc<LeafHooks>; 1]>,
    retains_grad: bool,
}

impl Meta {
    /// Returns the state of a tensor, which is created on first use.
    pub(super) fn of(tensor: &Tensor) -> &Self {
        tensor.inner().autograd.meta.get_or_init(|| {
            Box::new(Self {
                tracked: AtomicBool::new(false),
                history: AtomicU32::new(0),
                state: Mutex::default(),
                accumulating: Mutex::default(),
                moved: OnceLock::new(),
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_edge(&self, edge: Edge) {
        let mut state = self.state();
        let kept = state.retains_grad.then(|| edge.clone());
        let former = state.edge.replace(edge);
        drop(state);
        self.tracked.store(true, Ordering::Release);
        if let (Some(edge), Some(former)) = (kept, former) {
            keep_at(&edge, &former);
        }
    }

    pub(super) fn set_leaf(&self, requires_grad: bool) {
        self.tracked.store(requires_grad, Ordering::Release);
    }

    pub(super) fn grad(&self) -> Option<Tensor> {
        self.state().grad.clone()
    }

    /// Locks the gradient while something is added to it.
    pub(super) fn accumulating(&self) -> MutexGuard<'_, ()> {
        self.accumulating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn replace_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        std::mem::replace(&mut self.state().grad, grad)
    }

    pub(super) fn retain_grad(&self) -> bool {
        std::mem::replace(&mut self.state().retains_grad, true)
    }

    /// Returns all hooks of a leaf.
    pub(super) fn hooks(&self) -> SmallVec<[Arc<LeafHooks>; 1]> {
        self.state().hooks.clone()
    }

    /// Returns the hooks of a leaf to which new ones are added.
    pub(super) fn own_hooks(&self) -> Arc<LeafHooks> {
        let mut state = self.state();
        if state.hooks.is_empty() {
            state.hooks.push(Arc::default());
        }
        state.hooks[0].clone()
    }

    /// Marks the leaf as moved and hands its hooks to `to`. Does nothing if it is marked already.
    pub(super) fn mark_moved(&self, name: Arc<str>, to: &Meta) {
        if self.moved.set(name).is_ok() {
            let hooks = std::mem::take(&mut self.state().hooks);
            to.state().hooks.extend(hooks);
        }
    }

    /// Counts an in-place op on a base. Returns the new history.
    pub(super) fn next_history(&self) -> u32 {
        self.history.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn history(&self) -> u32 {
        self.history.load(Ordering::Acquire)
    }

    pub(super) fn set_history(&self, history: u32) {
        self.history.store(history, Ordering::Release);
    }
}

impl Tensor {
    fn meta(&self) -> Option<&Meta> {
        self.inner().autograd.meta.get().map(|meta| &**meta)
    }

    /// Returns the name under which the leaf was moved, if it was.
    pub(super) fn moved(&self) -> Option<&Arc<str>> {
        self.meta()?.moved.get()
    }

    pub(super) fn has_meta(&self) -> bool {
        self.meta().is_some()
    }

    /// Returns the base if this tensor is a view.
    pub(super) fn base(&self) -> Option<&Tensor> {
        self.inner().autograd.view_of.as_ref().map(|view| &view.base)
    }

    /// Returns whether this tensor is a view that was made without recording.
    pub(super) fn is_unrecorded_view(&self) -> bool {
        self.inner().autograd.view_of.as_ref().is_some_and(|view| !view.recorded)
    }

    /// Returns whether the tensor was made in [`inference_mode`](crate::autograd::inference_mode)
    /// (`Tensor.is_inference`).
    #[must_use]
    pub fn is_inference(&self) -> bool {
        self.inner().autograd.inference
    }

    /// Returns a tensor with the same memory and layout that is not in the graph.
    pub(super) fn alias(&self) -> Tensor {
        self.with_layout(self.layout().clone())
    }

    /// Returns a view with this layout. The view is not recorded, but its base sees in-place ops on it.
    pub(crate) fn view_with(&self, layout: warpline_runtime::Layout) -> Tensor {
        let base = self.base().unwrap_or(self).clone();
        Tensor::with_slot(self, layout, AutogradSlot::view(base))
    }

    /// Returns whether an in-place op on the base, or on another view of it, came after this view's node was
    /// made.
    #[inline]
    fn is_stale(&self) -> bool {
        let Some(view) = &self.inner().autograd.view_of else { return false };
        let Some(base) = view.base.meta() else { return false };
        view.recorded && base.history() != self.meta().map_or(0, Meta::history)
    }

    /// Returns whether the tensor requires a gradient: it is a leaf on which `requires_grad_` was called, or it
    /// was computed from such a leaf (`Tensor.requires_grad`).
    #[inline]
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        let tracked = self.meta().is_some_and(|meta| meta.tracked.load(Ordering::Acquire));
        tracked || self.is_stale()
    }

    /// Returns whether the tensor was not computed from a tensor that requires a gradient (`Tensor.is_leaf`).
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        !self.is_stale() && self.meta().is_none_or(|meta| meta.state().edge.is_none())
    }

    /// Returns the edge to which the tensor's gradient goes; `None` if it requires none.
    pub(super) fn edge(&self) -> Option<Edge> {
        if self.is_stale()
            && let Some(base) = self.base()
        {
            views::renew(self, base);
        }
        let meta = self.meta()?;
        if !meta.tracked.load(Ordering::Acquire) {
            return None;
        }
        let mut state = meta.state();
        if let Some(edge) = &state.edge {
            return Some(edge.clone());
        }
        let node = state.accumulator.upgrade().unwrap_or_else(|| {
            let node = Arc::new(Node::accumulator(self));
            state.accumulator = Arc::downgrade(&node);
            node
        });
        Some(Edge { node, output: 0 })
    }

    /// Returns the history that up-to-date views have.
    pub(super) fn base_history(&self) -> u32 {
        self.meta().map_or(0, Meta::history)
    }
}

impl Node {
    fn accumulator(leaf: &Tensor) -> Self {
        Self {
            sequence_nr: super::node::ACCUMULATOR,
            name: "AccumulateGrad",
            location: std::panic::Location::caller(),
            stream: leaf.stream(),
            next: SmallVec::new(),
            outputs: 1,
            work: Work::Accumulate(leaf.clone()),
            hooks: Mutex::default(),
        }
    }
}
