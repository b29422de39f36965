//! Checkpoints: the backward pass recomputes intermediate results, which takes less memory and more time.
//!
//! The recomputation draws the same random numbers as the first computation. Before it, the generators, and the
//! sequences from which captures draw (`graph::Sequence`), are set back to the positions that they had before the
//! first computation. Afterwards, their positions are restored.

use std::sync::OnceLock;

use warpline_runtime::graph::{Position, Sequence};
use warpline_runtime::{ChosenGenerators, Target};

use super::engine::PassOptions;
use super::function::{Function, ToSave};
use super::node::{Gradients, TensorSpec};
use super::tensor_methods::{backward_at, grad_at};
use super::{Context, GradOptions, mode};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Result, Runtime, Tensor};

struct CheckpointedFunction<F> {
    f: F,
    /// Positions of the generators before the first computation of `f`.
    first_positions: OnceLock<GeneratorPositions>,
    /// Sizes, dtypes and devices of the first results.
    first_specs: OnceLock<Vec<TensorSpec>>,
}

impl<F> CheckpointedFunction<F> {
    /// Checks that the recomputed results have the specs of the first results, and that at least one of them requires a
    /// gradient.
    fn check(&self, context: &Context<'_>, again: &[Tensor]) -> Result<()> {
        let fail = |reason| Err(context.inputs.node.error(reason));
        let first_specs = self.first_specs.get().map_or(&[][..], Vec::as_slice);
        if first_specs.len() != again.len() {
            let (first, now) = (first_specs.len(), again.len());
            return fail(format!(
                "the function returned {now} results when it was recomputed, but {first} in the forward pass"
            ));
        }
        for (i, (first, now)) in first_specs.iter().zip(again).enumerate() {
            let now = TensorSpec::of(now);
            if *first != now {
                return fail(format!("result {i} is {now} when recomputed, but was {first}"));
            }
        }
        if !again.iter().any(Tensor::requires_grad) {
            return fail(
                "no recomputed result depends on a tensor that requires a gradient".into(),
            );
        }
        Ok(())
    }
}

impl<F> Function for CheckpointedFunction<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    const NAME: &'static str = "checkpoint";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if let Some(first) = inputs.first() {
            let first_positions =
                GeneratorPositions::of(first.storage().runtime(), inputs.iter().copied())?;
            // Keeps positions that are already set.
            let _ = self.first_positions.set(first_positions);
        }
        for input in inputs {
            save.tensor(input);
        }
        let outputs = (self.f)(&inputs.iter().map(|input| input.detach()).collect::<Vec<_>>())?;
        let _ = self.first_specs.set(outputs.iter().map(TensorSpec::of).collect());
        Ok(outputs)
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        // A public `Function` has no form of its own for `create_graph`, so the engine tells it only by the mode. A
        // recorded pass would take wrong gradients of gradients, because the function is computed again on detached
        // inputs.
        if mode::is_grad_enabled() {
            let reason = "a checkpointed function has no gradients of gradients, which a pass with `create_graph` \
                          records; call the function without a checkpoint";
            return Err(context.inputs.node.error(reason));
        }
        let inputs = (0..context.inputs()).map(|i| {
            let input = context.saved(i)?.detach();
            if context.needs(i) { input.requires_grad_(true) } else { Ok(input) }
        });
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let again = || mode::enable_grad(|| (self.f)(&inputs));
        let outputs = match (self.first_positions.get(), inputs.first()) {
            (Some(first_positions), Some(first)) => {
                first_positions.within(first.storage().runtime(), again)?
            }
            _ => again()?,
        };
        self.check(context, &outputs)?;
        let (mut roots, mut given) = (Vec::new(), Vec::new());
        for (output, grad) in outputs.iter().zip(grads) {
            if grad.is_some() && output.requires_grad() {
                roots.push(output);
                given.push(grad.as_ref());
            }
        }
        if !context.inputs.partial {
            backward_at(context.inputs.node.call.location, &roots, &given, PassOptions::default())?;
            return Ok(inputs.iter().map(Tensor::grad).collect());
        }
        let wanted: Vec<&Tensor> = inputs.iter().filter(|input| input.requires_grad()).collect();
        let options = GradOptions::new().allow_unused(true).grad_outputs(&given);
        let (location, pass) = (context.inputs.node.call.location, PassOptions::default());
        let mut found = grad_at(location, &roots, &wanted, options, pass)?.into_iter();
        let of = |input: &Tensor| if input.requires_grad() { found.next().flatten() } else { None };
        Ok(inputs.iter().map(of).collect())
    }
}

