//! Custom ops with their own gradients.

use std::sync::Arc;

use smallvec::SmallVec;

use super::node::Gradients;
use super::op_backward::{NodeInputs, OpBackward};
use super::record::{record_all, should_record};
use super::saved::Saved;
use super::{AutocastModes, Context, ModeGuard, mode};
use crate::amp::cast_inputs;
use crate::{CallScope, DType, Error, ErrorKind, Result, Tensor};

/// The tensors that a function saves for its backward pass.
#[derive(Debug, Default)]
pub struct ToSave(Vec<Tensor>);

impl ToSave {
    /// Saves a tensor, such as an input or a result (`ctx.save_for_backward`). [`Context::saved`] returns it by
    /// the number of the call, from 0.
    pub fn tensor(&mut self, tensor: &Tensor) -> &mut Self {
        self.0.push(tensor.clone());
        self
    }
}

/// A custom op with its own gradient (`torch.autograd.Function`): an op that Warpline's kernels do not compute,
/// or an op whose gradient is not the derivative of its computation. Arguments that are not tensors are fields
/// of the implementing type.
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
    /// Name of the op in errors and in `grad_fn`, in lower case with underscores.
    const NAME: &'static str;

    /// The dtype to which [`Function::apply`] converts floating-point inputs in a region of
    /// [`autocast`](crate::amp::autocast) (`cast_inputs` of `torch.amp.custom_fwd`). The function then computes with
    /// autocast disabled, and so does `backward`. With `None`, the ops in `forward` and `backward` choose their dtypes
    /// by the region of `forward`.
    const CAST_INPUTS: Option<DType> = None;

    /// Whether `backward` runs in the region of `forward`. `false` for functions that run hooks of a program.
    #[doc(hidden)]
    const BACKWARD_IN_REGION: bool = true;

    /// Computes the results. The ops in this function are not recorded.
    ///
    /// # Errors
    /// The errors of the ops that the function calls ([errors of every op](Tensor#errors-of-every-op)), and
    /// errors that the function creates itself, such as [`Error::invalid`] for sizes that it does not support.
    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>>;

    /// Returns one gradient per input, in their order, from the gradients of the results. `None` passes no gradient
    /// to the input; return `None` where [`Context::needs`] is false. If the function is written in tensor ops, its
    /// gradients have gradients.
    ///
    /// Each gradient is a floating-point tensor on its input's device, with the input's sizes, or with sizes to which
    /// the input's sizes broadcast. A gradient of a different dtype is converted, and a gradient without dimensions is
    /// moved to the input's device. Any other gradient, and a wrong number of gradients, is an [`ErrorKind::Gradient`]
    /// of the backward pass. Surplus `None`s are ignored.
    ///
    /// # Errors
    /// The errors of the ops that the function calls ([errors of every op](Tensor#errors-of-every-op)), and
    /// errors that the function creates itself, such as [`Error::invalid`] for sizes that it does not support.
    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients>;

    /// Computes the results, and records them if an input requires a gradient.
    ///
    /// # Errors
    /// Errors that [`Function::forward`] returns. [`ErrorKind::Gradient`] if a tensor cannot be saved.
    #[track_caller]
    fn apply(self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some(dtype) = Self::CAST_INPUTS
            && let Some((cast, _closed)) = cast_inputs(dtype, inputs)?
        {
            return self.apply(&cast.iter().collect::<SmallVec<[&Tensor; 4]>>());
        }
        let mut save = ToSave::default();
        let outputs = mode::no_grad(|| self.forward(&mut save, inputs))?;
        if !should_record(inputs) {
            return Ok(outputs);
        }
        // If a result is an input, or is already in the graph, return an alias instead. If the tensor itself were
        // recorded, an input would become its own input, or a leaf would become a result.
        let known = |output: &Tensor| {
            output.requires_grad() || inputs.iter().any(|input| input.is_same(output))
        };
        let apart = |output: Tensor| match known(&output) {
            true => output.alias(),
            false => output,
        };
        let outputs: Vec<Tensor> = outputs.into_iter().map(apart).collect();
        let results: Vec<&Tensor> = outputs.iter().collect();
        let autocast = AutocastModes::current();
        let applied = AppliedFunction { function: Arc::new(self), saved: save.0, autocast };
        record_all(Self::NAME, &results, inputs, applied)?;
        Ok(outputs)
    }
}

/// A function that was applied, with the tensors that it saved.
struct AppliedFunction<F> {
    function: Arc<F>,
    saved: Vec<Tensor>,
    /// The regions of the forward pass.
    autocast: AutocastModes,
}

impl<F> Clone for AppliedFunction<F> {
    fn clone(&self) -> Self {
        Self { function: Arc::clone(&self.function), saved: self.saved.clone(), ..*self }
    }
}

impl<F: Function> Saved for AppliedFunction<F> {
    fn for_each_tensor(&mut self, f: &mut dyn FnMut(&mut Tensor) -> Result<()>) -> Result<()> {
        self.saved.for_each_tensor(f)
    }
}

impl<F: Function> OpBackward<[Option<Tensor>]> for AppliedFunction<F> {
    fn backward(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let context = &Context { inputs: *inputs, saved: &self.saved };
        let _regions = ModeGuard::autocast(|modes| {
            if F::BACKWARD_IN_REGION {
                *modes = self.autocast;
            }
        });
        // The program calls the ops in `backward`, so errors keep the locations of these calls.
        let scope = CallScope::none();
        let returned = self.function.backward(context, grads);
        drop(scope);
        let mut returned = returned.map_err(|error| failed(inputs, error))?;
        check(inputs, &returned)?;
        returned.truncate(inputs.len());
        Ok(returned)
    }
}

/// Checks the gradients that a custom function returned, as PyTorch does. The engine checks their sizes.
fn check(inputs: &NodeInputs<'_>, returned: &[Option<Tensor>]) -> Result<()> {
    let fail = |reason| Err(inputs.node.error(reason));
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

/// Wraps an error of an op in a custom function's gradient that refused its arguments, and returns any other error
/// unchanged. The program calls these ops, so the message includes their names and locations.
fn failed(inputs: &NodeInputs<'_>, error: Error) -> Error {
    if !is_bad_argument(error.kind()) {
        return error;
    }
    inputs.node.error(format!("its gradient failed: {error}"))
}

/// Returns whether an op refused its arguments. In a backward pass, these arguments come from the gradient
/// function, not from the program.
pub(super) const fn is_bad_argument(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidArgument { .. }
            | ErrorKind::ShapeMismatch { .. }
            | ErrorKind::BroadcastMismatch { .. }
            | ErrorKind::DTypeMismatch { .. }
            | ErrorKind::OperandDTypes { .. }
            | ErrorKind::UnsupportedDType { .. }
    )
}
