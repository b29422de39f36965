//! Training with a process for each GPU: `DistributedDataParallel` (`torch.nn.parallel.DistributedDataParallel`).
//!
//! Every rank has the whole module and trains it on its own part of the batch. The gradients are averaged over the
//! ranks in the backward pass, so all ranks make the same optimizer step.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | construction, forward pass, `no_sync` |
//! | `sync.rs` | comparison of the ranks' models, broadcast of parameters and buffers |
//! | `buckets.rs` | assignment of parameters to buckets, and the buckets' memory |
//! | `reducer/` | an iteration: gradients into buckets, reductions in order, gradients back |
//! | `hooks.rs` | communication hooks |
//! | `join.rs` | uneven inputs |
//!
//! # An iteration
//!
//! 1. `call` rebuilds the buckets if due, copies the buffers of rank 0, runs the module, and calls `Reducer::prepare`
//!    with the outputs.
//! 2. In the backward pass, the hook of each parameter calls `Reducer::gradient_arrived` after the accumulation. This
//!    function copies the gradient to its bucket, and launches the reductions of complete buckets on the group's own
//!    stream. The backward pass continues meanwhile.
//! 3. The last launch queues `Reducer::finish` as a callback at the end of the backward pass. The callback makes the
//!    caller's stream wait for the reductions, on the GPU, and copies the means to the gradients.
//!
//! The hooks have only weak references to the reducer, and the reducer owns the parameters, so there is no reference
//! cycle. Dropping the `DistributedDataParallel` removes the hooks.
//!
//! # Invariants
//!
//! - All ranks call the same collectives in the same order. With `init_sync`, the constructor compares everything that
//!   determines this order: options, names, shapes and dtypes. The order of rebuilt buckets is that of rank 0.
//! - A mean is a division followed by a sum, as in PyTorch, so that sums in half precision do not overflow.
//! - In a captured iteration the host never waits. In other iterations it waits only for the rebuilding of buckets, the
//!   exchange of unused parameters, and the numbers of ranks that `join` reads. Capture after a few iterations, as in
//!   PyTorch.

mod buckets;
mod error;
mod hooks;
mod join;
mod options;
mod reducer;
mod sync;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use warpline::autograd::{
    Context, Function, Gradients, HookHandle, Reclaimed, ToSave, is_grad_enabled, queue_callback,
};
use warpline::{IntoOptions, Result, Tensor};
use warpline_nn::{Forward, Module, TensorTree, Visitor, VisitorMut};

use super::ProcessGroup;
use buckets::NamedParameter;
use reducer::Reducer;
use sync::{broadcast_coalesced, check_equal};

pub use error::DdpError;
pub use hooks::{
    BucketReduction, GradBucket, allreduce_hook, bf16_compress_hook, fp16_compress_hook,
};
pub use join::JoinOptions;
pub use options::DdpOptions;

