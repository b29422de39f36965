//! The backward pass.
//!
//! # Order
//!
//! The pass first counts the gradients that each node will receive. A node runs once all of them have
//! arrived, on the stream of its op. The calling thread runs all nodes. Launches return at once, so one
//! thread keeps several devices busy.
//!
//! If one thread recorded the whole graph, the ready node with the highest sequence number runs first, as in PyTorch,
//! so the op that was recorded last runs first. If several threads recorded parts of the graph, sequence numbers are
//! not used, because each thread numbers only its own ops: a comparison across threads would compare how many ops each
//! thread has recorded in its life. Ready nodes then run in the order in which they became ready, which follows the
//! order of the roots and of each node's edges.
//!
//! In both cases accumulators run before other nodes. The order depends neither on addresses nor on thread timing, nor
//! on the thread that calls `backward`, nor on how several threads share the recording. Sums and the order of hook
//! calls are therefore reproducible.
//!
//! # Streams
//!
//! A node runs with the stream of its op as the current stream. An accumulator, which has no op, has the
//! stream that was current when the leaf was first used in the graph. A node runs on the thread's current
//! stream instead if only one of the two streams is captured, or if they belong to different captures: a pass
//! that is captured alone then replays as a whole. A node of an op whose result is on the CPU has no stream, and
//! runs under the streams of the calling thread. Gradients of one result are summed on the stream of the node
//! that receives them.
//!
//! Under `SyncPolicy::Auto`, the launch path orders the streams. Under `Manual`, a node's stream waits
//! for the stream of each node that passes it a gradient, and for the thread's current stream if the
//! program passes the gradient. Under both policies, the pass ends with the thread's current stream of
//! each device waiting for the device's streams on which gradients arrived. As in PyTorch, this covers
//! devices without a root.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_runtime::SyncPolicy;
use warpline_stream::Stream;

use super::accumulate::accumulate;
use super::callbacks::with_callbacks;
use super::function::is_bad_argument;
use super::hooks::{call_hooks, call_leaf_hooks};
use super::mode::{self, ModeGuard};
use super::moved::check_not_moved;
use super::node::{Edge, GradNode, Gradients, NodeKind, TensorSpec};
use crate::called::Called;
use crate::{CallScope, Error, ErrorKind, Result, Runtime, Site, Tensor};

/// Options of a backward pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassOptions {
    /// Keeps the saved tensors, for another pass.
    pub(super) retain_graph: bool,
    /// Records the pass itself.
    pub(super) create_graph: bool,
    /// Leaves the hooks of leaves to another pass, which receives the gradients of this one.
    pub(super) skips_leaf_hooks: bool,
}

impl PassOptions {
    pub(super) fn new(retain_graph: bool, create_graph: bool) -> Self {
        let retain_graph = retain_graph || create_graph;
        Self { retain_graph, create_graph, skips_leaf_hooks: false }
    }
}

/// Identifies a node while the graph keeps it alive.
type NodeAddress = *const GradNode;

fn address(node: &Arc<GradNode>) -> NodeAddress {
    Arc::as_ptr(node)
}

/// A node whose gradients have all arrived.
///
/// The order is total: the highest priority first, then the earliest arrival.
struct ReadyNode {
    node: Arc<GradNode>,
    /// `u64::MAX` for an accumulator, so that gradients are added to leaves as early as possible. Otherwise the
    /// sequence number, or 0 in a graph that several threads recorded.
    priority: u64,
    /// Number of nodes that became ready earlier in this pass.
    arrival: u64,
}

