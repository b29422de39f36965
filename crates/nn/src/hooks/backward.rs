//! Backward hooks of modules.
//!
//! Two functions that compute the identity stand in the graph, one after the module's inputs and
//! one after its outputs. In a backward pass, [`AfterOutput`] runs first and keeps the gradients of
//! the outputs. [`AfterInput`] runs later and calls the hooks with the gradients of the inputs and
//! of the outputs. If no input requires a gradient, [`AfterOutput`] calls the hooks itself. Tensors
//! that require no gradient pass through neither function.

use std::sync::{Arc, Mutex, PoisonError};

use warpline::autograd::{Context, Function, Gradients, ToSave, is_grad_enabled};
use warpline::{Error, Result, Tensor};

use super::TensorTree;

/// Gradients of the inputs or outputs of a module.
pub type Grads = [Option<Tensor>];

/// A function of the gradients of a module's inputs and outputs.
pub(super) type BackwardHook =
    dyn Fn(&Grads, &Grads) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync;

/// The backward hooks of one forward pass.
pub(super) struct BackwardHooks(Vec<Arc<BackwardHook>>);

/// The backward hooks of one forward pass, after [`BackwardHooks::connect_input`] has connected the
/// input to the hooks. `None` if there are no hooks or no gradients are recorded.
pub(super) struct ConnectedHooks(Option<Arc<HookedPass>>);

/// The state that the functions on both sides of the module share.
struct HookedPass {
    hooks: Vec<Arc<BackwardHook>>,
    /// Number of tensors of the input.
    inputs: usize,
    /// Whether an input requires a gradient, so that [`AfterInput`] is in the graph.
    has_grad_input: bool,
    /// Gradients of the outputs, from their arrival to the call of the hooks.
    grad_output: Mutex<Option<Vec<Option<Tensor>>>>,
}

impl HookedPass {
    fn replace_grad_output(
        &self,
        grads: Option<Vec<Option<Tensor>>>,
    ) -> Option<Vec<Option<Tensor>>> {
        let mut kept = self.grad_output.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *kept, grads)
    }
}

impl BackwardHooks {
    pub(super) fn new(hooks: Vec<Arc<BackwardHook>>) -> Self {
        Self(hooks)
    }

    /// Returns the input, connected to the hooks.
    #[track_caller]
    pub(super) fn connect_input<I: TensorTree>(self, input: I) -> Result<(I, ConnectedHooks)> {
        if self.0.is_empty() || !is_grad_enabled() {
            return Ok((input, ConnectedHooks(None)));
        }
        let (input, tracked) = GradTensors::of(input)?;
        let pass = Arc::new(HookedPass {
            hooks: self.0,
            inputs: tracked.count,
            has_grad_input: !tracked.indices.is_empty(),
            grad_output: Mutex::default(),
        });
        let of_input = AfterInput { pass: Arc::clone(&pass), indices: tracked.indices.clone() };
        let input = tracked.pass_through(input, of_input)?;
        Ok((input, ConnectedHooks(Some(pass))))
    }
}

impl ConnectedHooks {
    /// Returns the output, connected to the hooks.
    #[track_caller]
    pub(super) fn connect_output<O: TensorTree>(self, output: O) -> Result<O> {
        let Some(pass) = self.0 else { return Ok(output) };
        let (output, tracked) = GradTensors::of(output)?;
        let (count, indices) = (tracked.count, tracked.indices.clone());
        tracked.pass_through(output, AfterOutput { pass, count, indices })
    }
}

/// The tensors of a value that require gradients.
struct GradTensors {
    tensors: Vec<Tensor>,
    /// Indices of `tensors` among all tensors of the value.
    indices: Vec<usize>,
    /// Number of all tensors of the value.
    count: usize,
}

impl GradTensors {
    fn of<T: TensorTree>(value: T) -> Result<(T, Self)> {
        let mut tracked = Self { tensors: Vec::new(), indices: Vec::new(), count: 0 };
        let value = value.map_tensors(&mut |tensor| {
            if tensor.requires_grad() {
                tracked.indices.push(tracked.count);
                tracked.tensors.push(tensor.clone());
            }
            tracked.count += 1;
            Ok(tensor)
        })?;
        Ok((value, tracked))
    }

    /// Passes the tensors of `value` that require gradients through a function.
    #[track_caller]
    fn pass_through<T: TensorTree>(self, value: T, function: impl Function) -> Result<T> {
        if self.tensors.is_empty() {
            return Ok(value);
        }
        let inputs: Vec<&Tensor> = self.tensors.iter().collect();
        let mut results = function.apply(&inputs)?.into_iter();
        value.map_tensors(&mut |tensor| match tensor.requires_grad() {
            true => Ok(results.next().unwrap_or(tensor)),
            false => Ok(tensor),
        })
    }
}

/// Returns gradients for all tensors of a value from the gradients of those at `indices`.
fn spread(count: usize, indices: &[usize], grads: &Grads) -> Vec<Option<Tensor>> {
    let mut all = vec![None; count];
    for (&index, grad) in indices.iter().zip(grads) {
        all[index].clone_from(grad);
    }
    all
}

/// The identity function on the inputs. Its backward pass calls the hooks.
struct AfterInput {
    pass: Arc<HookedPass>,
    indices: Vec<usize>,
}

impl Function for AfterInput {
    const NAME: &'static str = "backward_hook";
    const BACKWARD_IN_REGION: bool = false;

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(inputs.iter().map(|input| input.detach()).collect())
    }

    fn backward(&self, _: &Context<'_>, grads: &Grads) -> Result<Gradients> {
        // If no gradients were kept, the pass reached the inputs without passing through the
        // outputs. Then no hook runs, as in PyTorch.
        let Some(grad_output) = self.pass.replace_grad_output(None) else {
            return Ok(grads.iter().cloned().collect());
        };
        let mut grad_input = spread(self.pass.inputs, &self.indices, grads);
        for hook in &self.pass.hooks {
            let Some(other) = hook(&grad_input, &grad_output)? else { continue };
            if other.len() != grad_input.len() {
                let (got, expected) = (other.len(), grad_input.len());
                let reason = format!("a hook returned {got} gradients for {expected} inputs");
                return Err(Error::gradient("register_full_backward_hook", reason));
            }
            grad_input = other;
        }
        Ok(self.indices.iter().map(|&index| grad_input[index].clone()).collect())
    }
}

/// The identity function on the outputs. Its backward pass keeps their gradients for the hooks, or
/// calls the hooks if no input requires a gradient.
struct AfterOutput {
    pass: Arc<HookedPass>,
    /// Number of tensors of the output.
    count: usize,
    indices: Vec<usize>,
}

impl Function for AfterOutput {
    const NAME: &'static str = "backward_hook";
    const BACKWARD_IN_REGION: bool = false;

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(inputs.iter().map(|input| input.detach()).collect())
    }

    fn backward(&self, _: &Context<'_>, grads: &Grads) -> Result<Gradients> {
        let grad_output = spread(self.count, &self.indices, grads);
        if self.pass.has_grad_input {
            self.pass.replace_grad_output(Some(grad_output));
        } else {
            let grad_input = vec![None; self.pass.inputs];
            for hook in &self.pass.hooks {
                if hook(&grad_input, &grad_output)?.is_some() {
                    let reason = "a hook returned gradients, but no input requires a gradient";
                    return Err(Error::gradient("register_full_backward_hook", reason));
                }
            }
        }
        Ok(grads.iter().cloned().collect())
    }
}
