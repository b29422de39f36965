//! The state that an op saves for its backward pass.
//!
//! `record` visits each tensor of a state. A type without the trait `Saved` cannot be a field of a
//! state, so no tensor is missed. The node keeps a [`Mark`] for each saved tensor: the version of
//! its storage, and the place where its gradient goes. A leaf is kept itself. Any other tensor is
//! replaced by an alias without its slot, because the slot of a result leads to its node, and the
//! slot of an input may do so after an in-place op: a node that kept a slot could keep itself
//! alive. A backward pass checks the versions and frees the state.

use std::sync::Arc;

use smallvec::SmallVec;
use warpline_runtime::{Layout, Scalar, Version};

use super::meta::Meta;
use super::mode;
use super::node::{Edge, Node};
use crate::{Error, Result, Site, Tensor};

/// State that an op saves. The [`saved!`] macro declares structs of saved state, all of whose fields implement
/// this trait. A tensor in a type without the trait does not compile.
pub(crate) trait Saved: Clone + Send + Sync + 'static {
    /// Calls `f` on each tensor, always in the same order.
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        let _ = f;
        Ok(())
    }
}

/// Declares structs that implement [`Saved`].
macro_rules! saved {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$field_doc:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone)]
        $vis struct $name { $($(#[$field_doc])* $field_vis $field: $type),* }

        impl $crate::autograd::Saved for $name {
            fn each(
                &mut self,
                f: &mut dyn FnMut(&mut $crate::Tensor) -> $crate::Result<()>,
            ) -> $crate::Result<()> {
                $($crate::autograd::Saved::each(&mut self.$field, f)?;)*
                Ok(())
            }
        }
    )*};
}
pub(crate) use saved;

macro_rules! without_tensors {
    ($($type:ty),*) => {$(impl Saved for $type {})*};
}

without_tensors!(bool, usize, isize, i64, f64, Scalar, Site, Layout);

impl<T: Sync + ?Sized> Saved for &'static T {}

impl Saved for Tensor {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        f(self)
    }
}

impl<T: Saved> Saved for Option<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.each(f))
    }
}

impl<T: Saved> Saved for Vec<T> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.each(f))
    }
}

impl<T: Saved, const N: usize> Saved for SmallVec<[T; N]>
where
    [T; N]: smallvec::Array<Item = T>,
{
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.each(f))
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.0.each(f)?;
        self.1.each(f)
    }
}

/// The version of a saved tensor, and its place in the graph.
pub(super) struct Mark {
    version: Version,
    source: Source,
}

/// The destination of a saved tensor's gradient in a recorded pass.
enum Source {
    /// The saved tensor itself, which is a leaf.
    Leaf,
    /// A result of the op that saved the tensor.
    Output(usize),
    /// A node of another op; `None`: no destination.
    Other(Option<Edge>),
}

impl Mark {
    /// Marks a tensor that the op `op` saves. The tensor may be one of the op's results.
    ///
    /// Replaces the tensor, unless it is a leaf, by an alias without its autograd state and its base. An
    /// in-place op may later give that state a node that leads back to the node that saves the tensor, and
    /// neither would ever be freed.
    pub(super) fn new(op: &'static str, tensor: &mut Tensor, outputs: &[&Tensor]) -> Result<Self> {
        if tensor.is_inference() {
            let reason = "a tensor that was made in inference mode cannot be saved for a gradient; use a copy of it";
            return Err(Error::gradient(op, reason));
        }
        let version = tensor.storage().version();
        let source = match outputs.iter().position(|output| output.is_same(tensor)) {
            Some(output) => Source::Output(output),
            None if !tensor.requires_grad() => Source::Other(None),
            None if tensor.is_leaf() => Source::Leaf,
            None => Source::Other(tensor.edge()),
        };
        if !matches!(source, Source::Leaf) {
            *tensor = tensor.alias();
        }
        Ok(Self { version, source })
    }

    /// Checks that a tensor was not changed since the op saved it. In a recorded pass, gives the tensor its
    /// place in the graph.
    pub(super) fn unpack(&self, tensor: &mut Tensor, node: &Arc<Node>) -> Result<()> {
        let storage = tensor.storage();
        if !self.version.is_of(storage) && !storage.is_shared() {
            let what = match self.source {
                Source::Output(_) => "its result",
                Source::Leaf | Source::Other(_) => "an input",
            };
            let reason = format!(
                "one of the tensors needed for the gradient has been modified by an in-place operation: {what}, a \
                 {} tensor of shape {:?}",
                tensor.dtype(),
                tensor.size()
            );
            return Err(Error::gradient(node.name, reason).at(node.location));
        }
        let edge = match &self.source {
            _ if !mode::is_grad_enabled() => None,
            Source::Leaf | Source::Other(None) => None,
            Source::Output(output) => Some(Edge { node: node.clone(), output: *output }),
            Source::Other(Some(edge)) => Some(edge.clone()),
        };
        if let Some(edge) = edge {
            *tensor = tensor.alias();
            Meta::of(tensor).set_edge(edge);
        }
        Ok(())
    }
}
