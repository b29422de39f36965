//! Hooks: user functions that are called with gradients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;

use super::meta::AutogradMeta;
use super::moved::check_not_moved;
use super::node::{Edge, GradNode, NodeKind, TensorSpec};
use crate::{Error, ErrorKind, MemoryFormat, Result, Site, Tensor};

/// A function that is called with a gradient and may return a replacement.
pub(super) type GradHook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;
/// A function that is called with a leaf after an accumulation into its gradient.
pub(super) type LeafHook = Arc<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// A hook on the gradient of one of a node's results.
pub(super) struct NodeHook {
    id: u64,
    pub(super) output: usize,
    pub(super) call: GradHook,
    /// Whether this hook stores the gradient of a tensor (`retain_grad`). Such a hook runs after all others,
    /// and moves to the tensor's new node after an in-place op.
    retains_grad: bool,
}

static IDS: AtomicU64 = AtomicU64::new(0);

pub(super) fn next_id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// A list of hooks. A [`HookHandle`] removes its hook from the list.
pub trait HookList: Send + Sync {
    /// Removes hook `id`, if the list has this hook. Implementations must drop the hook without holding a lock: a hook
    /// owns values of the program, whose `drop` may run any code.
    fn remove(&self, id: u64);
}

/// A handle that removes a hook (`RemovableHandle`). Dropping the handle does not remove the hook.
pub struct HookHandle {
    id: u64,
    list: Weak<dyn HookList>,
}

/// The hooks of a leaf. When the leaf is moved, this list is shared with the replacing tensor, so handles can
/// still remove hooks.
#[derive(Default)]
pub(super) struct LeafHooks(Mutex<LeafHookLists>);

#[derive(Default)]
struct LeafHookLists {
    grad: SmallVec<[(u64, GradHook); 1]>,
    accumulated: SmallVec<[(u64, LeafHook); 1]>,
}

impl LeafHooks {
    fn lists(&self) -> MutexGuard<'_, LeafHookLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a hook from the lists and returns it. The caller drops the hook without the lock, because the
    /// hook may own user values.
    fn take(&self, id: u64) -> (Option<GradHook>, Option<LeafHook>) {
        let mut lists = self.lists();
        let grad = lists.grad.iter().position(|hook| hook.0 == id);
        let accumulated = lists.accumulated.iter().position(|hook| hook.0 == id);
        (
            grad.map(|index| lists.grad.remove(index).1),
            accumulated.map(|index| lists.accumulated.remove(index).1),
        )
    }

    fn grad(&self) -> SmallVec<[GradHook; 1]> {
        self.lists().grad.iter().map(|hook| hook.1.clone()).collect()
    }

    fn accumulated(&self) -> SmallVec<[LeafHook; 1]> {
        self.lists().accumulated.iter().map(|hook| hook.1.clone()).collect()
    }
}

impl HookList for LeafHooks {
    fn remove(&self, id: u64) {
        drop(self.take(id));
    }
}

impl HookList for GradNode {
    fn remove(&self, id: u64) {
        drop(self.take_hook(|hook| hook.id == id));
    }
}

impl HookHandle {
    /// Creates a handle for a new hook of a list. [`HookHandle::id`] is the number under which the list keeps the hook.
    #[must_use]
    pub fn new(list: Weak<dyn HookList>) -> Self {
        Self { id: next_id(), list }
    }

    fn of<L: HookList + 'static>(list: &Arc<L>) -> Self {
        let list: Weak<L> = Arc::downgrade(list);
        Self::new(list)
    }

    /// Returns the number of the hook, unique in the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Removes the hook.
    pub fn remove(self) {
        if let Some(list) = self.list.upgrade() {
            list.remove(self.id);
        }
    }
}

impl std::fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Calls the hooks of a node, and of its leaf if the node is an accumulator, with the gradients that have
/// arrived. A tensor that cannot replace a gradient is an error of the call at `site`.
pub(super) fn call_hooks(node: &GradNode, grads: &mut [Option<Tensor>], site: Site) -> Result<()> {
    let hooks: SmallVec<[_; 1]> = {
        let hooks = node.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let (keep, see): (Vec<&NodeHook>, Vec<&NodeHook>) =
            hooks.iter().partition(|hook| hook.retains_grad);
        see.into_iter().chain(keep).map(|hook| (hook.output, hook.call.clone())).collect()
    };
    for (output, call) in hooks {
        if let Some(Some(grad)) = grads.get_mut(output) {
            replace_with_returned(site, grad, call(grad)?)?;
        }
    }
    if let (NodeKind::Accumulator(leaf), [Some(grad)]) = (&node.kind, grads) {
        for call in AutogradMeta::of(leaf).hooks().iter().flat_map(|hooks| hooks.grad()) {
            replace_with_returned(site, grad, call(grad)?)?;
        }
    }
    Ok(())
}

/// Calls the post-accumulate hooks of a leaf.
pub(super) fn call_leaf_hooks(leaf: &Tensor) -> Result<()> {
    let hooks = AutogradMeta::of(leaf).hooks();
    hooks.iter().flat_map(|hooks| hooks.accumulated()).try_for_each(|call| call(leaf))
}

/// Moves the `retain_grad` hook of a tensor from its former edge to its new edge.
pub(super) fn move_retain_grad_hook(edge: &Edge, former: &Edge) {
    let retains_grad = |hook: &NodeHook| hook.retains_grad && hook.output == former.output;
    let Some(hook) = former.node.take_hook(retains_grad) else { return };
    edge.node.add_hook(NodeHook { output: edge.output, ..hook });
}

