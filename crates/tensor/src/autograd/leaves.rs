//! The leaves, the ops and the saved tensors of a graph.

use std::collections::HashSet;
use std::sync::Arc;

use super::node::{GradNode, NodeKind, current_thread};
use crate::{Site, Tensor};

/// Returns the leaves to which a backward pass from `roots` passes gradients, each once. Leaves that are used only
/// inside a checkpoint are not in the graph.
///
/// ```
/// use warpline::{autograd::reachable_leaves, ones};
///
/// let (x, unused) = (ones([2], ())?.requires_grad_(true)?, ones([2], ())?.requires_grad_(true)?);
/// let leaves = reachable_leaves([&x.sum(())?]);
/// assert!(leaves.iter().any(|leaf| leaf.is_same(&x)));
/// assert!(!leaves.iter().any(|leaf| leaf.is_same(&unused)));
/// # Ok::<(), warpline::Error>(())
/// ```
#[must_use]
pub fn reachable_leaves<'t>(roots: impl IntoIterator<Item = &'t Tensor>) -> Vec<Tensor> {
    let mut leaves = Vec::new();
    for_each_node(roots, |node| {
        if let NodeKind::Accumulator(leaf) = &node.kind {
            leaves.push(leaf.clone());
        }
    });
    leaves
}

/// Returns whether a backward pass from `roots` runs a node of the op `name`.
pub(crate) fn has_node<'t>(roots: impl IntoIterator<Item = &'t Tensor>, name: &str) -> bool {
    let mut found = false;
    for_each_node(roots, |node| found |= node.name == name);
    found
}

/// Returns the call of an op that a backward pass from `roots` reaches, and that this thread recorded before its op
/// `number` ([`next_op`](super::next_op)).
pub(crate) fn op_before<'t>(
    roots: impl IntoIterator<Item = &'t Tensor>,
    number: u64,
) -> Option<Site> {
    let mut found = None;
    for_each_node(roots, |node| {
        let is_before = |(thread, own)| thread == current_thread() && own < number;
        if node.recorded.is_some_and(is_before) {
            found = Some(node.call);
        }
    });
    found
}

/// Calls `f` on the tensors that the nodes of a backward pass from `roots` saved. `f` may see a tensor several times.
pub(crate) fn for_each_saved<'t>(
    roots: impl IntoIterator<Item = &'t Tensor>,
    mut f: impl FnMut(&Tensor),
) {
    for_each_node(roots, |node| node.for_each_saved(&mut f));
}

/// Calls `f` once on each node that a backward pass from `roots` reaches.
fn for_each_node<'t>(roots: impl IntoIterator<Item = &'t Tensor>, mut f: impl FnMut(&GradNode)) {
    let mut stack: Vec<Arc<GradNode>> =
        roots.into_iter().filter_map(Tensor::edge).map(|edge| edge.node).collect();
    // `roots` and the edges of the graph keep the nodes alive, so addresses identify them.
    let mut seen = HashSet::new();
    let roots = stack.clone();
    while let Some(node) = stack.pop() {
        if !seen.insert(Arc::as_ptr(&node)) {
            continue;
        }
        f(&node);
        stack
            .extend(node.inputs.iter().filter_map(|input| Some(input.edge.as_ref()?.node.clone())));
    }
    drop(roots);
}