/// Positions of a thread's generators for the CPU and for devices. A device is represented by a tensor on it.
struct GeneratorPositions {
    chosen: ChosenGenerators,
    cpu: Vec<u8>,
    devices: Vec<(Tensor, Position)>,
}

impl GeneratorPositions {
    /// Returns the current positions of this thread's generators for the CPU and for the tensors' devices.
    fn of<'a>(runtime: &Runtime, tensors: impl Iterator<Item = &'a Tensor>) -> Result<Self> {
        let mut devices: Vec<(Tensor, Position)> = Vec::new();
        for tensor in tensors {
            if devices.iter().all(|(known, _)| known.device() != tensor.device()) {
                let position = sequence(tensor, |sequence| Ok(sequence.position()))?;
                devices.extend(position.map(|position| (tensor.detach(), position)));
            }
        }
        let cpu = runtime.cpu_generator().lock().state();
        Ok(Self { chosen: ChosenGenerators::current(), cpu, devices })
    }

    /// Sets the generators, which this thread has chosen, to these positions.
    fn set(&self, runtime: &Runtime) -> Result<()> {
        runtime.cpu_generator().lock().set_state(&self.cpu)?;
        self.devices.iter().try_for_each(|(tensor, position)| {
            sequence(tensor, |sequence| sequence.go_to(position)).map(drop)
        })
    }

    /// Runs `f` with these generators and positions, and restores the previous ones afterwards, even if `f` panics.
    fn within<R>(&self, runtime: &Runtime, f: impl FnOnce() -> Result<R>) -> Result<R> {
        struct RestorePositions<'a>(GeneratorPositions, &'a Runtime);
        impl Drop for RestorePositions<'_> {
            fn drop(&mut self) {
                // Cannot fail: the positions were read from the same generators.
                let _ = self.0.set(self.1);
            }
        }
        self.chosen.clone().within(|| {
            let tensors = self.devices.iter().map(|(tensor, _)| tensor);
            let _back = RestorePositions(Self::of(runtime, tensors)?, runtime);
            self.set(runtime)?;
            f()
        })
    }
}

/// Calls `f` with the sequence from which random ops on a tensor's device draw: this thread's generator, or
/// the draws from it in a capture. Returns `None` on the CPU.
fn sequence<R>(
    tensor: &Tensor,
    f: impl FnOnce(&mut Sequence<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let exec = tensor.exec()?;
    match exec.target() {
        target @ Target::Cuda(_, device, _) => {
            f(&mut Sequence::of(target, &device.generator())?).map(Some)
        }
        _ => Ok(None),
    }
}

/// Computes `f` of the inputs and keeps only the inputs. The backward pass computes `f` again, and this time
/// keeps the intermediate results that it needs (`torch.utils.checkpoint`). The second computation draws the
/// same random numbers from the generators of the CPU and of the inputs' devices, those of
/// [`with_generator`](crate::with_generator) included.
///
/// Tensors that `f` owns, such as parameters, get their gradients from [`Tensor::backward`], but not from
/// [`grad`](crate::autograd::grad). If no input requires a gradient, the call is not recorded, and such tensors get
/// no gradient either.
///
/// ```
/// use warpline::{autograd, tensor};
///
/// let weight = tensor([2f32], ())?.requires_grad_(true)?;
/// let x = tensor([3f32], ())?.requires_grad_(true)?;
/// let own = weight.clone();
/// let y = autograd::checkpoint(move |x| Ok(vec![x[0].mul(&own)?.exp()?.log()?]), &[&x])?;
/// y[0].sum(())?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0]);
/// assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [3.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// Errors of `f`. The backward pass fails with [`ErrorKind::Gradient`] under `create_graph`, if the recomputed
/// results differ from the first results in number, sizes, dtype or device, or if no recomputed result requires a
/// gradient.
#[track_caller]
pub fn checkpoint(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<Vec<Tensor>> {
    CheckpointedFunction { f, first_positions: OnceLock::new(), first_specs: OnceLock::new() }
        .apply(inputs)
}