impl PartialEq for ReadyNode {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ReadyNode {}

impl PartialOrd for ReadyNode {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ReadyNode {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let later = || other.arrival.cmp(&self.arrival);
        self.priority.cmp(&other.priority).then_with(later)
    }
}

/// The gradients that a node has received, and the number of gradients that it waits for.
#[derive(Default)]
struct NodeProgress {
    /// Number of gradients that have not arrived yet.
    dependencies: usize,
    grads: SmallVec<[Option<Tensor>; 1]>,
    /// Results whose gradients the caller requested, as pairs of output index and index in the returned list.
    captures: SmallVec<[(usize, usize); 1]>,
}

struct BackwardPass {
    op: &'static str,
    location: &'static Location<'static>,
    runtime: Runtime,
    options: PassOptions,
    progress: HashMap<NodeAddress, NodeProgress, BuildAddressHasher>,
    ready: BinaryHeap<ReadyNode>,
    arrivals: u64,
    /// Whether one thread recorded all nodes that the pass can reach.
    has_one_recorder: bool,
    /// The nodes that lead to the requested inputs. `None`: run all nodes.
    needed: Option<HashSet<NodeAddress, BuildAddressHasher>>,
    captured: Vec<Option<Tensor>>,
    /// Streams of the accumulators that ran and of the nodes whose gradients were requested.
    leaf_streams: Vec<Stream>,
}

/// Builds hashers of node addresses. One multiplication mixes an address well enough.
#[derive(Clone, Copy, Default)]
struct BuildAddressHasher;

struct AddressHasher(u64);

impl std::hash::BuildHasher for BuildAddressHasher {
    type Hasher = AddressHasher;
    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(0)
    }
}

impl std::hash::Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    fn write_usize(&mut self, address: usize) {
        self.0 = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Runs a backward pass from `roots` with their gradients, then the callbacks that its hooks queued. Without `inputs`,
/// leaves accumulate their gradients. With `inputs`, returns the gradients of `inputs` and changes no leaf.
pub(super) fn run(
    op: &'static str,
    location: &'static Location<'static>,
    roots: Vec<(Edge, Tensor)>,
    inputs: Option<&[Edge]>,
    options: PassOptions,
) -> Result<Vec<Option<Tensor>>> {
    with_callbacks(|| run_pass(op, location, roots, inputs, options))
}

fn run_pass(
    op: &'static str,
    location: &'static Location<'static>,
    roots: Vec<(Edge, Tensor)>,
    inputs: Option<&[Edge]>,
    options: PassOptions,
) -> Result<Vec<Option<Tensor>>> {
    let Some((_, first)) = roots.first() else {
        return Ok(vec![None; inputs.map_or(0, <[_]>::len)]);
    };
    let mut pass = BackwardPass {
        op,
        location,
        runtime: first.storage().runtime().clone(),
        options,
        progress: HashMap::default(),
        ready: BinaryHeap::new(),
        arrivals: 0,
        has_one_recorder: true,
        needed: None,
        captured: vec![None; inputs.map_or(0, <[_]>::len)],
        leaf_streams: Vec::new(),
    };
    let mut seeds: SmallVec<[Arc<GradNode>; 1]> = SmallVec::new();
    for (edge, _) in &roots {
        if !seeds.iter().any(|node| Arc::ptr_eq(node, &edge.node)) {
            seeds.push(edge.node.clone());
        }
    }
    pass.count_dependencies(&seeds);
    if let Some(inputs) = inputs {
        for (i, edge) in inputs.iter().enumerate() {
            let progress = pass.progress.entry(address(&edge.node)).or_default();
            progress.captures.push((edge.output, i));
        }
        pass.needed = Some(pass.nodes_leading_to(&seeds, inputs));
    }
    let modes = ModeGuard::backward_pass(options.create_graph);
    for (edge, grad) in roots {
        let stream = grad.current_stream();
        pass.add_gradient(&edge, grad, stream.as_ref()).map_err(|error| pass.attribute(error))?;
    }
    // A root that also receives gradients from other nodes becomes ready later.
    for node in seeds {
        if pass.progress.get(&address(&node)).is_some_and(|progress| progress.dependencies == 0) {
            pass.push_ready(node);
        }
    }
    while let Some(ReadyNode { node, .. }) = pass.ready.pop() {
        pass.run_node(&node)?;
    }
    drop(modes);
    pass.join().map_err(|error| pass.attribute(error))?;
    Ok(pass.captured)
}

impl BackwardPass {
    fn push_ready(&mut self, node: Arc<GradNode>) {
        let priority = match node.recorded {
            None => u64::MAX,
            Some((_, number)) if self.has_one_recorder => number,
            Some(_) => 0,
        };
        self.ready.push(ReadyNode { node, priority, arrival: self.arrivals });
        self.arrivals += 1;
    }

