//! `batch_norm` in few launches: in training two, and two for the gradients; outside training one.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::normalization::{
    BatchNorm, LayerNorm, RunningStatistics, batch_norm, batch_norm_backward, batch_norm_inference,
};

use super::per_channel::BatchNormOptions;
use super::per_sample::{per_channel, standardized};
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, record, saved, should_record, should_record_in_place,
};
use crate::{MemoryFormat, Result, Tensor};

/// Computes batch norm in training, and updates the running statistics. Returns `None` if the
/// kernels do not support the operands, or the running statistics are not contiguous or would record the
/// update. The caller has checked all sizes.
#[track_caller]
pub(super) fn in_training(
    input: &Tensor,
    running: Option<[&Tensor; 2]>,
    options: &BatchNormOptions<'_>,
) -> Result<Option<Tensor>> {
    let BatchNormOptions { weight, bias, eps, momentum, .. } = *options;
    let takes = |[mean, var]: [&Tensor; 2]| {
        let can_write = |t: &Tensor| t.is_contiguous() && !should_record_in_place(t, &[]);
        fits(input, [Some(mean), Some(var)]) && can_write(mean) && can_write(var)
    };
    if !fits(input, [weight, bias]) || !running.is_none_or(takes) {
        return Ok(None);
    }
    let exec = input.exec()?;
    let (channels, wide) = (input.size()[1], LayerNorm::moment_dtype(input.dtype()));
    let saved = BatchNormState {
        input: input.clone(),
        weight: weight.cloned(),
        mean: exec.empty(&[channels], wide)?,
        scale: exec.empty(&[channels], wide)?,
        eps,
    };
    let operands = DenseOperands::of(input, weight, bias)?;
    let norm = operands.norm([&saved.mean, &saved.scale], eps);
    let out = exec.empty_in(operands.input.layout().preserved(), input.dtype())?;
    let statistics = running.map(|[mean, var]| RunningStatistics {
        mean: mean.as_view(),
        var: var.as_view(),
        momentum,
    });
    batch_norm(exec.target(), &norm, statistics, out.as_view())?;
    let inputs: SmallVec<[&Tensor; 3]> = [input].into_iter().chain(weight).chain(bias).collect();
    if !should_record(&inputs) {
        return Ok(Some(out));
    }
    record("batch_norm", out, &inputs, saved).map(Some)
}

/// Computes batch norm with running statistics. Returns `None` if a gradient is recorded, or the
/// kernels do not support the operands.
#[track_caller]
pub(super) fn with_statistics(
    input: &Tensor,
    [mean, var]: [&Tensor; 2],
    options: &BatchNormOptions<'_>,
) -> Result<Option<Tensor>> {
    let BatchNormOptions { weight, bias, eps, .. } = *options;
    let tensors: SmallVec<[&Tensor; 5]> =
        [input, mean, var].into_iter().chain(weight).chain(bias).collect();
    let known = fits(input, [weight, bias]) && fits(input, [Some(mean), Some(var)]);
    if !known || should_record(&tensors) {
        return Ok(None);
    }
    let exec = input.exec()?;
    let (mean, var) = (mean.detach().contiguous()?, var.detach().contiguous()?);
    let operands = DenseOperands::of(input, weight, bias)?;
    let out = exec.empty_in(operands.input.layout().preserved(), input.dtype())?;
    let norm = operands.norm([&mean, &var], eps);
    batch_norm_inference(exec.target(), &norm, out.as_view())?;
    Ok(Some(out))
}

/// Returns whether the kernels support the input and a pair of parameters or statistics of its channels.
/// Each of the two may be missing.
fn fits(input: &Tensor, pair: [Option<&Tensor>; 2]) -> bool {
    let dtype = input.dtype();
    let one_dtype = match pair {
        [Some(a), Some(b)] => a.dtype() == b.dtype(),
        _ => true,
    };
    let alike = |t: &Tensor| {
        [dtype, LayerNorm::moment_dtype(dtype)].contains(&t.dtype())
            && t.device() == input.device()
            && t.storage().runtime().same_as(input.storage().runtime())
    };
    dtype.is_float() && input.numel() > 0 && one_dtype && pair.into_iter().flatten().all(alike)
}

