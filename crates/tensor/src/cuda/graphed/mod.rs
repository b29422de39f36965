//! Callables whose forward and backward passes are replays of graphs.
//!
//! [`make_graphed_callables`] runs each callable a few times, captures the forward passes in their order, and then the
//! backward passes in reverse order, all in one pool. A call copies its inputs into the memory of the capture, replays
//! the forward graph, and records one node, whose gradient replays the backward graph.
//!
//! # Invariants
//!
//! - A gradient never stops silently. The leaves that a callable uses besides its inputs are found in the captured
//!   autograd graph, and are inputs of the node. With gradients enabled, a call with an input that requires a gradient
//!   is refused if the sample required none. A leaf that required no gradient during the capture is not in the captured
//!   graph, so a call cannot notice that the leaf requires a gradient now. The documentation of
//!   [`make_graphed_callables`] says so.
//! - A callable has one set of intermediate results, which each call overwrites. A node remembers the number of its call,
//!   and its backward pass fails after a later call. Captures of other callables in the pool reuse memory, so all
//!   callables of a pool share one `PassLog`, and a pass that may have overwritten the intermediate results counts too.
//! - Results of a call lie in memory that the next call overwrites. The overwrite changes the version of the storage, so
//!   a backward pass that needs a former result fails.
//! - A backward pass fails if a tensor that it reads was changed after the call, as without graphs. The saved tensors
//!   that a program can change are results, parameters and other tensors from outside the capture. They are found in
//!   the captured autograd graph, and their versions are recorded after the forward replay. A replay counts as a write
//!   of all storages in its pool, so the versions of results are recorded again after each pass in the pool.
//! - The gradients in the memory of the graph have a second owner, `BackwardPass`, so the accumulation of a leaf's
//!   gradient copies them.

mod pass_log;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use warpline_runtime::Version;

use super::{CaptureOptions, CudaGraph, GraphPool, Stream, graph_pool_handle};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::drop_casts;
use crate::autograd::{
    Context, Function, GradOptions, Gradients, ModeGuard, ToSave, check_not_moved, for_each_saved,
    grad_before_leaf_hooks, has_node, is_grad_enabled, next_op, no_grad, op_before,
    reachable_leaves, should_record,
};
use crate::{CallScope, Device, Error, IntoOptions, Result, Site, Tensor};
use pass_log::{PassLog, lock};

const OP: &str = "make_graphed_callables";

type BoxedFunction<'a> = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a>;

/// A function with sample inputs, for [`make_graphed_callables`].
pub struct Callable<'a> {
    f: BoxedFunction<'a>,
    sample: Vec<Tensor>,
}

impl<'a> Callable<'a> {
    /// Creates a callable from a function and inputs for its capture. The inputs of later calls have the sizes, dtypes
    /// and device of the sample. The values of the sample are not changed.
    #[must_use]
    pub fn new(f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a, sample: &[&Tensor]) -> Self {
        Self { f: Box::new(f), sample: sample.iter().copied().cloned().collect() }
    }
}

impl fmt::Debug for Callable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callable").field("sample", &self.sample.len()).finish_non_exhaustive()
    }
}

crate::__options! {
    /// Options of [`make_graphed_callables`].
    #[derive(Clone, Debug)]
    GraphedOptions [] [] {
        /// Sets the number of times that each callable runs before its capture. Default: 3.
        num_warmup_iters: usize = 3, usize;
        /// Sets whether a sample input that requires a gradient may have no effect on the results. Its gradient is then
        /// `None`. Default: `false`, which makes it an error.
        allow_unused_input: bool = false, bool;
        /// Sets a pool that other graphs also use. Default: a new pool. Callables of an earlier capture in this pool share
        /// memory with the new callables: run the backward pass of a call before any call of the other set.
        pool: Option<GraphPool> = None, &GraphPool => |pool: &GraphPool| Some(pool.clone());
    }
}

