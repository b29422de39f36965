//! Gradients of ops: the trait of an op's saved state, and its call by the engine.
//!
//! The state is a struct, declared by `saved!`, that implements [`Backward`]. `backward` computes
//! the gradients of the inputs by ops of tensors, which are recorded under `create_graph`, so
//! gradients of gradients need nothing more. `fused` computes them by kernels that are not
//! recorded. The engine calls `fused` first, and under `create_graph` only `backward`, so no op has
//! to ask for the mode.
//!
//! A linear op of one input saves nothing: [`linear`] makes its state from a function that is
//! `Copy` and therefore owns no tensor.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::mode;
use super::node::{Gradients, Node};
use super::saved::{Mark, Saved};
use crate::{DType, Device, Result, Tensor};

/// The gradient of an op, implemented by the state that the op saves.
///
/// `G` is the incoming gradient: that of the only result, or a slice with one gradient per result.
pub(crate) trait Backward<G: ?Sized = Tensor>: Saved {
    /// Returns the gradients of the inputs, in their order, computed by ops that have gradients themselves.
    fn backward(&self, grad: &G, inputs: &Inputs<'_>) -> Result<Gradients>;

    /// Returns the gradients of the inputs, computed by kernels that are not recorded. `None`: use
    /// [`Self::backward`]. The engine does not call this under `create_graph`.
    fn fused(&self, grad: &G, inputs: &Inputs<'_>) -> Result<Option<Gradients>> {
        let _ = (grad, inputs);
        Ok(None)
    }
}

/// Makes the state of a linear op of one input, whose gradient is a function of the result's gradient. A
/// function that is `Copy` owns no tensor, so no saved tensor is missed.
pub(crate) fn linear<F>(gradient: F) -> impl Backward
where
    F: Fn(&Tensor, &Inputs<'_>) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    Linear(gradient)
}

#[derive(Clone, Copy)]
struct Linear<F>(F);

impl<F: Copy + Send + Sync + 'static> Saved for Linear<F> {}

impl<F> Backward for Linear<F>
where
    F: Fn(&Tensor, &Inputs<'_>) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(self.0(grad, inputs)?)])
    }
}

/// The inputs of a recorded op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    pub(super) node: &'a Arc<Node>,
    /// Whether the pass is for given inputs only and must change no leaf.
    pub(super) partial: bool,
}

impl Inputs<'_> {
    /// Returns the number of inputs.
    pub(crate) fn len(&self) -> usize {
        self.node.next.len()
    }

    /// Returns whether input `index` exists and requires a gradient.
    pub(crate) fn needs(&self, index: usize) -> bool {
        self.node.next.get(index).is_some_and(|next| next.edge.is_some())
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
        self.node.next.get(index).map_or(&[], |next| &next.like.sizes)
    }

    /// Returns the dtype of input `index`.
    pub(crate) fn dtype(&self, index: usize) -> DType {
        self.node.next.get(index).map_or(DType::F32, |next| next.like.dtype)
    }

    /// Returns the device of input `index`.
    pub(crate) fn device(&self, index: usize) -> Device {
        self.node.next.get(index).map_or(Device::Cpu, |next| next.like.device)
    }
}

/// A [`Backward`] as a node stores it.
pub(super) trait Rule: Send + Sync {
    /// Computes the gradients of the inputs from those of the results.
    fn run(&self, grads: &[Option<Tensor>], inputs: &Inputs<'_>) -> Result<Gradients>;

    /// Ends a pass without `retain_graph`. Returns whether the node drops the rule, because it saves tensors.
    fn release(&self) -> bool {
        false
    }
}

/// The form of the incoming gradients of [`Backward`].
pub(super) trait Incoming {
    /// Returns the gradients in this form; `None` if there is nothing to pass on.
    fn of(grads: &[Option<Tensor>]) -> Option<&Self>;
}

impl Incoming for Tensor {
    fn of(grads: &[Option<Tensor>]) -> Option<&Self> {
        grads.first().and_then(Option::as_ref)
    }
}

impl Incoming for [Option<Tensor>] {
    fn of(grads: &[Option<Tensor>]) -> Option<&Self> {
        Some(grads)
    }
}

/// The state of an op, and a mark for each tensor in it.
struct Recorded<S, G: ?Sized> {
    state: S,
    marks: SmallVec<[Mark; 2]>,
    grad: PhantomData<fn(&G)>,
}

/// Makes the rule of op `op` with results `outputs`.
#[track_caller]
pub(super) fn rule<G: Incoming + ?Sized + 'static>(
    op: &'static str,
    outputs: &[&Tensor],
    mut state: impl Backward<G>,
) -> Result<Arc<dyn Rule>> {
    let (mut marks, location) = (SmallVec::new(), Location::caller());
    state.each(&mut |tensor| {
        marks.push(Mark::new(op, tensor, outputs).map_err(|error| error.at(location))?);
        Ok(())
    })?;
    Ok(Arc::new(Recorded { state, marks, grad: PhantomData }))
}

impl<G: Incoming + ?Sized, S: Backward<G>> Rule for Recorded<S, G> {
    fn run(&self, grads: &[Option<Tensor>], inputs: &Inputs<'_>) -> Result<Gradients> {
        let Some(grad) = G::of(grads) else { return Ok(Gradients::new()) };
        let mut state = Cow::Borrowed(&self.state);
        if !self.marks.is_empty() {
            let mut marks = self.marks.iter();
            state.to_mut().each(&mut |tensor| {
                marks.next().map_or(Ok(()), |mark| mark.unpack(tensor, inputs.node))
            })?;
        }
        if !mode::is_grad_enabled()
            && let Some(gradients) = state.fused(grad, inputs)?
        {
            return Ok(gradients);
        }
        state.backward(grad, inputs)
    }

    fn release(&self) -> bool {
        !self.marks.is_empty()
    }
}