/// Trains a module in several processes (`torch.nn.parallel.DistributedDataParallel`). Each rank of the group runs the
/// module on its own inputs; the backward pass averages the gradients over the ranks.
///
/// ```
/// use warpline::{full, manual_seed};
/// use warpline_nn::{Linear, Module, optim::{Optimizer, SGD, SGDOptions}};
/// use warpline_parallel::distributed::{DistributedDataParallel, spawn};
///
/// let weights = spawn(2, |group| {
///     let rank = group.rank();
///     manual_seed(rank as u64); // rank 1 gets the parameters of rank 0
///     let net = DistributedDataParallel::new(Linear::new(4, 2, ())?, group, ())?;
///     let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.1))?;
///     let loss = net.forward(full([3, 4], rank as f64, ())?)?.square()?.mean(())?;
///     loss.backward()?;
///     optimizer.step()?;
///     net.module().weight.to_vec::<f32>()
/// })?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// The module must be on the group's device. Create an ordinary optimizer from the module's parameters, before or after
/// creating the `DistributedDataParallel`. If the loss is a mean over the rank's part of the batch, and all parts have
/// the same size, the gradients are those of the mean over the whole batch.
///
/// Each forward pass in which gradients are recorded must be followed by a backward pass that reaches all parameters,
/// on all ranks, unless [`DdpOptions::find_unused_parameters`] or [`DdpOptions::static_graph`] is set.
pub struct DistributedDataParallel<M> {
    module: M,
    reducer: Arc<Reducer>,
    hooks: Vec<HookHandle>,
    /// Whether backward passes reduce gradients. False within `no_sync`.
    syncs: AtomicBool,
    /// Whether gradients of the last forward pass are reduced. If so, the next forward pass copies the buffers.
    synced_forward: AtomicBool,
    join: Mutex<Option<JoinOptions>>,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Compares the models of all ranks and copies the parameters and buffers of rank 0 to the other ranks, in pieces
    /// of about 250 MiB, unless [`DdpOptions::init_sync`] is off. Registers a hook on each parameter that requires a
    /// gradient. All ranks must call this function, in the same order relative to their other calls on the group.
    ///
    /// # Errors
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with a [`DdpError`] as its source:
    /// [`DdpError::NoParameters`] if no parameter requires a gradient, [`DdpError::WrongDevice`] if a parameter or
    /// buffer is not on the group's device, [`DdpError::Differs`] if the ranks have different models or options. Errors
    /// of the collectives ([`ProcessGroup::all_reduce`]), which end at the group's timeout if a rank creates no
    /// `DistributedDataParallel`.
    #[track_caller]
    pub fn new(
        module: M,
        group: ProcessGroup,
        options: impl IntoOptions<DdpOptions>,
    ) -> Result<Self> {
        let options = options.into_options();
        let (parameters, buffers) = (module.named_parameters(), module.named_buffers());
        let expected = group.device();
        for (name, tensor) in parameters.iter().chain(&buffers) {
            let (name, found) = (name.clone(), tensor.device());
            if found != expected {
                return Err(DdpError::WrongDevice { name, found, expected }.into());
            }
        }
        if options.init_sync {
            let describe = |kind: &'static str, (name, tensor): &(String, Tensor)| {
                let grad = if tensor.requires_grad() { "" } else { " without gradient" };
                let (dtype, size) = (tensor.dtype().name(), tensor.size());
                format!("{kind} {name}: {dtype}{size:?}{grad}")
            };
            let mut lines = vec![format!("{options:?}")];
            lines.extend(parameters.iter().map(|parameter| describe("the parameter", parameter)));
            lines.extend(buffers.iter().map(|buffer| describe("the buffer", buffer)));
            check_equal(&group, &lines)?;
            let all = parameters.iter().chain(&buffers).map(|(_, tensor)| tensor.clone());
            broadcast_coalesced(&group, &all.collect::<Vec<_>>(), 0)?;
        }
        let trained = parameters.into_iter().filter(|(_, tensor)| tensor.requires_grad());
        let trained: Vec<_> =
            trained.map(|(name, tensor)| NamedParameter { name, tensor }).collect();
        if trained.is_empty() {
            return Err(DdpError::NoParameters.into());
        }
        let reducer = Arc::new(Reducer::new(group, options, trained)?);
        let mut net = Self {
            module,
            reducer,
            hooks: Vec::new(),
            syncs: AtomicBool::new(true),
            synced_forward: AtomicBool::new(true),
            join: Mutex::default(),
        };
        for (index, parameter) in net.reducer.parameters.iter().enumerate() {
            let reducer = Arc::downgrade(&net.reducer);
            let hook = parameter.tensor.register_post_accumulate_grad_hook(move |_| {
                reducer.upgrade().map_or(Ok(()), |reducer| reducer.gradient_arrived(index))
            })?;
            net.hooks.push(hook);
        }
        Ok(net)
    }

    /// Computes the module's output from this rank's input, and prepares the reduction of gradients in the backward
    /// pass. Pass several arguments as a tuple.
    ///
    /// # Errors
    /// The same as [`DistributedDataParallel::call`] and [`Forward::forward`] of the module.
    #[track_caller]
    pub fn forward<I>(&self, input: I) -> Result<M::Output>
    where
        M: Forward<I>,
        M::Output: TensorTree,
    {
        self.call(|module| module.forward(input))
    }

    /// Runs the closure `forward` as the forward pass. Use this function for modules that do not implement [`Forward`].
    ///
    /// # Errors
    /// The errors of `forward`. [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with the source
    /// [`DdpError::NotReduced`] if parameters got no gradient in the previous iteration, or
    /// [`DdpError::EarlyTermination`] within [`DistributedDataParallel::join`] if its options ask for this error and a
    /// rank has left the loop; [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a move of the module has replaced a
    /// parameter; errors of the collectives ([`ProcessGroup::all_reduce`]).
    #[track_caller]
    pub fn call<T: TensorTree>(&self, forward: impl FnOnce(&M) -> Result<T>) -> Result<T> {
        let records = is_grad_enabled();
        let reduces = records && self.syncs.load(Ordering::Relaxed);
        let join = *self.join.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(join) = join {
            self.announce_forward(join)?;
        }
        if records {
            self.reducer.check_not_moved()?;
            self.reducer.rebuild()?;
        }
        if self.copies_buffers() {
            // Under `join`, rank 0 may have left the loop, so that its buffers are out of date.
            let src = if join.is_some() { self.last_rank(true)? } else { 0 };
            broadcast_coalesced(self.group(), &self.module.buffers(), src)?;
        }
        if join.is_some() {
            self.announce_backward(reduces)?;
        }
        let output = forward(&self.module)?;
        self.synced_forward.store(reduces, Ordering::Relaxed);
        if !reduces {
            return Ok(output);
        }
        let mut tensors = Vec::new();
        let output = output.map_tensors(&mut |tensor| {
            tensors.push(tensor.clone());
            Ok(tensor)
        })?;
        self.reducer.prepare(&tensors);
        if !self.reducer.reduces_at_end() {
            return Ok(output);
        }
        let tracked: Vec<_> = tensors.iter().filter(|tensor| tensor.requires_grad()).collect();
        if tracked.is_empty() {
            return Ok(output);
        }
        let mut sinks = ReduceAtEnd(Arc::clone(&self.reducer)).apply(&tracked)?.into_iter();
        output.map_tensors(&mut |tensor| match tensor.requires_grad() {
            true => Ok(sinks.next().unwrap_or(tensor)),
            false => Ok(tensor),
        })
    }

    /// Returns all parameters and buffers.
    fn members(&self) -> Vec<Tensor> {
        self.module.parameters().into_iter().chain(self.module.buffers()).collect()
    }

    /// Returns whether the next forward pass begins with a broadcast of the buffers.
    fn copies_buffers(&self) -> bool {
        self.reducer.options.broadcast_buffers
            && self.synced_forward.load(Ordering::Relaxed)
            && !self.module.buffers().is_empty()
    }
}

