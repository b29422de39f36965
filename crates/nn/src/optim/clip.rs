//! Gradients that are kept from being too large.

use warpline::autograd::no_grad;
use warpline::{Result, Tensor, stack, zeros};

/// Scales the gradients of `parameters` together so that their norm is at most `max_norm`
/// (`torch.nn.utils.clip_grad_norm_`). Returns what it was before, as a tensor: nothing is waited for.
///
/// ```
/// use warpline::tensor;
/// use warpline_nn::optim::clip_grad_norm_;
///
/// let weight = tensor([0f32, 0.0], ())?.requires_grad_(true)?;
/// weight.set_grad(Some(tensor([3f32, 4.0], ())?))?;
/// let norm = clip_grad_norm_(&[weight.clone()], 1.0, 2.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert!((weight.grad().unwrap().norm(2.0, ())?.item::<f32>()? - 1.0).abs() < 1e-5);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`get_total_norm`].
#[track_caller]
pub fn clip_grad_norm_(parameters: &[Tensor], max_norm: f64, norm_type: f64) -> Result<Tensor> {
    let location = std::panic::Location::caller();
    let run = || {
        let grads = grads(parameters);
        let norm = get_total_norm(&grads, norm_type)?;
        let scale = (max_norm / &norm.add(1e-6)?)?.clamp_max(1.0)?;
        for grad in &grads {
            grad.mul_(&scale.to(grad.device())?)?;
        }
        Ok(norm)
    };
    no_grad(run).map_err(|e: warpline::Error| e.of("clip_grad_norm_").at(location))
}

/// Clamps each element of the gradients of `parameters` to at most `clip_value` and at least its negative
/// (`torch.nn.utils.clip_grad_value_`).
///
/// # Errors
/// What the launches fail with.
#[track_caller]
pub fn clip_grad_value_(parameters: &[Tensor], clip_value: f64) -> Result<()> {
    let location = std::panic::Location::caller();
    let run = || {
        for grad in grads(parameters) {
            grad.clamp_(-clip_value, clip_value)?;
        }
        Ok(())
    };
    no_grad(run).map_err(|e: warpline::Error| e.of("clip_grad_value_").at(location))
}

/// The norm of all elements of tensors, as if they were one vector (`torch.nn.utils.get_total_norm`), on the first one's device.
///
/// # Errors
/// As [`Tensor::vector_norm`].
#[track_caller]
pub fn get_total_norm(tensors: &[Tensor], norm_type: f64) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return zeros([], ()) };
    let mut norms = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        norms.push(tensor.vector_norm(norm_type, ())?.to(first.device())?);
    }
    stack(&norms, 0)?.vector_norm(norm_type, ())
}

fn grads(parameters: &[Tensor]) -> Vec<Tensor> {
    parameters.iter().filter_map(|p| p.grad().map(|grad| grad.detach())).collect()
}
