//! Less memory for more time: what is computed again in the backward pass.

use std::sync::OnceLock;

use smallvec::SmallVec;
use warpline_runtime::Target;
use warpline_runtime::graph::{Position, Sequence};

use super::function::{Function, ToSave};
use super::node::Gradients;
use super::{Context, mode};
use crate::autograd::backward;
use crate::{Result, Tensor, get_rng_state, set_rng_state};

struct Checkpoint<F> {
    f: F,
    /// As the generators were when `f` ran: it is to draw the same numbers again.
    states: OnceLock<States>,
}

/// Where the host's generator is, and what random ops on the devices of some tensors draw from.
struct States {
    cpu: Tensor,
    devices: Vec<(Tensor, Position)>,
}

impl States {
    /// Those of these tensors' devices.
    fn of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Self> {
        let mut devices: Vec<(Tensor, Position)> = Vec::new();
        for tensor in tensors {
            if devices.iter().all(|(known, _)| known.device() != tensor.device()) {
                let position = sequence(tensor, |sequence| Ok(sequence.position()))?;
                devices.extend(position.map(|position| (tensor.detach(), position)));
            }
        }
        Ok(Self { cpu: get_rng_state()?, devices })
    }

    fn restore(&self) -> Result<()> {
        set_rng_state(&self.cpu)?;
        self.devices.iter().try_for_each(|(tensor, position)| {
            sequence(tensor, |sequence| sequence.go_to(position)).map(drop)
        })
    }
}

/// What random ops on a tensor's device draw from; `None` on the host.
fn sequence<R>(
    tensor: &Tensor,
    f: impl FnOnce(&mut Sequence<'_>) -> Result<R>,
) -> Result<Option<R>> {
    let exec = tensor.exec()?;
    match exec.target() {
        target @ Target::Cuda(_, device, _) => f(&mut Sequence::of(target, device)).map(Some),
        _ => Ok(None),
    }
}

impl<F> Function for Checkpoint<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    const NAME: &'static str = "checkpoint";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        for input in inputs {
            save.tensor(input);
        }
        // The first of what is set stays, and there is one call.
        let _ = self.states.set(States::of(inputs.iter().copied())?);
        (self.f)(&inputs.iter().map(|input| input.detach()).collect::<Vec<_>>())
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let inputs = (0..context.inputs()).map(|i| {
            let input = context.saved(i)?.detach();
            if context.needs(i) { input.requires_grad_(true) } else { Ok(input) }
        });
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let outputs = match self.states.get() {
            Some(states) => {
                let now = States::of(inputs.iter())?;
                states.restore()?;
                let outputs = mode::enable_grad(|| (self.f)(&inputs));
                now.restore()?;
                outputs?
            }
            None => mode::enable_grad(|| (self.f)(&inputs))?,
        };
        let (mut roots, mut given) = (Vec::new(), Vec::new());
        for (output, grad) in outputs.iter().zip(grads) {
            if grad.is_some() && output.requires_grad() {
                roots.push(output);
                given.push(grad.as_ref());
            }
        }
        backward(&roots, &given, false, false)?;
        Ok(inputs.iter().map(Tensor::grad).collect::<SmallVec<_>>())
    }
}

/// Computes `f` of the inputs and keeps nothing but these: in the backward pass it is computed again, this time
/// with what its own backward pass needs (`torch.utils.checkpoint`). Tensors that `f` has by itself, such as
/// parameters, get their gradients then. At least one input has to want a gradient. Random ops of `f` draw the same
/// numbers again, from the host's generator and from those of the inputs' devices.
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
/// What `f` returns.
#[track_caller]
pub fn checkpoint(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<Vec<Tensor>> {
    Checkpoint { f, states: OnceLock::new() }.apply(inputs)
}
