//! The autograd state of a tensor, allocated on first use.
//!
//! A `Tensor` is a handle to a `TensorInner`, as a Python tensor is a handle to a `TensorImpl`. Clones are
//! the same tensor. A view or the result of `detach` is another tensor on the same memory. Beside
//! storage, layout and dtype, `TensorInner` has an [`AutogradSlot`], which stores the base of a view. The
//! slot's [`AutogradMeta`] is allocated when a gradient is first required, so a tensor without gradients costs one
//! check of the slot.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use smallvec::SmallVec;
use warpline_runtime::{SyncPolicy, Version};
use warpline_stream::Stream;

use super::hooks::{LeafHooks, move_retain_grad_hook};
use super::moved::MovedMark;
use super::node::{Edge, GradNode, NodeKind};
use super::reclaim::{DeferredDrop, reclaim};
use super::{mode, views};
use crate::amp::{CastSlot, remember_converted};
use crate::{DType, Result, Site, Tensor};

/// The autograd fields of a tensor: its [`AutogradMeta`], if allocated, its base, if it is a view, and whether it was
/// made in inference mode.
pub(crate) struct AutogradSlot {
    meta: OnceLock<Box<AutogradMeta>>,
    view_base: Option<ViewBase>,
    inference: bool,
}

struct ViewBase {
    /// The base, which is never a view itself.
    base: Tensor,
    /// Whether the view was created while ops were recorded.
    recorded: bool,
}

impl AutogradSlot {
    #[inline]
    pub(crate) fn new() -> Self {
        let inference = mode::get().inference;
        Self { meta: OnceLock::new(), view_base: None, inference }
    }

    #[inline]
    fn view(base: Tensor) -> Self {
        let mode = mode::get();
        let view_base = Some(ViewBase { base, recorded: mode.grad });
        Self { meta: OnceLock::new(), view_base, inference: mode.inference }
    }
}

impl Drop for AutogradSlot {
    #[inline]
    fn drop(&mut self) {
        if let Some(meta) = self.meta.take() {
            reclaim(DeferredDrop::Meta(meta));
        }
    }
}

/// The autograd state of a tensor.
pub(crate) struct AutogradMeta {
    /// Whether the tensor requires a gradient, as a leaf or because it was computed from one.
    tracked: AtomicBool,
    /// For a base: number of in-place ops that have replaced its node. For a view: the base's number when the
    /// view's node was created.
    history: AtomicU32,
    state: Mutex<GradState>,
    /// Locked by an accumulation, from reading the gradient until the sum is stored.
    accumulating: Mutex<()>,
    /// For a leaf: its elements in the dtype of a region of autocast.
    cast: OnceLock<Arc<CastSlot>>,
    /// Set if a module has replaced this leaf with another tensor.
    moved: OnceLock<Arc<MovedMark>>,
}

/// A converted copy of a leaf.
#[derive(Clone)]
pub(crate) struct LeafCast {
    /// The leaf's version that was converted.
    version: Version,
    /// The copy's version after the conversion. A program may get a view of the copy and change the copy through the
    /// view.
    copied: Version,
    /// The stream that converted the leaf. Under `SyncPolicy::Manual`, only this stream may read the copy.
    stream: Option<Stream>,
    pub(crate) value: Tensor,
}

impl LeafCast {
    /// Returns whether the copy is up to date with `leaf`, and may be read on the current stream.
    pub(crate) fn is_of(&self, leaf: &Tensor) -> bool {
        self.version.is_of(leaf.storage())
            && self.copied.is_of(self.value.storage())
            && (self.stream == leaf.current_stream()
                || leaf.storage().runtime().sync_policy() == SyncPolicy::Auto)
    }
}

#[derive(Default)]
struct GradState {
    /// The op that computed the tensor; `None` for a leaf.
    edge: Option<Edge>,
    grad: Option<Tensor>,
    /// For a leaf: its accumulator. The graph owns the node.
    accumulator: Weak<GradNode>,
    /// Hooks of this leaf, and of leaves that it replaced.
    hooks: SmallVec<[Arc<LeafHooks>; 1]>,
    /// Marks of the leaves that this leaf replaced.
    replaced: Vec<Arc<MovedMark>>,
    retains_grad: bool,
}

