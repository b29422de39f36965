//! Gradient clipping.

use warpline::autograd::{check_not_moved, is_grad_enabled, no_grad};
use warpline::{CallScope, Error, IntoOptions, Result, Tensor, empty, stack, zeros};
use warpline_kernels::optim::{self as kernels, Tensors};

use super::fused_step::rate;

warpline::__options! {
    /// Options of [`clip_grad_norm_`] and [`get_total_norm`]. A number converts into options with that `norm_type`.
    #[derive(Clone, Copy, Debug, PartialEq)]
    TotalNormOptions [] [] {
        /// Sets the order of the norm, as in [`Tensor::vector_norm`]. Default: 2.
        norm_type: f64 = 2.0, f64;
        /// Sets whether a norm that is infinite or NaN is an error. The host then waits for the norm. Default: `false`.
        error_if_nonfinite: bool = false, bool;
    }
}

warpline::__options_from_number! { TotalNormOptions norm_type; }

/// Scales the gradients of `parameters` by a common factor so that their total norm is at most `max_norm`
/// (`torch.nn.utils.clip_grad_norm_`). Returns the total norm before scaling as a tensor, so that the host does not
/// wait.
///
/// ```
/// use warpline::tensor;
/// use warpline_nn::optim::clip_grad_norm_;
///
/// let weight = tensor([0f32, 0.0], ())?.requires_grad_(true)?;
/// weight.set_grad(&tensor([3f32, 4.0], ())?)?;
/// let norm = clip_grad_norm_(&[weight.clone()], 1.0, ())?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert!((weight.grad().unwrap().norm(())?.item::<f32>()? - 1.0).abs() < 1e-5);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter; errors of
/// [`get_total_norm`].
#[track_caller]
pub fn clip_grad_norm_(
    parameters: &[Tensor],
    max_norm: f64,
    options: impl IntoOptions<TotalNormOptions>,
) -> Result<Tensor> {
    let options = options.into_options();
    let _call = CallScope::enter("clip_grad_norm_");
    let grads = grads("clip_grad_norm_", parameters)?;
    no_grad(|| {
        let norm = get_total_norm(&grads, options)?;
        let scale = (max_norm / &norm.add(1e-6)?)?.clamp_max(1.0)?;
        scale_all(&grads, &scale)?;
        Ok(norm)
    })
}

/// Clamps each element of the gradients of `parameters` to `[-clip_value, clip_value]`
/// (`torch.nn.utils.clip_grad_value_`).
///
/// # Errors
/// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter; errors of
/// [`Tensor::clamp_`].
#[track_caller]
pub fn clip_grad_value_(parameters: &[Tensor], clip_value: f64) -> Result<()> {
    let _call = CallScope::enter("clip_grad_value_");
    let grads = grads("clip_grad_value_", parameters)?;
    no_grad(|| {
        for grad in &grads {
            grad.clamp_(-clip_value, clip_value)?;
        }
        Ok(())
    })
}

/// Returns the norm of the vector of all elements of `tensors`, on the device of the first tensor
/// (`torch.nn.utils.get_total_norm`). 0 if there are no tensors.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the norm is infinite or NaN and the options
/// have `error_if_nonfinite`; errors of [`Tensor::vector_norm`].
#[track_caller]
pub fn get_total_norm(
    tensors: &[Tensor],
    options: impl IntoOptions<TotalNormOptions>,
) -> Result<Tensor> {
    let TotalNormOptions { norm_type, error_if_nonfinite } = options.into_options();
    let norm = total_norm(tensors, norm_type)?;
    if error_if_nonfinite && !norm.item::<f64>()?.is_finite() {
        let reason = format!("the norm of order {norm_type} of the gradients is not finite");
        return Err(Error::invalid("get_total_norm", reason));
    }
    Ok(norm)
}

#[track_caller]
fn total_norm(tensors: &[Tensor], norm_type: f64) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return zeros([], ()) };
    let (buckets, others) = if norm_type == 2.0 && !needs_grad(tensors) {
        group_for_launches(tensors)
    } else {
        (Vec::new(), tensors.iter().collect())
    };
    let mut norms = Vec::new();
    for bucket in &buckets {
        norms.push(two_norm(bucket)?.to(first.device())?);
    }
    for tensor in others {
        norms.push(tensor.vector_norm(norm_type)?.to(first.device())?);
    }
    match &norms[..] {
        [norm] => Ok(norm.clone()),
        _ => stack(&norms, 0)?.vector_norm(norm_type),
    }
}

/// Returns `true` if the norm needs a gradient.
fn needs_grad(tensors: &[Tensor]) -> bool {
    is_grad_enabled() && tensors.iter().any(Tensor::requires_grad)
}

/// Groups tensors for launches by device and dtype. Returns the groups and the tensors that the kernels do not support.
fn group_for_launches(tensors: &[Tensor]) -> (Vec<Vec<&Tensor>>, Vec<&Tensor>) {
    let (mut buckets, mut others): (Vec<Vec<&Tensor>>, Vec<&Tensor>) = (Vec::new(), Vec::new());
    for tensor in tensors {
        let fits = |bucket: &&mut Vec<&Tensor>| {
            bucket[0].device() == tensor.device() && bucket[0].dtype() == tensor.dtype()
        };
        if !kernels::takes(tensor.as_view()) {
            others.push(tensor);
        } else if let Some(bucket) = buckets.iter_mut().find(fits) {
            bucket.push(tensor);
        } else {
            buckets.push(vec![tensor]);
        }
    }
    (buckets, others)
}

/// Returns the 2-norm of the vector of all elements of tensors that have the same device and dtype.
#[track_caller]
fn two_norm(tensors: &[&Tensor]) -> Result<Tensor> {
    let views: Vec<_> = tensors.iter().map(|tensor| tensor.as_view()).collect();
    let (dtype, device) = (tensors[0].dtype(), tensors[0].device());
    let sums = empty([kernels::partial_sums(&views)], (kernels::sum_dtype(dtype), device))?;
    let exec = tensors[0].exec()?;
    kernels::sum_squares(exec.target(), &views, sums.as_view())?;
    sums.sum(())?.sqrt()?.to(dtype)
}

/// Multiplies all tensors by a number in device memory.
#[track_caller]
fn scale_all(tensors: &[Tensor], by: &Tensor) -> Result<()> {
    let (buckets, others) = group_for_launches(tensors);
    for bucket in &buckets {
        let by = rate(by, bucket[0].device())?;
        let tensors = bucket.iter().map(|tensor| Tensors {
            param: tensor.as_view(),
            grad: None,
            state: [None; 3],
        });
        let exec = bucket[0].exec()?;
        let tensors: Vec<_> = tensors.collect();
        let rule = kernels::UpdateRule::Scale;
        kernels::step(exec.target(), &rule, &tensors, Some(by.as_view()), None)?;
    }
    others.into_iter().try_for_each(|tensor| tensor.mul_(&by.to(tensor.device())?).map(drop))
}

/// Returns the existing gradients, after checking that no move replaced a parameter.
#[track_caller]
fn grads(op: &'static str, parameters: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for parameter in parameters {
        check_not_moved(op, parameter)?;
        all.extend(parameter.grad().map(|grad| grad.detach()));
    }
    Ok(all)
}
