//! The state that an op saves for its backward pass.
//!
//! `record` visits each tensor in the state. All fields of the state implement [`Saved`], so no tensor
//! is missed. For each saved tensor, the node stores a [`SavedTensorInfo`]: the version of the
//! tensor's storage, and its origin in the graph. A leaf that requires a gradient is saved itself. Any other
//! tensor is replaced by an alias without autograd state. Otherwise the node could own itself: the
//! autograd state of a result owns the result's node, and an in-place op may give the autograd state of
//! an input a node that leads back to the saving node. A backward pass checks the versions and frees the state.

use std::sync::Arc;

use smallvec::SmallVec;
use warpline_runtime::{Layout, Scalar, Version};

use super::meta::AutogradMeta;
use super::mode;
use super::node::{Edge, GradNode};
use crate::{Error, Result, Site, Tensor};

/// State that an op saves for its gradient. The [`saved!`] macro declares such structs, and visits each
/// field. A field whose type does not implement this trait does not compile. A type that implements it by
/// hand without [`Saved::for_each_tensor`] must hold no tensor.
pub(crate) trait Saved: Clone + Send + Sync + 'static {
    /// Calls `f` on each tensor, always in the same order.
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
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
            fn for_each_tensor(&mut self,
                f: &mut dyn FnMut(&mut $crate::Tensor) -> $crate::Result<()>,
            ) -> $crate::Result<()> {
                $($crate::autograd::Saved::for_each_tensor(&mut self.$field, f)?;)*
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
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        f(self)
    }
}

impl<T: Saved> Saved for Option<T> {
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.for_each_tensor(f))
    }
}

impl<T: Saved> Saved for Vec<T> {
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.for_each_tensor(f))
    }
}

impl<T: Saved, const N: usize> Saved for SmallVec<[T; N]>
where
    [T; N]: smallvec::Array<Item = T>,
{
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|item| item.for_each_tensor(f))
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.0.for_each_tensor(f)?;
        self.1.for_each_tensor(f)
    }
}

/// The version of a saved tensor's storage, and the origin of the tensor.
pub(super) struct SavedTensorInfo {
    version: Version,
    origin: SavedOrigin,
}

/// The origin of a saved tensor, which determines the destination of its gradient in a recorded pass.
enum SavedOrigin {
    /// A leaf that requires a gradient. It is saved with its autograd state.
    Leaf,
    /// A result of the op that saved the tensor, by its index.
    Output(usize),
    /// A result of another op; `None` if the tensor requires no gradient.
    Other(Option<Edge>),
}

impl SavedTensorInfo {
    /// Prepares a tensor to be saved by the op `op`. The tensor may be one of the op's results.
    ///
    /// Replaces the tensor by an alias without autograd state and base, unless the tensor is a leaf that
    /// requires a gradient. An in-place op may later give the autograd state a node that leads back to the saving node.
    /// That cycle would never be freed.
    pub(super) fn pack(op: &'static str, tensor: &mut Tensor, outputs: &[&Tensor]) -> Result<Self> {
        if tensor.is_inference() {
            let reason = "a tensor created in inference mode cannot be saved for a gradient; use a copy of it";
            return Err(Error::gradient(op, reason));
        }
        let version = tensor.storage().version();
        let origin = match outputs.iter().position(|output| output.is_same(tensor)) {
            Some(output) => SavedOrigin::Output(output),
            None if !tensor.requires_grad() => SavedOrigin::Other(None),
            None if tensor.is_leaf() => SavedOrigin::Leaf,
            None => SavedOrigin::Other(tensor.edge()),
        };
        if !matches!(origin, SavedOrigin::Leaf) {
            *tensor = tensor.alias();
        }
        Ok(Self { version, origin })
    }

    /// Checks that a tensor has not changed since the op saved it. Memory that is shared with other processes is not
    /// checked. In a recorded pass, connects the tensor to its origin in the graph.
    pub(super) fn unpack(&self, tensor: &mut Tensor, node: &Arc<GradNode>) -> Result<()> {
        let storage = tensor.storage();
        if !self.version.is_of(storage) && !storage.is_shared() {
            let what = match self.origin {
                SavedOrigin::Output(_) => "its result",
                SavedOrigin::Leaf | SavedOrigin::Other(_) => "an input",
            };
            let reason = format!(
                "one of the tensors needed for the gradient has been modified by an in-place operation: {what}, a \
                 {} tensor of shape {:?}",
                tensor.dtype(),
                tensor.size()
            );
            return Err(node.error(reason));
        }
        let edge = match &self.origin {
            _ if !mode::is_grad_enabled() => None,
            SavedOrigin::Leaf | SavedOrigin::Other(None) => None,
            SavedOrigin::Output(output) => Some(Edge { node: node.clone(), output: *output }),
            SavedOrigin::Other(Some(edge)) => Some(edge.clone()),
        };
        if let Some(edge) = edge {
            *tensor = tensor.alias();
            AutogradMeta::of(tensor).set_edge(edge);
        }
        Ok(())
    }
}