fn lock(slot: &CastSlot) -> MutexGuard<'_, Option<LeafCast>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AutogradMeta {
    /// Returns the state of a tensor. Allocates it on first use.
    pub(super) fn of(tensor: &Tensor) -> &Self {
        tensor.inner().autograd.meta.get_or_init(|| {
            Box::new(Self {
                tracked: AtomicBool::new(false),
                history: AtomicU32::new(0),
                state: Mutex::default(),
                accumulating: Mutex::default(),
                cast: OnceLock::new(),
                moved: OnceLock::new(),
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, GradState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_edge(&self, edge: Edge) {
        let mut state = self.state();
        let kept = state.retains_grad.then(|| edge.clone());
        let former = state.edge.replace(edge);
        drop(state);
        self.tracked.store(true, Ordering::Release);
        if let (Some(edge), Some(former)) = (kept, former) {
            move_retain_grad_hook(&edge, &former);
        }
    }

    pub(super) fn set_leaf(&self, requires_grad: bool) {
        if !requires_grad {
            self.drop_cast();
        }
        self.tracked.store(requires_grad, Ordering::Release);
    }

    /// Returns the place of the converted copy.
    fn cast(&self) -> &Arc<CastSlot> {
        self.cast.get_or_init(Arc::default)
    }

    fn drop_cast(&self) {
        let copy = self.cast.get().and_then(|slot| lock(slot).take());
        drop(copy);
    }

    pub(super) fn grad(&self) -> Option<Tensor> {
        self.state().grad.clone()
    }

    /// Excludes accumulations by other threads while the guard lives.
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

    /// Returns the list to which new hooks of this leaf are added.
    pub(super) fn own_hooks(&self) -> Arc<LeafHooks> {
        let mut state = self.state();
        if state.hooks.is_empty() {
            state.hooks.push(Arc::default());
        }
        state.hooks[0].clone()
    }

    /// Marks the leaf as moved to `to`. Shares the leaf's hooks with `to` and keeps them, because `to` may be dropped
    /// before this leaf. Transfers the marks of leaves that this leaf replaced.
    pub(super) fn mark_moved(&self, name: &str, to: &Tensor) {
        let mark = self.moved.get_or_init(|| Arc::new(MovedMark::new(name)));
        let (hooks, mut replaced) = {
            let mut state = self.state();
            (state.hooks.clone(), std::mem::take(&mut state.replaced))
        };
        // A mark without another owner belongs to a leaf that was dropped.
        replaced.retain(|mark| Arc::strong_count(mark) > 1);
        replaced.push(mark.clone());
        replaced.iter().for_each(|mark| mark.set_replacement(to));
        let mut state = Self::of(to).state();
        // A repeated move must not list hooks or marks twice.
        for hooks in hooks {
            if !state.hooks.iter().any(|known| Arc::ptr_eq(known, &hooks)) {
                state.hooks.push(hooks);
            }
        }
        for mark in replaced {
            if !state.replaced.iter().any(|known| Arc::ptr_eq(known, &mark)) {
                state.replaced.push(mark);
            }
        }
    }

    /// Counts an in-place op on a base, and returns the new number.
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
    fn meta(&self) -> Option<&AutogradMeta> {
        self.inner().autograd.meta.get().map(|meta| &**meta)
    }

    /// Returns the leaf's mark if it was moved.
    pub(super) fn moved(&self) -> Option<&MovedMark> {
        self.meta()?.moved.get().map(|mark| &**mark)
    }

    pub(super) fn has_meta(&self) -> bool {
        self.meta().is_some()
    }

    /// Returns the base if this tensor is a view.
    pub(super) fn base(&self) -> Option<&Tensor> {
        self.inner().autograd.view_base.as_ref().map(|view| &view.base)
    }

    /// Returns whether this tensor is a view that was created without recording.
    pub(super) fn is_unrecorded_view(&self) -> bool {
        self.inner().autograd.view_base.as_ref().is_some_and(|view| !view.recorded)
    }

    /// Returns whether the tensor is a leaf that requires a gradient, and no view.
    pub(crate) fn is_leaf_parameter(&self) -> bool {
        self.requires_grad() && self.is_leaf() && self.base().is_none()
    }

    /// Returns the elements of a leaf in a dtype, without a gradient. Keeps the copy of the last call, and converts
    /// again only if the leaf or the copy was changed since then, if the dtype is a different one, or under
    /// `SyncPolicy::Manual` if the current stream is a different one.
    #[track_caller]
    pub(crate) fn cached_cast(&self, dtype: DType) -> Result<LeafCast> {
        let slot = AutogradMeta::of(self).cast();
        if let Some(known) = &*lock(slot)
            && known.is_of(self)
            && known.value.dtype() == dtype
        {
            return Ok(known.clone());
        }
        // Free the former copy first, so that the new copy takes its memory. Otherwise the copies of all parameters
        // would move in each step, and the allocator would keep mapping pages at other addresses.
        self.drop_cached_cast();
        // The copy must not keep the memory of a pool to which the program routes requests.
        let device = self.storage().cuda_device();
        let route = device.map(|device| device.allocator().use_default_pool());
        let cast = self.new_cast(dtype)?;
        drop(route);
        let former = lock(slot).replace(cast.clone());
        if former.is_none() {
            remember_converted(self.storage().runtime(), slot);
        }
        drop(former);
        Ok(cast)
    }

    /// Converts the elements of a leaf, without a gradient.
    #[track_caller]
    pub(crate) fn new_cast(&self, dtype: DType) -> Result<LeafCast> {
        let (version, stream) = (self.storage().version(), self.current_stream());
        let value = self.converted(dtype)?;
        Ok(LeafCast { version, copied: value.storage().version(), stream, value })
    }

    /// Frees the copy of [`Tensor::cached_cast`].
    pub(crate) fn drop_cached_cast(&self) {
        if let Some(meta) = self.meta() {
            meta.drop_cast();
        }
    }

    /// Returns whether the tensor was made in [`inference_mode`](crate::autograd::inference_mode)
    /// (`Tensor.is_inference`).
    #[must_use]
    pub fn is_inference(&self) -> bool {
        self.inner().autograd.inference
    }

    /// Returns a tensor with the same memory and layout, and without autograd state.
    pub(super) fn alias(&self) -> Tensor {
        self.with_layout(self.layout().clone())
    }

    /// Returns a view with this layout. The view is not recorded as an op, but in-place ops on it are
    /// recorded for its base.
    pub(crate) fn view_with(&self, layout: warpline_runtime::Layout) -> Tensor {
        let base = self.base().unwrap_or(self).clone();
        Tensor::with_slot(self, layout, AutogradSlot::view(base))
    }

    /// Returns whether an in-place op has changed the base or another view of it since this view's node was
    /// created.
    #[inline]
    fn is_stale(&self) -> bool {
        let Some(view) = &self.inner().autograd.view_base else { return false };
        let Some(base) = view.base.meta() else { return false };
        view.recorded && base.history() != self.meta().map_or(0, AutogradMeta::history)
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

    /// Returns the destination of the tensor's gradient; `None` if the tensor requires no gradient.
    pub(super) fn edge(&self) -> Option<Edge> {
        if self.is_stale()
            && let Some(base) = self.base()
        {
            views::regenerate(self, base);
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
            let node = Arc::new(GradNode::accumulator(self));
            state.accumulator = Arc::downgrade(&node);
            node
        });
        Some(Edge { node, output: 0 })
    }

    /// Returns the number of in-place ops on this base. A view with another number has an outdated node.
    pub(super) fn base_history(&self) -> u32 {
        self.meta().map_or(0, AutogradMeta::history)
    }
}

impl GradNode {
    fn accumulator(leaf: &Tensor) -> Self {
        Self {
            recorded: None,
            name: "AccumulateGrad",
            call: Site::here("AccumulateGrad"),
            stream: leaf.current_stream(),
            body: None,
            inputs: SmallVec::new(),
            outputs: 1,
            kind: NodeKind::Accumulator(leaf.clone()),
            hooks: Mutex::default(),
        }
    }
}
