//! `layer_norm` and `rms_norm` in few launches: one in the forward pass; in the backward pass one for the
//! input, and one for weight and bias.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::normalization::{self as kernel, LayerNorm};

use super::per_sample::standardized;
use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, record, saved, should_record};
use crate::{Result, Tensor};

/// The dimensions and the parameters of a normalization.
#[derive(Clone)]
pub(super) struct RowNorm {
    pub(super) dims: Vec<isize>,
    pub(super) eps: f64,
    pub(super) centred: bool,
}

impl RowNorm {
    /// Computes the result if weight and bias have the input's dtype and device. The caller has checked all
    /// sizes.
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
        let saved = Normalized {
            input: input.clone(),
            weight: weight.cloned(),
            mean: exec.empty(rows, wide)?,
            scale: exec.empty(rows, wide)?,
            of: self,
        };
        let dense_bias = bias.map(|bias| bias.detach().contiguous()).transpose()?;
        let of_bias = dense_bias.as_ref().map(Tensor::as_view);
        let operands = ContiguousOperands::of(&saved)?;
        kernel::layer_norm(exec.target(), &operands.norm(&saved), of_bias, out.as_view())?;
        let inputs: SmallVec<[&Tensor; 3]> =
            [input].into_iter().chain(weight).chain(bias).collect();
        if !should_record(&inputs) {
            return Ok(Some(out));
        }
        let name = if saved.of.centred { "layer_norm" } else { "rms_norm" };
        record(name, out, &inputs, saved).map(Some)
    }
}

saved! {
    /// The saved state of a normalization.
    struct Normalized {
        input: Tensor,
        weight: Option<Tensor>,
        mean: Tensor,
        scale: Tensor,
        of: RowNorm,
    }
}

impl Saved for RowNorm {}

impl OpBackward for Normalized {
    /// Returns gradients of weight and bias that are not summed over rows. The engine sums them.
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let RowNorm { dims, eps, centred } = &self.of;
        let grad = grad.widened()?;
        let made = standardized(&self.input.widened()?, dims, *eps, *centred)?;
        let own = match &self.weight {
            Some(weight) => grad.mul(&weight.widened()?)?,
            None => grad.clone(),
        };
        let along = own.mul(&made.result)?.mean_keepdim(&dims[..])?;
        let rest = own.sub(&made.result.mul(&along)?)?;
        let rest = if *centred { rest.sub(&own.mean_keepdim(&dims[..])?)? } else { rest };
        let mut grads: Gradients = smallvec![Some(rest.mul(&made.scale)?)];
        if self.weight.is_some() {
            grads.push(Some(grad.mul(&made.result)?));
        }
        if grads.len() < inputs.len() {
            grads.push(Some(grad));
        }
        Ok(grads)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let (operands, grad) = (ContiguousOperands::of(self)?, grad.contiguous()?);
        let (norm, exec) = (operands.norm(self), grad.exec()?);
        let mut grads: Gradients = smallvec![None; inputs.len()];
        if inputs.needs(0) {
            let out = exec.empty(self.input.size(), self.input.dtype())?;
            kernel::layer_norm_backward(exec.target(), &norm, grad.as_view(), out.as_view())?;
            grads[0] = Some(out);
        }
        if let Some(weight) = &self.weight
            && (inputs.needs(1) || inputs.needs(2))
        {
            let of_weight = exec.empty(weight.size(), weight.dtype())?;
            let of_bias = inputs.gradient(2, || exec.empty(weight.size(), weight.dtype()))?;
            let views = (of_weight.as_view(), of_bias.as_ref().map(Tensor::as_view));
            let (target, grad) = (exec.target(), grad.as_view());
            kernel::layer_norm_parameters_backward(target, &norm, grad, views.0, views.1)?;
            grads[1] = Some(of_weight);
            if let Some(of_bias) = of_bias {
                grads[2] = Some(of_bias);
            }
        }
        Ok(Some(grads))
    }
}

/// Contiguous input and weight, which the kernels require.
struct ContiguousOperands {
    input: Tensor,
    weight: Option<Tensor>,
}

impl ContiguousOperands {
    #[track_caller]
    fn of(saved: &Normalized) -> Result<Self> {
        let weight =
            saved.weight.as_ref().map(|weight| weight.detach().contiguous()).transpose()?;
        Ok(Self { input: saved.input.detach().contiguous()?, weight })
    }

    fn norm<'a>(&'a self, saved: &'a Normalized) -> LayerNorm<'a> {
        LayerNorm {
            input: self.input.as_view(),
            weight: self.weight.as_ref().map(Tensor::as_view),
            mean: saved.mean.as_view(),
            scale: saved.scale.as_view(),
            eps: saved.of.eps,
            centred: saved.of.centred,
        }
    }
}