saved! {
    /// The saved state of a batch norm in training.
    struct BatchNormState {
        input: Tensor,
        weight: Option<Tensor>,
        mean: Tensor,
        scale: Tensor,
        eps: f64,
    }
}

impl OpBackward for BatchNormState {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let ndim = self.input.dim();
        let dims: Vec<isize> = (0..ndim as isize).filter(|d| *d != 1).collect();
        let grad = grad.widened()?;
        let made = standardized(&self.input.widened()?, &dims, self.eps, true)?;
        let own = match &self.weight {
            Some(weight) => grad.mul(&per_channel(weight, ndim)?.widened()?)?,
            None => grad.clone(),
        };
        let along = own.mul(&made.result)?.mean_keepdim(&dims[..])?;
        let rest = own.sub(&made.result.mul(&along)?)?;
        let rest = rest.sub(&own.mean_keepdim(&dims[..])?)?;
        let mut grads: Gradients = smallvec![Some(rest.mul(&made.scale)?)];
        if self.weight.is_some() {
            grads.push(Some(grad.mul(&made.result)?.sum(&dims[..])?));
        }
        if inputs.len() > grads.len() {
            grads.push(Some(grad.sum(&dims[..])?));
        }
        Ok(grads)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let operands = DenseOperands::of(&self.input, self.weight.as_ref(), None)?;
        let exec = grad.exec()?;
        let grad = grad.contiguous_in(operands.format)?;
        let layout = operands.input.layout().preserved();
        let of_input =
            inputs.needs(0).then(|| exec.empty_in(layout, self.input.dtype())).transpose()?;
        let of_weight = self.weight.as_ref().filter(|_| inputs.needs(1));
        let has_bias = inputs.len() > 1 + usize::from(self.weight.is_some());
        let needs_bias = has_bias && inputs.needs(inputs.len() - 1);
        let channels = self.mean.size();
        let of_weight = of_weight.map(|w| exec.empty(channels, w.dtype())).transpose()?;
        let bias_dtype = inputs.dtype(inputs.len() - 1);
        let of_bias = needs_bias.then(|| exec.empty(channels, bias_dtype)).transpose()?;
        let norm = operands.norm([&self.mean, &self.scale], self.eps);
        batch_norm_backward(
            exec.target(),
            &norm,
            grad.as_view(),
            of_input.as_ref().map(Tensor::as_view),
            [&of_weight, &of_bias].map(|t| t.as_ref().map(Tensor::as_view)),
        )?;
        let mut grads: Gradients = smallvec![of_input];
        if self.weight.is_some() {
            grads.push(of_weight);
        }
        if has_bias {
            grads.push(of_bias);
        }
        Ok(Some(grads))
    }
}

/// The operands that are read, in a memory order that the kernels support.
struct DenseOperands {
    format: MemoryFormat,
    input: Tensor,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl DenseOperands {
    #[track_caller]
    fn of(input: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Self> {
        let format = input.layout().suggested_format();
        Ok(Self {
            format,
            input: input.detach().contiguous_in(format)?,
            weight: weight.map(|weight| weight.detach().contiguous()).transpose()?,
            bias: bias.map(|bias| bias.detach().contiguous()).transpose()?,
        })
    }

    fn norm<'a>(&'a self, [mean, scale]: [&'a Tensor; 2], eps: f64) -> BatchNorm<'a> {
        BatchNorm {
            input: self.input.as_view(),
            weight: self.weight.as_ref().map(Tensor::as_view),
            bias: self.bias.as_ref().map(Tensor::as_view),
            mean: mean.as_view(),
            scale: scale.as_view(),
            eps,
        }
    }
}
