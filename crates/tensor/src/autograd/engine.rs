//! The backward pass.
//!
//! # Order
//!
//! Nodes are counted from the roots. A node runs when all its gradients have arrived, on the stream
//! of its op. The calling thread runs all nodes: launches return at once, so one thread keeps
//! several devices busy.
//!
//! The ready node with the highest sequence number runs first, as in PyTorch. Each
//! thread numbers its nodes, and accumulators have the highest number of all. Equal numbers run in
//! the order in which the nodes became ready: the order of the edges of the node before, or of the
//! roots. Nothing depends on addresses or on the timing of threads, so sums, and the order of
//! hooks, are the same in each pass.
//!
//! # Streams
//!
//! Under `SyncPolicy::Auto`, the launch path orders the streams. Under `Manual`, a node's stream
//! waits for the stream that its gradient was made on, and at the end the caller's streams wait for
//! those of the leaves.

use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_runtime::SyncPolicy;
use warpline_runtime::launch::report_as;
use warpline_stream::Stream;

use super::accumulate::accumulate;
use super::function::is_bad_argument;
use super::hooks::{call_hooks, call_leaf_hooks};
use super::mode;
use super::node::{Edge, Gradients, Like, Node, Work};
use crate::called::Called;
use crate::{Error, ErrorKind, Result, Runtime, Site, Tensor};

/// Options of a backward pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// Keeps the saved tensors, for another pass.
    pub(super) retain_graph: bool,
    /// Records the pass itself.
    pub(super) create_graph: bool,
}

/// A node, by its address.
type Key = *const Node;

fn key(node: &Arc<Node>) -> Key {
    Arc::as_ptr(node)
}

/// A node whose gradients have all arrived.
///
/// The order is total, and the same in each pass over the same graph: the highest sequence number runs first, as in
/// PyTorch. Equal numbers, of accumulators or of nodes that several threads made, run in the order in which they became
/// ready, which is that of the edges of the node before. PyTorch leaves the order of more than three of these to its
/// heap.
struct Ready {
    node: Arc<Node>,
    /// Number of nodes that were ready before.
    arrival: u64,
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let later = || other.arrival.cmp(&self.arrival);
        self.node.sequence_nr.cmp(&other.node.sequence_nr).then_with(later)
    }
}

/// The state of a node during a pass.
#[derive(Default)]
struct Waiting {
    /// Number of gradients that are still to arrive.
    dependencies: usize,
    grads: SmallVec<[Option<Tensor>; 1]>,
    /// The results whose gradients were requested, each with its index in the returned list.
    captures: SmallVec<[(usize, usize); 1]>,
}

struct Pass {
    op: &'static str,
    location: &'static Location<'static>,
    runtime: Runtime,
    options: Options,
    waiting: HashMap<Key, Waiting, Addresses>,
    ready: BinaryHeap<Ready>,
    arrivals: u64,
    /// The nodes to run, if only the gradients of given inputs are requested. `None`: all nodes.
    needed: Option<HashSet<Key, Addresses>>,
    captured: Vec<Option<Tensor>>,
    /// The streams of the accumulators.
    leaves: Vec<Stream>,
}

/// A hasher of addresses. Addresses need little mixing.
#[derive(Clone, Copy, Default)]
struct Addresses;

struct AddressHasher(u64);

impl std::hash::BuildHasher for Addresses {
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

/// Runs a backward pass from `roots` with their gradients. Without `inputs`, leaves accumulate gradients. With
/// `inputs`, the gradients of these are returned, and no leaf changes.
pub(super) fn run(
    op: &'static str,
    location: &'static Location<'static>,
    roots: Vec<(Edge, Tensor)>,
    inputs: Option<&[Edge]>,
    options: Options,
) -> Result<Vec<Option<Tensor>>> {
    let Some((_, first)) = roots.first() else {
        return Ok(vec![None; inputs.map_or(0, <[_]>::len)]);
    };
    let mut pass = Pass {
        op,
        location,
        runtime: first.storage().runtime().clone(),
        options,
        waiting: HashMap::default(),
        ready: BinaryHeap::new(),
        arrivals: 0,
        needed: None,
        captured: vec![None; inputs.map_or(0, <[_]>::len)],
        leaves: Vec::new(),
    };
    let mut seeds: SmallVec<[Arc<Node>; 1]> = SmallVec::new();
    for (edge, _) in &roots {
        if !seeds.iter().any(|node| Arc::ptr_eq(node, &edge.node)) {
            seeds.push(edge.node.clone());
        }
    }
    pass.count(&seeds);
    if let Some(inputs) = inputs {
        for (i, edge) in inputs.iter().enumerate() {
            let waiting = pass.waiting.entry(key(&edge.node)).or_default();
            waiting.captures.push((edge.output, i));
        }
        pass.needed = Some(pass.leading_to(&seeds, inputs));
    }
    let caller: SmallVec<[Option<Stream>; 1]> =
        roots.iter().map(|(_, grad)| grad.stream()).collect();
    mode::set_grad_enabled(options.create_graph, || {
        for ((edge, grad), stream) in roots.into_iter().zip(&caller) {
            pass.give(&edge, grad, stream.as_ref()).map_err(|error| pass.own(error))?;
        }
        // Other nodes are given gradients by nodes before them.
        for node in seeds {
            if pass.waiting.get(&key(&node)).is_some_and(|waiting| waiting.dependencies == 0) {
                pass.push(node);
            }
        }
        while let Some(Ready { node, .. }) = pass.ready.pop() {
            pass.step(&node)?;
        }
        Ok::<_, Error>(())
    })?;
    pass.join(&caller).map_err(|error| pass.own(error))?;
    Ok(pass.captured)
}

impl Pass {
    fn push(&mut self, node: Arc<Node>) {
        self.ready.push(Ready { node, arrival: self.arrivals });
        self.arrivals += 1;
    }