    /// Attributes an error to the pass itself, not to a recorded op.
    fn attribute(&self, error: Error) -> Error {
        error.of(self.op).at(self.location)
    }

    fn is_needed(&self, node: &Arc<GradNode>) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed.contains(&address(node)))
    }

    /// Counts the gradients that each node will receive, and finds out whether one thread recorded all nodes.
    fn count_dependencies(&mut self, seeds: &[Arc<GradNode>]) {
        let mut stack: Vec<&Arc<GradNode>> = seeds.iter().collect();
        for node in seeds {
            self.progress.entry(address(node)).or_default();
        }
        let mut recorder = None;
        while let Some(node) = stack.pop() {
            if let Some((thread, _)) = node.recorded {
                self.has_one_recorder &= *recorder.get_or_insert(thread) == thread;
            }
            for edge in node.inputs.iter().filter_map(|input| input.edge.as_ref()) {
                match self.progress.entry(address(&edge.node)) {
                    Entry::Occupied(mut found) => found.get_mut().dependencies += 1,
                    Entry::Vacant(place) => {
                        place.insert(NodeProgress { dependencies: 1, ..NodeProgress::default() });
                        stack.push(&edge.node);
                    }
                }
            }
        }
    }

    /// Returns the nodes from which a path leads to an input.
    fn nodes_leading_to(
        &self,
        seeds: &[Arc<GradNode>],
        inputs: &[Edge],
    ) -> HashSet<NodeAddress, BuildAddressHasher> {
        let mut needed: HashSet<NodeAddress, BuildAddressHasher> =
            inputs.iter().map(|edge| address(&edge.node)).collect();
        let mut seen: HashSet<NodeAddress, BuildAddressHasher> = HashSet::default();
        // Depth-first: each node is visited before its successors, and again after them.
        let mut stack: Vec<(&Arc<GradNode>, bool)> =
            seeds.iter().map(|node| (node, false)).collect();
        while let Some((node, after)) = stack.pop() {
            let edges = || node.inputs.iter().filter_map(|input| input.edge.as_ref());
            if after {
                if edges().any(|edge| needed.contains(&address(&edge.node))) {
                    needed.insert(address(node));
                }
            } else if seen.insert(address(node)) {
                stack.push((node, true));
                stack.extend(edges().map(|edge| (&edge.node, false)));
            }
        }
        needed
    }

    /// Adds a gradient, which was computed on the stream `producer`, to the gradient of a node's result.
    fn add_gradient(&mut self, edge: &Edge, grad: Tensor, producer: Option<&Stream>) -> Result<()> {
        let create_graph = self.options.create_graph;
        let Some(progress) = self.progress.get_mut(&address(&edge.node)) else { return Ok(()) };
        if progress.grads.len() < edge.node.outputs {
            progress.grads.resize(edge.node.outputs, None);
        }
        let stream = node_stream(&self.runtime, &edge.node)?;
        order_streams(&grad, producer, stream.as_deref())?;
        let Some(slot) = progress.grads.get_mut(edge.output) else { return Ok(()) };
        *slot = Some(match slot.take() {
            None => grad,
            Some(former) => with_stream(&self.runtime, stream.as_deref(), || {
                // Adds in place only if nothing else owns the tensor.
                if !create_graph && former.is_unique() && former.layout().is_dense() {
                    former.add_(&grad)?;
                    Ok(former)
                } else {
                    former.add(&grad)
                }
            })?,
        });
        Ok(())
    }

    /// Runs a node, and passes the computed gradients to its inputs.
    fn run_node(&mut self, node: &Arc<GradNode>) -> Result<()> {
        let Some(progress) = self.progress.get_mut(&address(node)) else { return Ok(()) };
        let (mut grads, captures) =
            (std::mem::take(&mut progress.grads), std::mem::take(&mut progress.captures));
        grads.resize(node.outputs, None);
        // An accumulator belongs to no call of the program.
        let site = match &node.kind {
            NodeKind::Accumulator(_) => Site { op: self.op, location: self.location },
            NodeKind::Op(_) => node.call,
        };
        if let NodeKind::Accumulator(leaf) = &node.kind
            && self.needed.is_none()
            && grads.iter().any(Option::is_some)
        {
            // Checked before the hooks run, because a moved leaf shares its hooks with its replacement.
            check_not_moved("", leaf).map_err(|error| self.attribute(error))?;
        }
        let stream = node_stream(&self.runtime, node)?;
        if !(self.options.skips_leaf_hooks && matches!(node.kind, NodeKind::Accumulator(_))) {
            with_stream(&self.runtime, stream.as_deref(), || call_hooks(node, &mut grads, site))?;
        }
        let captured = !captures.is_empty();
        for (output, place) in captures {
            if let (Some(slot), Some(grad)) = (self.captured.get_mut(place), grads.get(output)) {
                slot.clone_from(grad);
            }
        }
        if captured {
            self.leaf_streams.extend(stream.as_deref().cloned());
        }
        if let NodeKind::Accumulator(leaf) = &node.kind {
            if self.needed.is_some() {
                return Ok(());
            }
            if let Some(Some(grad)) = grads.pop() {
                let create_graph = self.options.create_graph;
                with_stream(&self.runtime, stream.as_deref(), || {
                    accumulate(leaf, grad, create_graph)
                })
                .map_err(|error| self.attribute(error))?;
                with_stream(&self.runtime, stream.as_deref(), || call_leaf_hooks(leaf))?;
                self.leaf_streams.extend(stream.as_deref().cloned());
            }
            return Ok(());
        }
        let useful = grads.iter().any(Option::is_some)
            && node
                .inputs
                .iter()
                .filter_map(|input| input.edge.as_ref())
                .any(|e| self.is_needed(&e.node));
        let partial = self.needed.is_some();
        let returned = if useful {
            node.check_body(stream.as_deref())?;
            let returned = with_stream(&self.runtime, stream.as_deref(), || {
                let _scope = CallScope::at(node.call);
                let returned = node.run(&grads, partial)?;
                drop(grads);
                fit_all(node, returned)
            });
            returned.map_err(|error| attribute_to_op(node, error))?
        } else {
            Gradients::new()
        };
        // A partial pass skips nodes. A later pass may run these, so they keep their saved tensors.
        if !self.options.retain_graph && (useful || !partial) {
            node.release();
        }
        let mut returned = returned.into_iter();
        for input in &node.inputs {
            let grad = returned.next().flatten();
            let Some(edge) = &input.edge else { continue };
            if let Some(grad) = grad
                && self.is_needed(&edge.node)
            {
                self.add_gradient(edge, grad, stream.as_deref())
                    .map_err(|error| self.attribute(error))?;
            }
            let Some(progress) = self.progress.get_mut(&address(&edge.node)) else { continue };
            progress.dependencies -= 1;
            if progress.dependencies == 0 {
                self.push_ready(edge.node.clone());
            }
        }
        Ok(())
    }

    /// Makes the thread's current stream of each device wait for the device's streams in `leaf_streams`.
    fn join(&self) -> Result<()> {
        let mut joined: SmallVec<[u64; 4]> = SmallVec::new();
        for leaf in &self.leaf_streams {
            if joined.contains(&leaf.id()) {
                continue;
            }
            joined.push(leaf.id());
            let caller = self.runtime.devices()?.current_stream(leaf.device_index())?;
            if caller.id() != leaf.id() {
                caller.wait_stream(leaf)?;
            }
        }
        Ok(())
    }
}

