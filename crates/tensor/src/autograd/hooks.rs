//! Hooks: functions of the program that are called with gradients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;

use super::meta::Meta;
use super::moved::check_not_moved;
use super::node::{Edge, Like, Node, Work};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result, Tensor};

/// A function that is called with a gradient, and may return a replacement.
pub(super) type GradHook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;
/// A function that is called with a leaf after its gradient was added to.
pub(super) type LeafHook = Arc<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// A hook of one of a node's results.
pub(super) struct Hook {
    id: u64,
    pub(super) output: usize,
    pub(super) call: GradHook,
    /// Whether the hook keeps the gradient of a tensor (`retain_grad`). Such a hook runs after all others, and
    /// moves with the tensor's gradient.
    keeps: bool,
}

static IDS: AtomicU64 = AtomicU64::new(0);

pub(super) fn id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// A handle that removes a hook (`RemovableHandle`). Dropping the handle does not remove the hook.
#[derive(Debug)]
pub struct HookHandle {
    id: u64,
    place: Place,
}

enum Place {
    Node(Weak<Node>),
    Leaf(Weak<LeafHooks>),
}

/// The hooks of a leaf. When the leaf is moved, its hooks go to the tensor that replaces it, so handles still
/// find them.
#[derive(Default)]
pub(super) struct LeafHooks(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    grad: SmallVec<[(u64, GradHook); 1]>,
    accumulated: SmallVec<[(u64, LeafHook); 1]>,
}

impl LeafHooks {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a hook from the list and returns it. The caller drops it without the lock, because it may own
    /// values of the program.
    fn take(&self, id: u64) -> (Option<GradHook>, Option<LeafHook>) {
        let mut lists = self.lists();
        let grad = lists.grad.iter().position(|hook| hook.0 == id);
        let accumulated = lists.accumulated.iter().position(|hook| hook.0 == id);
        (
            grad.map(|place| lists.grad.remove(place).1),
            accumulated.map(|place| lists.accumulated.remove(place).1),
        )
    }

    fn grad(&self) -> SmallVec<[GradHook; 1]> {
        self.lists().grad.iter().map(|hook| hook.1.clone()).collect()
    }

    fn accumulated(&self) -> SmallVec<[LeafHook; 1]> {
        self.lists().accumulated.iter().map(|hook| hook.1.clone()).collect()
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Node(_) => "Node",
            Self::Leaf(_) => "Leaf",
        })
    }
}

impl HookHandle {
    /// Removes the hook.
    pub fn remove(self) {
        match self.place {
            Place::Node(node) => {
                if let Some(node) = node.upgrade() {
                    drop(node.take_hook(|hook| hook.id == self.id));
                }
            }
            Place::Leaf(leaf) => {
                if let Some(leaf) = leaf.upgrade() {
                    drop(leaf.take(self.id));
                }
            }
        }
    }
}

/// Calls the hooks of a node, and those of a leaf, with the gradients that they are about to get.
pub(super) fn call_hooks(node: &Arc<Node>, grads: &mut [Option<Tensor>]) -> Result<()> {
    let hooks: SmallVec<[_; 1]> = {
        let hooks = node.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let (keep, see): (Vec<&Hook>, Vec<&Hook>) = hooks.iter().partition(|hook| hook.keeps);
        see.into_iter().chain(keep).map(|hook| (hook.output, hook.call.clone())).collect()
    };
    for (output, call) in hooks {
        if let Some(Some(grad)) = grads.get_mut(output) {
            hooked(node, grad, call(grad)?)?;
        }
    }
    if let (Work::Accumulate(leaf), [Some(grad)]) = (&node.work, grads) {
        for call in Meta::of(leaf).hooks().iter().flat_map(|hooks| hooks.grad()) {
            hooked(node, grad, call(grad)?)?;
        }
    }
    Ok(())
}

/// Calls the hooks of a leaf after its gradient was added to.
pub(super) fn call_leaf_hooks(leaf: &Tensor) -> Result<()> {
    let hooks = Meta::of(leaf).hooks();
    hooks.iter().flat_map(|hooks| hooks.accumulated()).try_for_each(|call| call(leaf))
}