    /// Attributes an error to the pass itself, not to a recorded op.
    fn own(&self, error: Error) -> Error {
        error.of(self.op).at(self.location)
    }

    fn runs(&self, node: &Arc<Node>) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed.contains(&key(node)))
    }

    /// Counts the gradients that each node is to receive.
    fn count(&mut self, seeds: &[Arc<Node>]) {
        let mut stack: Vec<&Arc<Node>> = seeds.iter().collect();
        for node in seeds {
            self.waiting.entry(key(node)).or_default();
        }
        while let Some(node) = stack.pop() {
            for edge in node.next.iter().filter_map(|next| next.edge.as_ref()) {
                match self.waiting.entry(key(&edge.node)) {
                    Entry::Occupied(mut found) => found.get_mut().dependencies += 1,
                    Entry::Vacant(place) => {
                        place.insert(Waiting { dependencies: 1, ..Waiting::default() });
                        stack.push(&edge.node);
                    }
                }
            }
        }
    }

    /// Returns the nodes from which a path leads to an input.
    fn leading_to(&self, seeds: &[Arc<Node>], inputs: &[Edge]) -> HashSet<Key, Addresses> {
        let mut needed: HashSet<Key, Addresses> =
            inputs.iter().map(|edge| key(&edge.node)).collect();
        let mut seen: HashSet<Key, Addresses> = HashSet::default();
        // A node is met once before what its edges lead to, and once after.
        let mut stack: Vec<(&Arc<Node>, bool)> = seeds.iter().map(|node| (node, false)).collect();
        while let Some((node, after)) = stack.pop() {
            let edges = || node.next.iter().filter_map(|next| next.edge.as_ref());
            if after {
                if edges().any(|edge| needed.contains(&key(&edge.node))) {
                    needed.insert(key(node));
                }
            } else if seen.insert(key(node)) {
                stack.push((node, true));
                stack.extend(edges().map(|edge| (&edge.node, false)));
            }
        }
        needed
    }

    /// Adds a gradient, computed on `producer`, to the gradient of a node's result.
    fn give(&mut self, edge: &Edge, grad: Tensor, producer: Option<&Stream>) -> Result<()> {
        let create_graph = self.options.create_graph;
        let Some(waiting) = self.waiting.get_mut(&key(&edge.node)) else { return Ok(()) };
        if waiting.grads.len() < edge.node.outputs {
            waiting.grads.resize(edge.node.outputs, None);
        }
        hand_over(&grad, producer, edge.node.stream.as_ref())?;
        let Some(slot) = waiting.grads.get_mut(edge.output) else { return Ok(()) };
        *slot = Some(match slot.take() {
            None => grad,
            Some(former) => on(&self.runtime, &edge.node, || {
                // Only a tensor without other owners may be changed.
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

    /// Runs a node, and passes the returned gradients on.
    fn step(&mut self, node: &Arc<Node>) -> Result<()> {
        let Some(waiting) = self.waiting.get_mut(&key(node)) else { return Ok(()) };
        let (mut grads, captures) =
            (std::mem::take(&mut waiting.grads), std::mem::take(&mut waiting.captures));
        grads.resize(node.outputs, None);
        on(&self.runtime, node, || call_hooks(node, &mut grads))?;
        let given = !captures.is_empty();
        for (output, place) in captures {
            if let (Some(slot), Some(grad)) = (self.captured.get_mut(place), grads.get(output)) {
                slot.clone_from(grad);
            }
        }
        if given && let Some(stream) = &node.stream {
            self.leaves.push(stream.clone());
        }
        if let Work::Accumulate(leaf) = &node.work {
            if self.needed.is_some() {
                return Ok(());
            }
            if let Some(Some(grad)) = grads.pop() {
                let create_graph = self.options.create_graph;
                on(&self.runtime, node, || accumulate(leaf, grad, create_graph))
                    .map_err(|error| self.own(error))?;
                on(&self.runtime, node, || call_leaf_hooks(leaf))?;
                self.leaves.extend(node.stream.clone());
            }
            return Ok(());
        }
        let useful = grads.iter().any(Option::is_some)
            && node.next.iter().filter_map(|next| next.edge.as_ref()).any(|e| self.runs(&e.node));
        let partial = self.needed.is_some();
        let returned = if useful {
            let returned = on(&self.runtime, node, || {
                let returned =
                    report_as(Some(Site { op: node.name, location: node.location }), || {
                        node.run(&grads, partial)
                    })?;
                drop(grads);
                fitted(node, returned)
            });
            returned.map_err(|error| while_running(node, error))?
        } else {
            Gradients::new()
        };
        // If only given inputs were requested, another pass may still run a node that did not run.
        if !self.options.retain_graph && (useful || !partial) {
            node.release();
        }
        let mut returned = returned.into_iter();
        for next in &node.next {
            let grad = returned.next().flatten();
            let Some(edge) = &next.edge else { continue };
            if let Some(grad) = grad
                && self.runs(&edge.node)
            {
                self.give(edge, grad, node.stream.as_ref()).map_err(|error| self.own(error))?;
            }
            let Some(waiting) = self.waiting.get_mut(&key(&edge.node)) else { continue };
            waiting.dependencies -= 1;
            if waiting.dependencies == 0 {
                self.push(edge.node.clone());
            }
        }
        Ok(())
    }

    /// Makes the caller's streams wait for the streams on which leaves got their gradients.
    fn join(&mut self, caller: &[Option<Stream>]) -> Result<()> {
        let mut done: Vec<(u64, usize)> = Vec::new();
        for leaf in &self.leaves {
            let Some(root) = caller.iter().flatten().next() else { return Ok(()) };
            if done.contains(&(leaf.id(), leaf.device_index())) {
                continue;
            }
            done.push((leaf.id(), leaf.device_index()));
            let own = caller.iter().flatten().find(|s| s.device_index() == leaf.device_index());
            let own = own.unwrap_or(root);
            if own.id() != leaf.id() {
                own.wait_stream(leaf)?;
            }
        }
        Ok(())
    }
}

/// Runs `f` with a node's stream as the current one.
fn on<R>(runtime: &Runtime, node: &Node, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let Some(stream) = &node.stream else { return f() };
    let _guard = runtime.devices()?.stream_guard(stream)?;
    f()
}

/// Orders the work that made a gradient before its use on another stream. Does nothing if the runtime orders
/// streams.
fn hand_over(grad: &Tensor, from: Option<&Stream>, to: Option<&Stream>) -> Result<()> {
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    let manual = grad.storage().runtime().sync_policy() == SyncPolicy::Manual;
    if !manual || from.id() == to.id() {
        return Ok(());
    }
    to.wait_stream(from)?;
    grad.record_stream(to)
}

/// Adapts gradients to the sizes, dtypes and devices of the inputs.
fn fitted(node: &Arc<Node>, mut grads: Gradients) -> Result<Gradients> {
    for (i, next) in node.next.iter().enumerate() {
        let Some(slot) = grads.get_mut(i) else { break };
        if next.edge.is_none() {
            *slot = None;
        }
        let Some(grad) = slot else { continue };
        if let Some(other) = fit(node, grad, &next.like)? {
            *slot = Some(other);
        }
        if let Some(grad) = slot
            && mode::is_anomaly_enabled()
            && grad.isnan()?.any(())?.item::<bool>()?
        {
            let reason = format!("its gradient number {i} has NaN among its elements");
            return Err(Error::gradient(node.name, reason).at(node.location));
        }
    }
    Ok(grads)
}

/// Returns a gradient adapted to `like`; `None` if it fits already.
fn fit(node: &Node, grad: &Tensor, like: &Like) -> Result<Option<Tensor>> {
    let mut fitted = None;
    if grad.size() != &like.sizes[..] {
        fitted = Some(sum_to(node, grad, &like.sizes)?);
    }
    let current = fitted.as_ref().unwrap_or(grad);
    if current.dtype() != like.dtype || current.device() != like.device {
        fitted = Some(current.to((like.dtype, like.device))?);
    }
    Ok(fitted)
}

/// Sums a gradient over the dimensions that were broadcast (`sum_to_size`).
fn sum_to(node: &Node, grad: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let reason = || {
        let own = grad.size();
        let reason =
            format!("it returned a gradient of shape {own:?} for an input of shape {sizes:?}");
        Error::gradient(node.name, reason).at(node.location)
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

/// Gives an error of an op's gradient the op's name and the location of its forward call. The ops that compute
/// the gradient are not the program's.
fn while_running(node: &Arc<Node>, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Gradient { .. } => error,
        kind if is_bad_argument(kind) => {
            Error::gradient(node.name, format!("its gradient failed: {kind}")).at(node.location)
        }
        _ => error.of(node.name).at(node.location),
    }
}