/// Returns the stream on which a node runs: the stream of its op, or the thread's current stream if only one of the two
/// is captured, or if they belong to different captures.
fn node_stream<'n>(runtime: &Runtime, node: &'n GradNode) -> Result<Option<Cow<'n, Stream>>> {
    let Some(stream) = &node.stream else { return Ok(None) };
    let current = runtime.devices()?.current_stream(stream.device_index())?;
    let shares_capture = match (stream.captured(), current.captured()) {
        (None, None) => true,
        (Some(own), Some(other)) => own.twin().shares_capture(other.twin()),
        _ => false,
    };
    Ok(Some(if shares_capture { Cow::Borrowed(stream) } else { Cow::Owned(current) }))
}

/// Runs `f` with `stream` as the current stream, or under the streams of the thread without one.
fn with_stream<R>(
    runtime: &Runtime,
    stream: Option<&Stream>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let Some(stream) = stream else { return f() };
    let _guard = runtime.devices()?.stream_guard(stream)?;
    f()
}

/// Makes the stream `to` wait for the work that computed a gradient on `from`. Without `from`, the gradient was
/// computed on the thread's current stream. Does nothing if the runtime orders streams itself.
fn order_streams(grad: &Tensor, from: Option<&Stream>, to: Option<&Stream>) -> Result<()> {
    let Some(to) = to.filter(|_| grad.storage().runtime().sync_policy() == SyncPolicy::Manual)
    else {
        return Ok(());
    };
    let Some(from) = from.cloned().or_else(|| grad.current_stream()) else { return Ok(()) };
    if from.id() == to.id() {
        return Ok(());
    }
    to.wait_stream(&from)?;
    grad.record_stream(to)
}