impl<M> DistributedDataParallel<M> {
    /// Returns the module.
    #[must_use]
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Returns the module for modification. Its parameters must stay the same tensors.
    #[must_use]
    pub fn module_mut(&mut self) -> &mut M {
        &mut self.module
    }

    /// Returns the group of the ranks.
    #[must_use]
    pub fn group(&self) -> &ProcessGroup {
        &self.reducer.group
    }

    /// Returns the names of the parameters of each bucket. The buckets of the first iteration are rebuilt once, before
    /// the second forward pass (the third with [`DdpOptions::static_graph`]). With
    /// [`DdpOptions::find_unused_parameters`] and without a static graph, they are not rebuilt.
    #[must_use]
    pub fn bucket_names(&self) -> Vec<Vec<String>> {
        let name = |index: usize| self.reducer.parameters[index].name.clone();
        let buckets = self.reducer.assignment().into_iter();
        buckets.map(|bucket| bucket.into_iter().map(name).collect()).collect()
    }

    /// Runs `f`. Backward passes within `f` accumulate gradients and do not reduce them (`no_sync`). The next backward
    /// pass after `f` reduces the accumulated gradients. `f` must also run the forward passes of these backward passes.
    /// All ranks must use `no_sync` in the same iterations.
    ///
    /// ```
    /// use warpline::{Result, full};
    /// use warpline_nn::Linear;
    /// use warpline_parallel::distributed::{DistributedDataParallel, spawn};
    ///
    /// spawn(2, |group| {
    ///     let net = DistributedDataParallel::new(Linear::new(4, 2, ())?, group, ())?;
    ///     let step = || -> Result<()> { net.forward(full([3, 4], 1.0, ())?)?.sum(())?.backward() };
    ///     net.no_sync(step)?; // accumulates
    ///     step() // reduces the sum of both
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    pub fn no_sync<R>(&self, f: impl FnOnce() -> R) -> R {
        struct RestoreFlag<'a>(&'a AtomicBool, bool);
        impl Drop for RestoreFlag<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::Relaxed);
            }
        }
        let _restore = RestoreFlag(&self.syncs, self.syncs.swap(false, Ordering::Relaxed));
        f()
    }

    /// Sets the function that reduces each bucket (`register_comm_hook`). All ranks must set the same function, before
    /// the first iteration or between two iterations. Default: the mean over all ranks ([`allreduce_hook`]). The module
    /// [`ddp`](crate::distributed::ddp) has other hooks.
    ///
    /// The function may return any tensor with as many elements as the bucket's buffer. It must not use this
    /// `DistributedDataParallel`.
    ///
    /// ```
    /// use warpline::{Result, ones};
    /// use warpline_nn::Linear;
    /// use warpline_parallel::distributed::ddp::{BucketReduction, GradBucket};
    /// use warpline_parallel::distributed::{DistributedDataParallel, ReduceOp, spawn};
    ///
    /// /// Sums instead of averaging.
    /// fn sum(bucket: &GradBucket) -> Result<BucketReduction> {
    ///     let work = bucket.all_reduce(bucket.buffer(), ReduceOp::Sum)?;
    ///     Ok(BucketReduction::after(work, bucket.buffer().clone()))
    /// }
    ///
    /// spawn(2, |group| {
    ///     let mut net = DistributedDataParallel::new(Linear::new(1, 1, ())?, group, ())?;
    ///     net.register_comm_hook(sum);
    ///     net.forward(ones([3, 1], ())?)?.sum(())?.backward()?;
    ///     assert_eq!(net.module().weight.grad().unwrap().item::<f32>()?, 6.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    pub fn register_comm_hook(
        &mut self,
        hook: impl Fn(&GradBucket) -> Result<BucketReduction> + Send + Sync + 'static,
    ) {
        let hook = Reclaimed::new(hook);
        self.reducer.set_hook(Arc::new(move |bucket: &GradBucket| hook(bucket)));
    }
}

