//! Gradients of ops: the trait that an op's saved state implements, and its call by the engine.
//!
//! The `saved!` macro declares the state as a struct, which implements [`OpBackward`]. `backward` computes
//! the gradients of the inputs with tensor ops. These ops are recorded under `create_graph`, which gives
//! gradients of gradients. `fused` computes the same gradients with kernels that are not recorded.
//! [`RecordedOp`] calls `fused` first, and under `create_graph` calls only `backward`, so no op has to
//! check the mode.
//!
//! A linear op with one input saves nothing. [`linear`] creates its state from a function that is
//! `Copy` and therefore owns no tensor.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::mode;
use super::node::{GradNode, Gradients};
use super::saved::{Saved, SavedTensorInfo};
use crate::{DType, Device, Result, Tensor};

/// Computes the gradients of an op's inputs. The state that the op saves implements this trait.
///
/// `G` is the type of the incoming gradient: `Tensor` for an op with one result, or a slice with one gradient
/// per result.
pub(crate) trait OpBackward<G: ?Sized = Tensor>: Saved {
    /// Returns the gradients of the inputs, in their order, computed with differentiable ops.
    fn backward(&self, grad: &G, inputs: &NodeInputs<'_>) -> Result<Gradients>;

    /// Returns the gradients of the inputs, computed with kernels that are not recorded. `None`: use
    /// [`Self::backward`]. Not called under `create_graph`.
    fn fused(&self, grad: &G, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let _ = (grad, inputs);
        Ok(None)
    }
}

/// Creates the state of a linear op with one input. `gradient` computes the input's gradient from the
/// gradient of the result.
/// `gradient` must be `Copy`, so it owns no tensor that the state would have to list as saved.
pub(crate) fn linear<F>(gradient: F) -> impl OpBackward
where
    F: Fn(&Tensor, &NodeInputs<'_>) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    LinearGradient(gradient)
}

#[derive(Clone, Copy)]
struct LinearGradient<F>(F);

impl<F: Copy + Send + Sync + 'static> Saved for LinearGradient<F> {}

impl<F> OpBackward for LinearGradient<F>
where
    F: Fn(&Tensor, &NodeInputs<'_>) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(self.0(grad, inputs)?)])
    }
}

/// The inputs of a recorded op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeInputs<'a> {
    pub(super) node: &'a Arc<GradNode>,
    /// Whether the pass computes gradients of given inputs only, and therefore must not change any leaf.
    pub(super) partial: bool,
}

impl NodeInputs<'_> {
    /// Returns the number of inputs.
    pub(crate) fn len(&self) -> usize {
        self.node.inputs.len()
    }

    /// Returns whether input `index` exists and requires a gradient.
    pub(crate) fn needs(&self, index: usize) -> bool {
        self.node.inputs.get(index).is_some_and(|input| input.edge.is_some())
    }

    /// Computes the gradient of input `index` if it is required.
    pub(crate) fn gradient(
        &self,
        index: usize,
        f: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        self.needs(index).then(f).transpose()
    }

    /// Returns the sizes of input `index`.
    pub(crate) fn sizes(&self, index: usize) -> &[usize] {
        self.node.inputs.get(index).map_or(&[], |input| &input.spec.sizes)
    }

    /// Returns the dtype of input `index`.
    pub(crate) fn dtype(&self, index: usize) -> DType {
        self.node.inputs.get(index).map_or(DType::F32, |input| input.spec.dtype)
    }

    /// Returns the device of input `index`.
    pub(crate) fn device(&self, index: usize) -> Device {
        self.node.inputs.get(index).map_or(Device::Cpu, |input| input.spec.device)
    }
}

/// The gradient function of a node, as a trait object: an [`OpBackward`] with its saved tensors, or a
/// gradient function of `views.rs`.
pub(super) trait GradFn: Send + Sync {
    /// Computes the gradients of the inputs from the gradients of the results.
    fn run(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients>;

    /// Called when a pass without `retain_graph` is done with the node. Returns whether the node should drop this
    /// function, because it owns saved tensors.
    fn release(&self) -> bool {
        false
    }

    /// Calls `f` on each saved tensor.
    fn for_each_saved(&self, f: &mut dyn FnMut(&Tensor)) {
        let _ = f;
    }
}

/// A type of incoming gradients of [`OpBackward`].
pub(super) trait IncomingGrad {
    /// Converts the gradients of all results to this type; `None` if there is no gradient to compute from.
    fn of(grads: &[Option<Tensor>]) -> Option<&Self>;
}

impl IncomingGrad for Tensor {
    fn of(grads: &[Option<Tensor>]) -> Option<&Self> {
        grads.first().and_then(Option::as_ref)
    }
}

impl IncomingGrad for [Option<Tensor>] {
    fn of(grads: &[Option<Tensor>]) -> Option<&Self> {
        Some(grads)
    }
}

/// The saved state of an op, with the [`SavedTensorInfo`] of each tensor in it.
struct RecordedOp<S, G: ?Sized> {
    saved: S,
    infos: SmallVec<[SavedTensorInfo; 2]>,
    grad: PhantomData<fn(&G)>,
}

/// Creates the gradient function of op `op` with results `outputs`.
#[track_caller]
pub(super) fn grad_fn<G: IncomingGrad + ?Sized + 'static>(
    op: &'static str,
    outputs: &[&Tensor],
    mut saved: impl OpBackward<G>,
) -> Result<Arc<dyn GradFn>> {
    let (mut infos, location) = (SmallVec::new(), Location::caller());
    saved.for_each_tensor(&mut |tensor| {
        infos.push(SavedTensorInfo::pack(op, tensor, outputs).map_err(|error| error.at(location))?);
        Ok(())
    })?;
    Ok(Arc::new(RecordedOp { saved, infos, grad: PhantomData }))
}

impl<G: IncomingGrad + ?Sized, S: OpBackward<G>> GradFn for RecordedOp<S, G> {
    fn run(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let Some(grad) = G::of(grads) else { return Ok(Gradients::new()) };
        let mut saved = Cow::Borrowed(&self.saved);
        if !self.infos.is_empty() {
            let mut infos = self.infos.iter();
            saved.to_mut().for_each_tensor(&mut |tensor| {
                infos.next().map_or(Ok(()), |info| info.unpack(tensor, inputs.node))
            })?;
        }
        if !mode::is_grad_enabled()
            && let Some(gradients) = saved.fused(grad, inputs)?
        {
            return Ok(gradients);
        }
        saved.backward(grad, inputs)
    }

    fn release(&self) -> bool {
        !self.infos.is_empty()
    }

    fn for_each_saved(&self, f: &mut dyn FnMut(&Tensor)) {
        let visited = self.saved.clone().for_each_tensor(&mut |tensor| {
            f(tensor);
            Ok(())
        });
        debug_assert!(visited.is_ok(), "only the closure fails");
    }
}