/// Adapts gradients to the sizes, dtypes and devices of the inputs.
fn fit_all(node: &Arc<GradNode>, mut grads: Gradients) -> Result<Gradients> {
    for (i, input) in node.inputs.iter().enumerate() {
        let Some(slot) = grads.get_mut(i) else { break };
        if input.edge.is_none() {
            *slot = None;
        }
        let Some(grad) = slot else { continue };
        if let Some(other) = fit(node, grad, &input.spec)? {
            *slot = Some(other);
        }
        if let Some(grad) = slot
            && mode::is_anomaly_enabled()
            && grad.isnan()?.any(())?.item::<bool>()?
        {
            let reason = format!("its gradient number {i} contains NaN");
            return Err(node.error(reason));
        }
    }
    Ok(grads)
}

/// Returns a gradient adapted to `spec`; `None` if it fits already.
fn fit(node: &GradNode, grad: &Tensor, spec: &TensorSpec) -> Result<Option<Tensor>> {
    let mut fit_all = None;
    if grad.size() != &spec.sizes[..] {
        fit_all = Some(sum_to(node, grad, &spec.sizes)?);
    }
    let current = fit_all.as_ref().unwrap_or(grad);
    if current.dtype() != spec.dtype || current.device() != spec.device {
        fit_all = Some(current.to((spec.dtype, spec.device))?);
    }
    Ok(fit_all)
}

/// Sums a gradient over the dimensions that were broadcast (`sum_to_size`).
fn sum_to(node: &GradNode, grad: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let reason = || {
        let own = grad.size();
        let reason =
            format!("it returned a gradient of shape {own:?} for an input of shape {sizes:?}");
        node.error(reason)
    };
    let leading = grad.dim().checked_sub(sizes.len()).ok_or_else(reason)?;
    let mut dims: SmallVec<[isize; 6]> = (0..leading as isize).collect();
    for (d, (&n, &own)) in sizes.iter().zip(&grad.size()[leading..]).enumerate() {
        if n == 1 && own != 1 {
            dims.push((d + leading) as isize);
        } else if n != own {
            return Err(reason());
        }
    }
    let summed = if dims.is_empty() { grad.clone() } else { grad.sum_keepdim(&dims[..])? };
    let sizes: SmallVec<[isize; 6]> = sizes.iter().map(|&n| n as isize).collect();
    summed.reshape(&sizes[..]).of("sum_to_size")
}

/// Attributes an error in an op's gradient to the op and the location of its forward call, because the
/// program did not call the ops that compute the gradient.
fn attribute_to_op(node: &Arc<GradNode>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Gradient { .. } => error,
        kind if is_bad_argument(kind) => node.error(format!("its gradient failed: {kind}")),
        _ => error.of(node.call.op).at(node.call.location),
    }
}