/// Captures the forward and the backward pass of each callable as graphs, and returns callables that replay them
/// (`torch.cuda.make_graphed_callables`). Each takes the place of its function in a training step. A call costs the
/// host one launch and one copy per input; its backward pass costs one launch and one copy per gradient of a result.
/// Other parts of the step run as before, also with autocast, a `GradScaler`, several backward passes and any
/// optimizer.
///
/// A function is a closure over its parameters, such as a call of a module. Parameters that require a gradient get their
/// gradients from the backward passes. The function may use tensors of one device only, must not wait for the GPU, and
/// must have the same effect in each call. It runs `num_warmup_iters` times on another stream, and is then captured.
/// Hooks of parameters and of inputs are not captured. A backward pass calls them once, as without graphs. A module with
/// hooks is an error in the function. Hooks that the function registers itself are called in these runs and in the
/// capture, but not in replays, and no error reports this. Captured random ops continue the device's sequence in each
/// replay.
///
/// Gradients cannot pass through the body of a [`graph_if`](super::graph_if) or [`graph_while`](super::graph_while) in the
/// function, because the backward pass does not know whether a replay ran the body: let bodies compute with detached
/// tensors. A stream that the function uses must wait for the current stream, and the current stream for it, or its work
/// runs once, outside the graph, and no error reports this.
///
/// A parameter that required no gradient during the capture gets no gradient from a callable, even if the parameter
/// requires a gradient later, and no error reports this. Capture again after you unfreeze a parameter. Freezing a
/// parameter after the capture is allowed: the callable then passes no gradient to the parameter.
///
/// Callables share a pool. Call them in the order in which they are given, and run their backward passes in the reverse
/// order, because later captures reuse the memory of earlier captures.
///
/// ```
/// use warpline::{cuda, ones, full, simulated, with_runtime};
///
/// # fn main() -> warpline::Result<()> {
/// with_runtime(&simulated(1)?, || {
///     let weight = full([2, 2], 3.0, "cuda")?.requires_grad_(true)?;
///     let sample = ones([1, 2], "cuda")?;
///     let layer = cuda::Callable::new(|x| Ok(vec![x[0].matmul(&weight)?.relu()?]), &[&sample]);
///     let [layer] = cuda::make_graphed_callables([layer], ())?;
///     for _ in 0..3 {
///         weight.set_grad(None)?;
///         let y = layer.call(&[&full([1, 2], 2.0, "cuda")?])?.remove(0);
///         y.sum(())?.backward()?;
///         assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [2.0; 4]);
///     }
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if a sample input or a result is not on the GPU of the first sample input, if a
/// sample input that requires a gradient has no effect on the results and `allow_unused_input` is not set, if a function
/// uses a checkpoint, a module with hooks, or a tensor with gradients that an op before the function computed.
/// [`ErrorKind::Capture`], [`ErrorKind::Capturing`] or [`ErrorKind::OutsideCapture`] if a function waits for the GPU.
/// Errors of the functions, and those of [`CudaGraph::capture`].
#[track_caller]
pub fn make_graphed_callables<const N: usize>(
    callables: [Callable<'_>; N],
    options: impl IntoOptions<GraphedOptions>,
) -> Result<[GraphedCallable; N]> {
    let options = options.into_options();
    let _scope = CallScope::enter(OP);
    let device = match callables.iter().find_map(|callable| callable.sample.first()) {
        Some(sample) => sample.device(),
        None => Device::cuda(super::current_device()?),
    };
    if device == Device::Cpu {
        return Err(Error::invalid(
            OP,
            "the sample inputs are on the CPU, but graphs run on a GPU",
        ));
    }
    let _device = super::device(device)?;
    let pool = match &options.pool {
        Some(pool) => pool.clone(),
        None => graph_pool_handle(())?,
    };
    let mut inputs = Vec::new();
    for callable in &callables {
        inputs.push(static_inputs(callable, device)?);
    }
    let side = Stream::new(device)?;
    let current = super::current_stream(device)?;
    side.wait_stream(&current)?;
    super::with_stream(&side, || {
        for (callable, inputs) in callables.iter().zip(&inputs) {
            (0..options.num_warmup_iters).try_for_each(|_| warm_up(callable, inputs))?;
        }
        Ok(())
    })?;
    current.wait_stream(&side)?;

    let passes: Arc<Mutex<PassLog>> = pool.extension();
    let first = lock(&passes).reserve(2 * N);
    let mut forwards = Vec::new();
    for (callable, inputs) in callables.iter().zip(inputs) {
        forwards.push(ForwardPass::capture(callable, inputs, &pool, device)?);
    }
    let mut graphed = Vec::new();
    for (position, forward) in forwards.into_iter().enumerate().rev() {
        let saved = forward.saved(&pool);
        let backward = BackwardPass::capture(&forward, &pool, options.allow_unused_input)?;
        // Detach the outputs, to drop the autograd graph behind them. The capture of the next backward pass can then
        // reuse the memory of its saved tensors.
        let outputs = forward.outputs.iter().map(Tensor::detach).collect();
        let forward = ForwardPass { outputs, ..forward };
        let positions = [first + position, first + 2 * N - 1 - position];
        let passes = Arc::clone(&passes);
        let versions = Mutex::default();
        let graphs = Graphs { forward, backward, saved, versions, device, positions, passes };
        graphed.push(GraphedCallable(Arc::new(graphs)));
    }
    graphed.reverse();
    let Ok(graphed) = <[GraphedCallable; N]>::try_from(graphed) else {
        unreachable!("there is one for each callable");
    };
    Ok(graphed)
}

/// Copies the sample inputs into memory for the captures.
fn static_inputs(callable: &Callable<'_>, device: Device) -> Result<Vec<Tensor>> {
    let own = callable.sample.iter().enumerate().map(|(i, sample)| {
        if sample.device() != device {
            let other = sample.device();
            let reason =
                format!("sample input {i} is on {other}, but the first one is on {device}");
            return Err(Error::invalid(OP, reason));
        }
        let own = sample.empty_like(())?;
        no_grad(|| own.copy_(sample, ()).map(drop))?;
        own.requires_grad_(sample.requires_grad())
    });
    own.collect()
}

/// Calls the program's function, whose errors keep their own names and locations.
fn call(callable: &Callable<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    // In a region around `make_graphed_callables`, the function must not use a conversion from before this call.
    drop_casts();
    let first = next_op();
    let outputs = {
        let (_own, _modes) = (CallScope::none(), ModeGuard::graphed());
        (callable.f)(inputs)?
    };
    if let Some(Site { op, location }) = op_before(differentiable(&outputs), first) {
        let reason = format!(
            "the function uses a tensor that `{op}` at {location} computed before; the graph of the backward pass cannot \
             contain this op, so call `{op}` in the function, or make the tensor a sample input"
        );
        return Err(Error::invalid(OP, reason));
    }
    Ok(outputs)
}

fn warm_up(callable: &Callable<'_>, inputs: &[Tensor]) -> Result<()> {
    let outputs = call(callable, inputs)?;
    let outputs = differentiable(&outputs);
    let wanted = wanted(inputs, &parameters(&outputs, inputs));
    let grads = outputs.iter().map(|output| output.zeros_like(())).collect::<Result<Vec<_>>>()?;
    gradients(&outputs, &grads, &wanted).map(drop)
}

fn differentiable(outputs: &[Tensor]) -> Vec<&Tensor> {
    outputs.iter().filter(|output| output.requires_grad()).collect()
}

/// Returns the leaves, other than the inputs, that the outputs depend on.
fn parameters(outputs: &[&Tensor], inputs: &[Tensor]) -> Vec<Tensor> {
    let mut leaves = reachable_leaves(outputs.iter().copied());
    leaves.retain(|leaf| inputs.iter().all(|input| !input.is_same(leaf)));
    leaves
}

/// Returns the inputs that require a gradient, and the parameters.
fn wanted(inputs: &[Tensor], parameters: &[Tensor]) -> Vec<Tensor> {
    let inputs = inputs.iter().filter(|input| input.requires_grad());
    inputs.chain(parameters).cloned().collect()
}

fn gradients(
    outputs: &[&Tensor],
    output_grads: &[Tensor],
    wanted: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    if outputs.is_empty() || wanted.is_empty() {
        return Ok(vec![None; wanted.len()]);
    }
    let output_grads: Vec<Option<&Tensor>> = output_grads.iter().map(Some).collect();
    let wanted: Vec<&Tensor> = wanted.iter().collect();
    let options = GradOptions::new().grad_outputs(&output_grads).allow_unused(true);
    grad_before_leaf_hooks(outputs, &wanted, options)
}

/// A captured forward pass.
#[derive(Debug)]
struct ForwardPass {
    graph: CudaGraph,
    inputs: Vec<Tensor>,
    parameters: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl ForwardPass {
    fn capture(
        callable: &Callable<'_>,
        inputs: Vec<Tensor>,
        pool: &GraphPool,
        device: Device,
    ) -> Result<Self> {
        let mut graph = CudaGraph::new();
        let outputs =
            graph.capture_with(CaptureOptions::new().pool(pool), || call(callable, &inputs))?;
        if let Some(i) = outputs.iter().position(|output| output.device() != device) {
            let other = outputs[i].device();
            let reason = format!("result {i} is on {other}, but the inputs are on {device}");
            return Err(Error::invalid(OP, reason));
        }
        let recorded = differentiable(&outputs);
        if has_node(recorded.iter().copied(), "checkpoint") {
            let reason = "the function uses a checkpoint, which draws and computes again in the backward pass, and \
                          the graph of the backward pass cannot; call the function without a checkpoint";
            return Err(Error::invalid(OP, reason));
        }
        let parameters = parameters(&recorded, &inputs);
        Ok(Self { graph, inputs, parameters, outputs })
    }

    /// Returns the tensors that the backward pass reads and that a program can change, one per storage. Omits
    /// intermediate results, whose memory the capture of the backward pass reuses, and memory that is shared with other
    /// processes.
    fn saved(&self, pool: &GraphPool) -> Vec<SavedTensor> {
        let (mut saved, mut seen) = (Vec::new(), HashSet::new());
        for_each_saved(differentiable(&self.outputs), |tensor| {
            let storage = tensor.storage();
            let is_result = self.outputs.iter().any(|output| output.storage().same_as(storage));
            let is_intermediate = !is_result && pool.contains(storage);
            if !is_intermediate && !storage.is_shared() && seen.insert(storage.key()) {
                let (tensor, in_pool) = (tensor.clone(), pool.contains(storage));
                saved.push(SavedTensor { tensor, is_result, in_pool });
            }
        });
        saved
    }
}

/// A tensor that the captured backward pass reads.
#[derive(Debug)]
struct SavedTensor {
    tensor: Tensor,
    is_result: bool,
    /// Whether each replay in the pool counts as a write.
    in_pool: bool,
}

impl SavedTensor {
    fn version(&self) -> Version {
        self.tensor.storage().version()
    }

    fn has(&self, version: &Version) -> bool {
        version.is_of(self.tensor.storage())
    }

    /// # Errors
    /// [`ErrorKind::Gradient`] if the tensor was written since `version`.
    fn check(&self, version: &Version) -> Result<()> {
        if self.has(version) {
            return Ok(());
        }
        let what = if self.is_result { "its result" } else { "an input or a parameter" };
        let reason = format!(
            "one of the tensors needed for the gradient has been modified by an in-place operation: {what}, a {} \
             tensor of shape {:?}",
            self.tensor.dtype(),
            self.tensor.size()
        );
        Err(Error::gradient(Replay::NAME, reason))
    }
}

/// A captured backward pass.
#[derive(Debug)]
struct BackwardPass {
    graph: CudaGraph,
    /// The memory of the gradients of the outputs. `None` for an output without a gradient.
    output_grads: Vec<Option<Tensor>>,
    /// The gradients of the inputs and of the parameters.
    input_grads: Vec<Option<Tensor>>,
}

impl BackwardPass {
    /// Returns `None` if no output requires a gradient.
    fn capture(
        forward: &ForwardPass,
        pool: &GraphPool,
        allow_unused_input: bool,
    ) -> Result<Option<Self>> {
        let ForwardPass { inputs, parameters, outputs, .. } = forward;
        let recorded = differentiable(outputs);
        let grads = recorded.iter().map(|o| o.detach().zeros_like(()));
        let grads = grads.collect::<Result<Vec<Tensor>>>()?;
        let wanted = wanted(inputs, parameters);
        let mut graph = CudaGraph::new();
        let mut found = if recorded.is_empty() {
            vec![None; wanted.len()].into_iter()
        } else {
            let options = CaptureOptions::new().pool(pool);
            graph.capture_with(options, || gradients(&recorded, &grads, &wanted))?.into_iter()
        };
        let mut input_grads = Vec::new();
        for (i, input) in inputs.iter().enumerate() {
            let grad = if input.requires_grad() { found.next().flatten() } else { None };
            if grad.is_none() && input.requires_grad() && !allow_unused_input {
                let reason = format!(
                    "sample input {i} requires a gradient, but the results do not depend on it; set \
                     `allow_unused_input`"
                );
                return Err(Error::invalid(OP, reason));
            }
            input_grads.push(grad);
        }
        input_grads.extend(found);
        if recorded.is_empty() {
            return Ok(None);
        }
        let mut grads = grads.into_iter();
        let output_grads =
            outputs.iter().map(|o| if o.requires_grad() { grads.next() } else { None });
        Ok(Some(Self { graph, output_grads: output_grads.collect(), input_grads }))
    }
}

/// A function whose forward and backward passes are replays of graphs. [`make_graphed_callables`] creates it. Clones
/// share the graphs and their memory.
#[derive(Clone, Debug)]
pub struct GraphedCallable(Arc<Graphs>);

#[derive(Debug)]
struct Graphs {
    forward: ForwardPass,
    backward: Option<BackwardPass>,
    saved: Vec<SavedTensor>,
    /// Versions of the saved tensors after the forward replay of the last recorded call. Accessed only while `passes` is
    /// locked.
    versions: Mutex<Vec<Version>>,
    device: Device,
    /// Positions of the forward and the backward capture.
    positions: [usize; 2],
    /// Locked while a pass is enqueued.
    passes: Arc<Mutex<PassLog>>,
}

impl Graphs {
    fn versions(&self) -> MutexGuard<'_, Vec<Version>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GraphedCallable {
    /// Copies the inputs into the memory of the capture, and replays the forward pass.
    ///
    /// The results are valid until the next call. A backward pass that needs them later fails. Run the backward pass
    /// of this call at most once, and before the next call. Until the backward pass has run, do not change the results
    /// and parameters that this pass reads. The inputs may be changed, because the call copies them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the inputs differ from the sample inputs in number, sizes, dtype or device, or
    /// if gradients are enabled and an input requires a gradient that its sample did not require. [`ErrorKind::Moved`]
    /// if a module replaced a parameter. [`ErrorKind::Capture`] in a capture. Errors of
    /// [every op](Tensor#errors-of-every-op). The backward pass fails with [`ErrorKind::Gradient`] under
    /// `create_graph`, if a tensor that it reads was changed in place, and if another call, or a pass of another callable
    /// in the same pool, has overwritten its intermediate results.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        const OP: &str = Replay::NAME;
        let _scope = CallScope::enter(OP);
        let ForwardPass { inputs: own, parameters, .. } = &self.0.forward;
        if inputs.len() != own.len() {
            let (given, expected) = (inputs.len(), own.len());
            return Err(Error::invalid(
                OP,
                format!("there are {given} inputs, but the sample has {expected}"),
            ));
        }
        for (i, (input, own)) in inputs.iter().zip(own).enumerate() {
            if input.size() != own.size()
                || input.dtype() != own.dtype()
                || input.device() != own.device()
            {
                let of = |x: &Tensor| {
                    format!("of shape {:?}, {} on {}", x.size(), x.dtype(), x.device())
                };
                let reason = format!("input {i} is {}, but the sample is {}", of(input), of(own));
                return Err(Error::invalid(OP, reason));
            }
            if input.requires_grad() && !own.requires_grad() && is_grad_enabled() {
                let reason = format!("input {i} requires a gradient, but the sample does not");
                return Err(Error::invalid(OP, reason));
            }
        }
        parameters.iter().try_for_each(|parameter| check_not_moved(OP, parameter))?;
        let inputs: Vec<&Tensor> = inputs.iter().copied().chain(parameters).collect();
        let graphs = Arc::clone(&self.0);
        let is_recorded = should_record(&inputs);
        let site = Site::here(OP).or_public();
        Replay { graphs, is_recorded, site, number: OnceLock::new() }.apply(&inputs)
    }
}

/// One call of a graphed callable.
struct Replay {
    graphs: Arc<Graphs>,
    is_recorded: bool,
    /// The program's call, which errors of the backward pass name.
    site: Site,
    /// The number of the forward replay.
    number: OnceLock<u64>,
}

impl Function for Replay {
    const NAME: &'static str = "graphed_callable";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let Graphs { forward, device, positions, passes, .. } = &*self.graphs;
        let _device = super::device(*device)?;
        let mut passes = lock(passes);
        for (own, input) in forward.inputs.iter().zip(inputs) {
            own.copy_(input, ())?;
        }
        let _ = self.number.set(passes.replay(positions[0], &forward.graph)?);
        passes.set_pending(&self.graphs, self.is_recorded);
        Ok(forward.outputs.iter().map(Tensor::detach).collect())
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let _call = CallScope::at(self.site);
        let Graphs { backward, saved, device, positions, passes, .. } = &*self.graphs;
        let fail = |reason: &str| Err(Error::gradient(Self::NAME, reason));
        if is_grad_enabled() {
            return fail(
                "a graphed callable has no gradients of gradients, which a pass with `create_graph` records",
            );
        }
        let (Some(backward), Some(number)) = (backward, self.number.get()) else {
            return fail("no result required a gradient when the callable was captured");
        };
        let _device = super::device(*device)?;
        let mut passes = lock(passes);
        if passes.overwrote(*positions, *number) {
            return fail(
                "its intermediate results were overwritten by another pass; run the backward pass once for each call, \
                 those of callables that were captured together in the reverse order of their calls, and those of \
                 callables that share a pool but were captured apart before calls of the others",
            );
        }
        // No later call was made, so the versions are those of this call.
        let versions = self.graphs.versions();
        saved.iter().zip(&*versions).try_for_each(|(tensor, version)| tensor.check(version))?;
        drop(versions);
        for (own, grad) in backward.output_grads.iter().zip(grads) {
            match (own, grad) {
                (Some(own), Some(grad)) => own.copy_(grad, ()).map(drop)?,
                (Some(own), None) => own.zero_().map(drop)?,
                (None, _) => {}
            }
        }
        passes.set_pending(&self.graphs, false);
        passes.replay(positions[1], &backward.graph)?;
        Ok(backward.input_grads.iter().map(|grad| grad.as_ref().map(Tensor::detach)).collect())
    }
}