impl GradNode {
    fn add_hook(&self, hook: NodeHook) {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Removes a hook and returns it. The caller drops the hook without the lock, because the hook owns user
    /// values.
    fn take_hook(&self, which: impl Fn(&NodeHook) -> bool) -> Option<NodeHook> {
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let index = hooks.iter().position(which)?;
        Some(hooks.remove(index))
    }
}

/// Replaces a gradient with the tensor that a hook returned, if any. Fails if their sizes, dtypes or devices
/// differ.
fn replace_with_returned(site: Site, grad: &mut Tensor, returned: Option<Tensor>) -> Result<()> {
    let Some(other) = returned else { return Ok(()) };
    let (own, new) = (TensorSpec::of(grad), TensorSpec::of(&other));
    if own != new {
        let reason = format!("a hook returned {new} as a replacement for {own}");
        return Err(Error::new(ErrorKind::Gradient { reason }, site));
    }
    *grad = other;
    Ok(())
}

impl Tensor {
    /// Registers a hook that a backward pass calls with each gradient of this tensor before it is passed on
    /// (`Tensor.register_hook`). A gradient that the hook returns is passed on instead; with `None` the
    /// gradient stays. Hooks run on the thread that called `backward`, with the stream of the tensor's op as the
    /// current stream, and in the order of their registration.
    ///
    /// ```
    /// use warpline::ones;
    ///
    /// let x = ones([2], ())?.requires_grad_(true)?;
    /// x.register_hook(|grad| grad.mul(10).map(Some))?;
    /// x.sum(())?.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [10.0, 10.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor requires no gradient. [`ErrorKind::Moved`] if the tensor is a
    /// parameter whose module was moved. The backward pass fails with [`ErrorKind::Gradient`] if a hook
    /// returns a gradient with different sizes or a different dtype or device.
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.requires_grad() {
            let reason = "the tensor does not require a gradient, so there is none to hook; call \
                          requires_grad_(true) first";
            return Err(Error::gradient("register_hook", reason));
        }
        check_not_moved("register_hook", self)?;
        let call: GradHook = Arc::new(hook);
        if self.is_leaf() {
            let hooks = AutogradMeta::of(self).own_hooks();
            let handle = HookHandle::of(&hooks);
            hooks.lists().grad.push((handle.id, call));
            return Ok(handle);
        }
        let edge = self.edge();
        let Some(edge) = edge else {
            return Err(Error::gradient("register_hook", "the tensor has no graph"));
        };
        let handle = HookHandle::of(&edge.node);
        let (id, output) = (handle.id, edge.output);
        edge.node.add_hook(NodeHook { id, output, call, retains_grad: false });
        Ok(handle)
    }

    /// Keeps the gradient of a tensor that is not a leaf in [`Tensor::grad`] (`Tensor.retain_grad`), as a contiguous
    /// copy. The gradient is kept after all hooks have changed it. After an in-place op, the kept gradient is the
    /// gradient of the changed tensor. Has no effect on a leaf.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor requires no gradient. The backward pass fails with the errors of
    /// [`Tensor::copy`].
    #[track_caller]
    pub fn retain_grad(&self) -> Result<()> {
        if !self.requires_grad() {
            let reason = "the tensor does not require a gradient, so there is none to keep";
            return Err(Error::gradient("retain_grad", reason));
        }
        if self.is_leaf() {
            return Ok(());
        }
        let Some(edge) = self.edge() else { return Ok(()) };
        if AutogradMeta::of(self).retain_grad() {
            return Ok(());
        }
        let weak = Arc::downgrade(self.inner());
        let call = move |grad: &Tensor| {
            if let Some(inner) = weak.upgrade() {
                let tensor = Tensor::from_inner(inner);
                let meta = AutogradMeta::of(&tensor);
                let sum = match meta.grad() {
                    // The pass and the program may change the memory of `grad` later.
                    None => grad.copy_in(MemoryFormat::Contiguous)?,
                    Some(former) => former.add(grad)?,
                };
                drop(meta.replace_grad(Some(sum)));
            }
            Ok(None)
        };
        edge.node.add_hook(NodeHook {
            id: next_id(),
            output: edge.output,
            call: Arc::new(call),
            retains_grad: true,
        });
        Ok(())
    }

    /// Registers a hook that is called with this leaf after a backward pass has added to its gradient
    /// (`register_post_accumulate_grad_hook`). The hook can step an optimizer within the backward pass, for
    /// example.
    ///
    /// The leaf owns the hook. A hook that owns the leaf, or an optimizer of the leaf, keeps both alive
    /// forever. Use the argument of the hook instead, and a [`Weak`] handle of the optimizer, as in the
    /// [recipe](crate::guide::from_pytorch#optimizer-steps-in-the-backward-pass).
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor is not a leaf that requires a gradient. [`ErrorKind::Moved`] if
    /// the tensor is a parameter whose module was moved.
    #[track_caller]
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.requires_grad() || !self.is_leaf() {
            let reason = "only a leaf that requires a gradient accumulates one";
            return Err(Error::gradient("register_post_accumulate_grad_hook", reason));
        }
        check_not_moved("register_post_accumulate_grad_hook", self)?;
        let hooks = AutogradMeta::of(self).own_hooks();
        let handle = HookHandle::of(&hooks);
        hooks.lists().accumulated.push((handle.id, Arc::new(hook)));
        Ok(handle)
    }
}