impl<I, M> Forward<I> for DistributedDataParallel<M>
where
    M: Module + Forward<I>,
    M::Output: TensorTree,
{
    type Output = M::Output;

    #[track_caller]
    fn forward(&self, input: I) -> Result<M::Output> {
        self.call(|module| module.forward(input))
    }
}

/// The only member is the wrapped module, under the name `module`. Names of its parameters
/// therefore begin with `module.`, as in PyTorch.
impl<M: Module> Module for DistributedDataParallel<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
        visitor.member("module", &self.module);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.member("module", &mut self.module);
    }
}

impl<M> Drop for DistributedDataParallel<M> {
    fn drop(&mut self) {
        self.hooks.drain(..).for_each(HookHandle::remove);
    }
}

impl<M> fmt::Debug for DistributedDataParallel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedDataParallel")
            .field("group", self.group())
            .field("options", &self.reducer.options)
            .finish_non_exhaustive()
    }
}

/// Returns its inputs, the module's outputs, and their gradients unchanged. The backward pass of this function runs
/// before those of the module's ops, and queues the reduction of all buckets at the end of the whole backward pass. A
/// hook of a parameter could not do this, because it may run in a backward pass of a checkpoint.
struct ReduceAtEnd(Arc<Reducer>);

impl Function for ReduceAtEnd {
    const NAME: &'static str = "reduce_at_end";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(inputs.iter().copied().cloned().collect())
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let reducer = Arc::clone(&self.0);
        queue_callback(move || reducer.reduce_at_end())?;
        Ok(grads.iter().cloned().collect())
    }
}
