//! Ops of the program's own, with their gradients.

use std::sync::Arc;

use warpline_runtime::launch::report_as;

use super::backward::{Backward, Inputs};
use super::node::{Gradients, Node};
use super::record::{record_all, wanted};
use super::saved::Saved;
use super::{Context, mode};
use crate::{Error, ErrorKind, Result, Tensor};

/// What a function's backward pass will need.
#[derive(Debug, Default)]
pub struct ToSave(Vec<Tensor>);

impl ToSave {
    /// Keeps a tensor, an input or a result among others, for [`Context::saved`] by the number of the call
    /// (`ctx.save_for_backward`).
    pub fn tensor(&mut self, tensor: &Tensor) -> &mut Self {
        self.0.push(tensor.clone());
        self
    }
}

/// An op with its own gradient (`torch.autograd.Function`): one that others than Warpline's kernels compute, or
/// whose gradient is not that of what it computes. What is no tensor is a field.
///
/// ```
/// use warpline::autograd::{Context, Function, Gradients, ToSave};
/// use warpline::{Result, Tensor, tensor};
///
/// /// Rounds, and lets gradients through as if it did not.
/// struct StraightThrough;
///
/// impl Function for StraightThrough {
///     const NAME: &'static str = "straight_through";
///
///     fn forward(&self, _save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
///         Ok(vec![inputs[0].round()?])
///     }
///
///     fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
///         Ok(grads.iter().cloned().collect())
///     }
/// }
///
/// let x = tensor([0.4f32, 1.6], ())?.requires_grad_(true)?;
/// let y = StraightThrough.apply(&[&x])?.remove(0);
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
/// y.sum(())?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
pub trait Function: Send + Sync + Sized + 'static {
    /// What errors and `grad_fn` call it, in lower case with underscores.
    const NAME: &'static str;

    /// Computes the results. Nothing that is done here is recorded.
    ///
    /// # Errors
    /// Whatever its ops fail with.
    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>>;

    /// Returns one gradient for each input, in their order, from the gradients of the results. An input whose
    /// [`Context::needs`] is false may have `None`. Written in ops of tensors, it has gradients itself.
    ///
    /// Each gradient is a floating-point tensor on its input's device, with the input's sizes or sizes that the input's
    /// broadcast to. Another dtype is converted, and a gradient without dimensions is moved. Anything else, and too few
    /// or too many gradients, is an [`ErrorKind::Gradient`] of the backward pass; surplus `None`s are ignored.
    ///
    /// # Errors
    /// Whatever its ops fail with.
    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients>;

    /// Computes the results, and records them if an input wants a gradient.
    ///
    /// # Errors
    /// As [`Function::forward`]; [`crate::ErrorKind::Gradient`] if a tensor cannot be saved.
    #[track_caller]
    fn apply(self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut save = ToSave::default();
        let outputs = mode::no_grad(|| self.forward(&mut save, inputs))?;
        if !wanted(inputs) {
            return Ok(outputs);
        }
        // A result that is an input would else be its own input, and a leaf none any more.
        let known = |output: &Tensor| {
            output.requires_grad() || inputs.iter().any(|input| input.is_same(output))
        };
        let apart = |output: Tensor| match known(&output) {
            true => output.alias(),
            false => output,
        };
        let outputs: Vec<Tensor> = outputs.into_iter().map(apart).collect();
        let results: Vec<&Tensor> = outputs.iter().collect();
        let call = Call { function: Arc::new(self), saved: save.0 };
        record_all(Self::NAME, &results, inputs, call)?;
        Ok(outputs)
    }
}

/// A function that was called, and the tensors that it saved.
struct Call<F> {
    function: Arc<F>,
    saved: Vec<Tensor>,
}

impl<F> Clone for Call<F> {
    fn clone(&self) -> Self {
        Self { function: Arc::clone(&self.function), saved: self.saved.clone() }
    }
}

impl<F: Function> Saved for Call<F> {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.saved.each(f)
    }
}

impl<F: Function> Backward<[Option<Tensor>]> for Call<F> {
    fn backward(&self, grads: &[Option<Tensor>], inputs: &Inputs<'_>) -> Result<Gradients> {
        let context = &Context { inputs: *inputs, saved: &self.saved };
        // The ops are the program's, which knows their calls.
        let mut returned = report_as(None, || self.function.backward(context, grads))
            .map_err(|error| failed(inputs, error))?;
        check(inputs, &returned)?;
        returned.truncate(inputs.len());
        Ok(returned)
    }
}

/// Checks the gradients that a function of the program returned, as PyTorch does. The engine checks their sizes.
fn check(inputs: &Inputs<'_>, returned: &[Option<Tensor>]) -> Result<()> {
    let fail = |reason| Err(Error::gradient(inputs.node.name, reason).at(inputs.node.location));
    let expected = inputs.len();
    if returned.len() < expected || returned.iter().skip(expected).any(Option::is_some) {
        let got = returned.len();
        return fail(format!("backward returned {got} gradients, but there are {expected} inputs"));
    }
    for (i, grad) in returned.iter().enumerate() {
        let Some(grad) = grad else { continue };
        if !inputs.needs(i) {
            continue;
        }
        if !grad.dtype().is_float() {
            let dtype = grad.dtype();
            return fail(format!(
                "backward returned a gradient of dtype {dtype} for input {i}; gradients are floating-point tensors"
            ));
        }
        let (device, own) = (grad.device(), inputs.device(i));
        if device != own && grad.dim() > 0 {
            return fail(format!(
                "backward returned a gradient on {device} for input {i} on {own}"
            ));
        }
    }
    Ok(())
}

/// An error of a function's gradient. The ops of which that consists are the program's, so the message has them and
/// their lines, too.
fn failed(inputs: &Inputs<'_>, error: Error) -> Error {
    if !is_bad_argument(error.kind()) {
        return error;
    }
    let Node { name, location, .. } = **inputs.node;
    Error::gradient(name, format!("its gradient failed: {error}")).at(location)
}

/// Whether an op refused its arguments, which in a gradient the rule has made.
pub(super) const fn is_bad_argument(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidArgument { .. }
            | ErrorKind::ShapeMismatch { .. }
            | ErrorKind::BroadcastMismatch { .. }
            | ErrorKind::OperandDTypes { .. }
            | ErrorKind::UnsupportedDType { .. }
    )
}
