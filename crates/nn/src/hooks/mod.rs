//! Modules with hooks: functions that are called with inputs, outputs and gradients of a module.
//!
//! A forward pass of a [`Hooked`] module runs in PyTorch's order: pre-hooks, the module, forward hooks. Backward hooks
//! see the input after the pre-hooks and the output after the forward hooks.

mod backward;
mod tensors;

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use warpline::autograd::{HookHandle, HookList, Reclaimed, is_making_graphed_callables};
use warpline::{Error, Result, Tensor};

pub use backward::Grads;
use backward::{BackwardHook, BackwardHooks};
pub use tensors::TensorTree;

use crate::{Forward, Module, Visitor, VisitorMut};

/// Hooks with their numbers, in the order of their registration. Each hook owns the program's function as a
/// [`Reclaimed`], because the function may own a module with hooks, to any depth.
type Numbered<F> = Vec<(u64, Arc<F>)>;
type PreHook<M, I> = dyn Fn(&M, &I) -> Result<Option<I>> + Send + Sync;
type ForwardHook<M, I, O> = dyn Fn(&M, &I, &O) -> Result<Option<O>> + Send + Sync;

/// A module with hooks, which its forward pass calls. Its parameters have the same names as the module's, and it
/// dereferences to the module.
///
/// Elements of [`Sequential`](crate::Sequential) have hooks. A field of a struct has hooks if it is wrapped:
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use warpline::{Result, Tensor, ones};
/// use warpline_nn::{Hooked, Linear, Module};
///
/// #[derive(Module)]
/// struct Net {
///     fc1: Hooked<Linear>,
///     fc2: Linear,
/// }
///
/// impl Net {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.fc2.forward(&self.fc1.forward(x)?)
///     }
/// }
///
/// let net = Net { fc1: Hooked::new(Linear::new(4, 8, ())?), fc2: Linear::new(8, 2, ())? };
/// let features = Arc::new(Mutex::new(Vec::new()));
/// let seen = Arc::clone(&features);
/// let handle = net.fc1.register_forward_hook(move |_module, _input, output| {
///     seen.lock().unwrap().push(output.detach());
///     Ok(None) // keeps the output
/// });
/// net.forward(&ones([3, 4], ())?)?;
/// handle.remove();
/// net.forward(&ones([3, 4], ())?)?;
/// assert_eq!(features.lock().unwrap().len(), 1);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// `I` is the type of the module's input: a tensor, or a tuple for a module with several inputs, such as `Hooked<LSTM,
/// (Tensor, (Tensor, Tensor))>`. [`Hooked::forward`] is the method that calls hooks; a call of the module itself
/// (`hooked.deref().forward(…)`) calls no hooks, like `module.forward(…)` in PyTorch.
///
/// A clone has the same hooks. Hooks run on the thread of the forward or backward pass, in the order in which they were
/// registered.
///
/// Differences from PyTorch: only wrapped modules have hooks; a backward hook does not receive the module; there are no
/// hooks on all modules (`register_module_forward_hook`), and no options `prepend` and `always_call`.
pub struct Hooked<M: Forward<I> + 'static, I = Tensor> {
    module: Reclaimed<M>,
    hooks: Arc<ModuleHooks<M, I, M::Output>>,
}

/// The hooks of a module and its clones.
struct ModuleHooks<M, I, O>(Mutex<ModuleHookLists<M, I, O>>);

struct ModuleHookLists<M, I, O> {
    before: Numbered<PreHook<M, I>>,
    after: Numbered<ForwardHook<M, I, O>>,
    backward: Numbered<BackwardHook>,
}

