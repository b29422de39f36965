//! `layer_norm` and `rms_norm` in few launches: one forward, and backward one for the input and one for weight and bias.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::norm::{self as kernel, LayerNorm};

use super::norms::standardized;
use crate::autograd::{Context, Gradients, is_grad_enabled, record, wanted};
use crate::{Result, Tensor};

/// What is normalised over, and how.
#[derive(Clone)]
pub(super) struct RowNorm {
    pub(super) dims: Vec<isize>,
    pub(super) eps: f64,
    pub(super) centred: bool,
}

impl RowNorm {
    /// The result, if weight and bias are of the input's dtype and beside it. All sizes were checked.
    #[track_caller]
    pub(super) fn fused(
        self,
        input: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let alike = |t: &&Tensor| {
            t.dtype() == input.dtype()
                && t.device() == input.device()
                && t.storage().runtime().same_as(input.storage().runtime())
        };
        let fits = input.dtype().is_float()
            && input.numel() > 0
            && weight.iter().chain(&bias).all(alike)
            && (weight.is_some() || bias.is_none());
        if !fits {
            return Ok(None);
        }
        let rows = &input.size()[..input.dim() - self.dims.len()];
        let exec = input.exec()?;
        let wide = LayerNorm::moment_dtype(input.dtype());
        let out = exec.empty(input.size(), input.dtype())?;
        let moments = [exec.empty(rows, wide)?, exec.empty(rows, wide)?];
        let parts = Parts::of(input, weight)?;
        let dense_bias = bias.map(|bias| bias.detach().contiguous()).transpose()?;
        let norm = parts.norm(&moments, &self);
        let of_bias = dense_bias.as_ref().map(Tensor::as_view);
        kernel::layer_norm(exec.target(), &norm, of_bias, out.as_view())?;
        let inputs: SmallVec<[&Tensor; 3]> =
            [input].into_iter().chain(weight).chain(bias).collect();
        if !wanted(&inputs) {
            return Ok(Some(out));
        }
        let name = if self.centred { "layer_norm" } else { "rms_norm" };
        let [mean, scale] = &moments;
        let saved: SmallVec<[&Tensor; 4]> =
            [input, mean, scale].into_iter().chain(weight).collect();
        let weighted = weight.is_some();
        let out = record(name, out, &inputs, &saved, move |context, grad| {
            let weight = weighted.then(|| context.saved(3)).transpose()?;
            if is_grad_enabled() {
                self.composite(context, grad, weight.as_ref())
            } else {
                self.kernels(context, grad, weight.as_ref())
            }
        })?;
        Ok(Some(out))
    }

    fn kernels(
        &self,
        context: &Context<'_>,
        grad: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<Gradients> {
        let input = context.saved(0)?;
        let moments = [context.saved(1)?, context.saved(2)?];
        let (parts, grad) = (Parts::of(&input, weight)?, grad.contiguous()?);
        let norm = parts.norm(&moments, self);
        let exec = grad.exec()?;
        let mut grads: Gradients = smallvec![None; context.inputs()];
        if context.needs(0) {
            let out = exec.empty(input.size(), input.dtype())?;
            kernel::layer_norm_backward(exec.target(), &norm, grad.as_view(), out.as_view())?;
            grads[0] = Some(out);
        }
        let wants = |i: usize| i < context.inputs() && context.needs(i);
        if let Some(weight) = weight
            && (wants(1) || wants(2))
        {
            let of_weight = exec.empty(weight.size(), weight.dtype())?;
            let of_bias =
                wants(2).then(|| exec.empty(weight.size(), weight.dtype())).transpose()?;
            let views = (of_weight.as_view(), of_bias.as_ref().map(Tensor::as_view));
            let target = exec.target();
            kernel::layer_norm_parameters_backward(
                target,
                &norm,
                grad.as_view(),
                views.0,
                views.1,
            )?;
            grads[1] = Some(of_weight);
            if let Some(of_bias) = of_bias {
                grads[2] = Some(of_bias);
            }
        }
        Ok(grads)
    }

    /// The same in ops that have gradients themselves. Sums over rows are the engine's.
    fn composite(
        &self,
        context: &Context<'_>,
        grad: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<Gradients> {
        let (dims, grad) = (&self.dims[..], grad.widened()?);
        let x = context.saved(0)?.widened()?;
        let made = standardized(&x, dims, self.eps, self.centred)?;
        let own = match weight {
            Some(weight) => grad.mul(&weight.widened()?)?,
            None => grad.clone(),
        };
        let along = own.mul(&made.result)?.mean_keepdim(dims)?;
        let rest = own.sub(&made.result.mul(&along)?)?;
        let rest = if self.centred { rest.sub(&own.mean_keepdim(dims)?)? } else { rest };
        let mut grads: Gradients = smallvec![Some(rest.mul(&made.scale)?)];
        if weight.is_some() {
            grads.push(Some(grad.mul(&made.result)?));
        }
        if grads.len() < context.inputs() {
            grads.push(Some(grad));
        }
        Ok(grads)
    }
}

/// Input and weight as the kernels take them.
struct Parts {
    input: Tensor,
    weight: Option<Tensor>,
}

impl Parts {
    #[track_caller]
    fn of(input: &Tensor, weight: Option<&Tensor>) -> Result<Self> {
        let weight = weight.map(|weight| weight.detach().contiguous()).transpose()?;
        Ok(Self { input: input.detach().contiguous()?, weight })
    }

    fn norm<'a>(&'a self, [mean, scale]: &'a [Tensor; 2], of: &RowNorm) -> LayerNorm<'a> {
        LayerNorm {
            input: self.input.as_view(),
            weight: self.weight.as_ref().map(Tensor::as_view),
            mean: mean.as_view(),
            scale: scale.as_view(),
            eps: of.eps,
            centred: of.centred,
        }
    }
}
