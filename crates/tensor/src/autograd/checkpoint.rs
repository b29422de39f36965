//! Less memory for more time: what is computed again in the backward pass.

use smallvec::SmallVec;

use super::function::{Function, ToSave};
use super::node::Gradients;
use super::{Context, mode};
use crate::autograd::backward;
use crate::{Result, Tensor};

struct Checkpoint<F>(F);

impl<F> Function for Checkpoint<F>
where
    F: Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
{
    const NAME: &'static str = "checkpoint";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        for input in inputs {
            save.tensor(input);
        }
        (self.0)(&inputs.iter().map(|input| input.detach()).collect::<Vec<_>>())
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let inputs = (0..context.inputs()).map(|i| {
            let input = context.saved(i)?.detach();
            if context.needs(i) { input.requires_grad_(true) } else { Ok(input) }
        });
        let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
        let outputs = mode::enable_grad(|| (self.0)(&inputs))?;
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
/// parameters, get their gradients then. At least one input has to want a gradient.
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
    Checkpoint(f).apply(inputs)
}