impl<M, I, O> ModuleHooks<M, I, O> {
    fn lists(&self) -> MutexGuard<'_, ModuleHookLists<M, I, O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a hook from a list and returns it.
fn take<F: ?Sized>(list: &mut Numbered<F>, id: u64) -> Option<Arc<F>> {
    let index = list.iter().position(|hook| hook.0 == id)?;
    Some(list.remove(index).1)
}

fn copied<F: ?Sized>(list: &Numbered<F>) -> Vec<Arc<F>> {
    list.iter().map(|hook| hook.1.clone()).collect()
}

impl<M: 'static, I: 'static, O: 'static> HookList for ModuleHooks<M, I, O> {
    fn remove(&self, id: u64) {
        let mut lists = self.lists();
        let removed = (
            take(&mut lists.before, id),
            take(&mut lists.after, id),
            take(&mut lists.backward, id),
        );
        drop(lists);
        drop(removed);
    }
}

impl<M: Forward<I> + 'static, I> Hooked<M, I> {
    /// Wraps a module.
    #[must_use]
    pub fn new(module: M) -> Self {
        let (before, after, backward) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            module: Reclaimed::new(module),
            hooks: Arc::new(ModuleHooks(Mutex::new(ModuleHookLists { before, after, backward }))),
        }
    }

    /// Returns the module without its hooks.
    #[must_use]
    pub fn into_inner(self) -> M {
        self.module.into_inner()
    }
}

impl<M, I> Hooked<M, I>
where
    M: Forward<I> + 'static,
    M::Output: TensorTree + 'static,
    I: TensorTree + 'static,
{
    /// Calls the pre-hooks, the module and the forward hooks. The input is a value or a reference.
    ///
    /// # Errors
    /// Errors of the module and of the hooks. [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if
    /// there are hooks and [`make_graphed_callables`](warpline::cuda::make_graphed_callables) runs this call.
    #[track_caller]
    pub fn forward(&self, input: impl Borrow<I>) -> Result<M::Output> {
        let (before, after, backward) = {
            let lists = self.hooks.lists();
            (copied(&lists.before), copied(&lists.after), copied(&lists.backward))
        };
        let has_hooks = !(before.is_empty() && after.is_empty() && backward.is_empty());
        if has_hooks && is_making_graphed_callables() {
            let reason =
                "a module has hooks, but replays do not call hooks; remove the hooks of the module";
            return Err(Error::invalid("make_graphed_callables", reason));
        }
        let mut input = input.borrow().clone();
        for hook in before {
            if let Some(other) = hook(&self.module, &input)? {
                input = other;
            }
        }
        if after.is_empty() && backward.is_empty() {
            return self.module.forward(input);
        }
        let backward = BackwardHooks::new(backward);
        let (input, backward) = backward.connect_input(input)?;
        let mut output = self.module.forward(input.clone())?;
        for hook in after {
            if let Some(other) = hook(&self.module, &input, &output)? {
                output = other;
            }
        }
        backward.connect_output(output)
    }

    /// Registers a function that each forward pass calls with the module and its input before the module runs
    /// (`register_forward_pre_hook`). An input that the function returns replaces the input; `None` keeps it.
    ///
    /// ```
    /// use warpline::ones;
    /// use warpline_nn::{ReLU, Sequential};
    ///
    /// let net = Sequential::new().with(ReLU);
    /// net[0].register_forward_pre_hook(|_module, input| input.mul(3).map(Some));
    /// assert_eq!(net.forward(&ones([2], ())?)?.to_vec::<f32>()?, [3.0, 3.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    pub fn register_forward_pre_hook(
        &self,
        hook: impl Fn(&M, &I) -> Result<Option<I>> + Send + Sync + 'static,
    ) -> HookHandle {
        let handle = self.handle();
        let hook = Reclaimed::new(hook);
        let hook = Arc::new(move |module: &M, input: &I| hook(module, input));
        self.hooks.lists().before.push((handle.id(), hook));
        handle
    }

    /// Registers a function that each forward pass calls with the module, its input and its output
    /// (`register_forward_hook`). An output that the function returns replaces the output; `None` keeps it.
    pub fn register_forward_hook(
        &self,
        hook: impl Fn(&M, &I, &M::Output) -> Result<Option<M::Output>> + Send + Sync + 'static,
    ) -> HookHandle {
        let handle = self.handle();
        let hook = Reclaimed::new(hook);
        let hook =
            Arc::new(move |module: &M, input: &I, output: &M::Output| hook(module, input, output));
        self.hooks.lists().after.push((handle.id(), hook));
        handle
    }

    /// Registers a function that each backward pass calls with the gradients of the module's inputs and of its outputs,
    /// when both are known (`register_full_backward_hook`). Gradients that the function returns replace the gradients
    /// of the inputs; `None` leaves the gradients of the inputs unchanged.
    ///
    /// Each list has one entry for each tensor of the input or output, in the order of [`TensorTree`]. An entry is
    /// `None` if the tensor requires no gradient or none arrived. If no input requires a gradient, the hook runs when
    /// the gradients of the outputs have arrived, and must return `None`.
    ///
    /// A forward pass uses the hooks that are registered when it runs. A forward pass that records no gradients
    /// (`no_grad`) has no backward hooks. If a module has backward hooks, do not change its inputs or outputs in place.
    ///
    /// ```
    /// use warpline::ones;
    /// use warpline_nn::{ReLU, Sequential};
    ///
    /// let net = Sequential::new().with(ReLU);
    /// net[0].register_full_backward_hook(|_grad_input, grad_output| {
    ///     let doubled = grad_output[0].as_ref().map(|grad| grad.mul(2)).transpose()?;
    ///     Ok(Some(vec![doubled]))
    /// });
    /// let x = ones([2], ())?.requires_grad_(true)?;
    /// net.forward(&x)?.sum(())?.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// A hook that returns a wrong number of gradients, or gradients that do not fit their inputs, makes the backward
    /// pass fail with [`ErrorKind::Gradient`](warpline::ErrorKind::Gradient).
    pub fn register_full_backward_hook(
        &self,
        hook: impl Fn(&Grads, &Grads) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync + 'static,
    ) -> HookHandle {
        let handle = self.handle();
        let hook = Reclaimed::new(hook);
        let hook = Arc::new(move |inputs: &Grads, outputs: &Grads| hook(inputs, outputs));
        self.hooks.lists().backward.push((handle.id(), hook));
        handle
    }

    fn handle(&self) -> HookHandle {
        let list: Weak<ModuleHooks<M, I, M::Output>> = Arc::downgrade(&self.hooks);
        HookHandle::new(list)
    }
}