/// Moves the hook that keeps a tensor's gradient from the former edge to the new one.
pub(super) fn keep_at(edge: &Edge, former: &Edge) {
    let keeps = |hook: &Hook| hook.keeps && hook.output == former.output;
    let Some(hook) = former.node.take_hook(keeps) else { return };
    edge.node.add_hook(Hook { output: edge.output, ..hook });
}

impl Node {
    fn add_hook(&self, hook: Hook) {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Removes a hook and returns it. The caller drops it without the lock, because it owns values of the
    /// program.
    fn take_hook(&self, which: impl Fn(&Hook) -> bool) -> Option<Hook> {
        let mut hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let place = hooks.iter().position(which)?;
        Some(hooks.remove(place))
    }
}

/// Replaces a gradient with the one that a hook returned, if both have the same sizes, dtype and device.
fn hooked(node: &Node, grad: &mut Tensor, returned: Option<Tensor>) -> Result<()> {
    let Some(other) = returned else { return Ok(()) };
    let (own, new) = (Like::of(grad), Like::of(&other));
    if own != new {
        let reason = format!("a hook returned {new} in place of a gradient, which is {own}");
        return Err(Error::gradient(node.name, reason).at(node.location));
    }
    *grad = other;
    Ok(())
}

impl Tensor {
    /// Registers a hook that a backward pass calls with each gradient of this tensor before it is passed on
    /// (`Tensor.register_hook`). A gradient that the hook returns is passed on instead; with `None` the
    /// gradient stays.
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
    /// parameter whose module was moved. A hook that returns a gradient of other sizes, dtype or device is an
    /// [`ErrorKind::Gradient`] of the backward pass.
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        if !self.requires_grad() {
            let reason =
                "a tensor that wants no gradient has none to hook; call requires_grad_(true) first";
            return Err(Error::gradient("register_hook", reason));
        }
        check_not_moved("register_hook", self)?;
        let (id, call): (u64, GradHook) = (id(), Arc::new(hook));
        if self.is_leaf() {
            let hooks = Meta::of(self).own_hooks();
            hooks.lists().grad.push((id, call));
            return Ok(HookHandle { id, place: Place::Leaf(Arc::downgrade(&hooks)) });
        }
        let edge = self.edge();
        let Some(edge) = edge else {
            return Err(Error::gradient("register_hook", "the tensor has no graph"));
        };
        edge.node.add_hook(Hook { id, output: edge.output, call, keeps: false });
        Ok(HookHandle { id, place: Place::Node(Arc::downgrade(&edge.node)) })
    }

    /// Keeps the gradient of a tensor that is not a leaf in [`Tensor::grad`] (`Tensor.retain_grad`). The kept
    /// gradient is the one after all hooks. After an in-place op, it is the gradient of the changed tensor. No
    /// effect on a leaf.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor requires no gradient.
    #[track_caller]
    pub fn retain_grad(&self) -> Result<()> {
        if !self.requires_grad() {
            let reason = "a tensor that wants no gradient has none to keep";
            return Err(Error::gradient("retain_grad", reason));
        }
        if self.is_leaf() {
            return Ok(());
        }
        let Some(edge) = self.edge() else { return Ok(()) };
        if Meta::of(self).retain_grad() {
            return Ok(());
        }
        let weak = Arc::downgrade(self.inner());
        let call = move |grad: &Tensor| {
            if let Some(inner) = weak.upgrade() {
                let tensor = Tensor::from_inner(inner);
                let meta = Meta::of(&tensor);
                let sum = match meta.grad() {
                    None => grad.clone(),
                    Some(former) => former.add(grad)?,
                };
                drop(meta.replace_grad(Some(sum)));
            }
            Ok(None)
        };
        edge.node.add_hook(Hook {
            id: id(),
            output: edge.output,
            call: Arc::new(call),
            keeps: true,
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
            let reason = "only a leaf that wants a gradient accumulates one";
            return Err(Error::gradient("register_post_accumulate_grad_hook", reason));
        }
        check_not_moved("register_post_accumulate_grad_hook", self)?;
        let (id, hooks) = (id(), Meta::of(self).own_hooks());
        hooks.lists().accumulated.push((id, Arc::new(hook)));
        Ok(HookHandle { id, place: Place::Leaf(Arc::downgrade(&hooks)) })
    }
}