impl<M, I> Forward<I> for Hooked<M, I>
where
    M: Forward<I> + 'static,
    M::Output: TensorTree + 'static,
    I: TensorTree + 'static,
{
    type Output = M::Output;

    #[track_caller]
    fn forward(&self, input: I) -> Result<M::Output> {
        self.forward(input)
    }
}

/// The members have the same names as in the wrapped module.
impl<M, I> Module for Hooked<M, I>
where
    M: Module + Forward<I>,
    M::Output: 'static,
    I: 'static,
{
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        self.module.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.module.visit_mut(visitor);
    }

    fn as_module(&self) -> Option<&dyn Module> {
        self.module.as_module()
    }

    fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
        self.module.as_module_mut()
    }

    fn type_name(&self) -> &'static str {
        self.module.type_name()
    }

    fn extra_repr(&self) -> String {
        self.module.extra_repr()
    }
}

impl<M: Forward<I> + 'static, I> Deref for Hooked<M, I> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M: Forward<I> + 'static, I> DerefMut for Hooked<M, I> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.module
    }
}

/// A clone has the same hooks.
impl<M: Forward<I> + Clone + 'static, I> Clone for Hooked<M, I> {
    fn clone(&self) -> Self {
        Self { module: self.module.clone(), hooks: Arc::clone(&self.hooks) }
    }
}

/// Writes the tree of the module.
impl<M: Module + Forward<I> + 'static, I> fmt::Display for Hooked<M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module: &dyn Module = &*self.module;
        fmt::Display::fmt(module, f)
    }
}

/// Writes the tree of the module.
impl<M: Module + Forward<I> + 'static, I> fmt::Debug for Hooked<M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
