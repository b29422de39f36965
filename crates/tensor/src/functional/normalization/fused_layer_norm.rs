//! `layer_norm` and `rms_norm` in few launches: one in the forward pass; in the backward pass one for the
//! input, and one for weight and bias. The addition of a residual before the norm takes no launch of its own.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::normalization::{self as kernel, LayerNorm};

use super::per_sample::standardized;
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, Saved, record, record_all, saved, should_record,
};
use crate::exec::Exec;
use crate::{Result, Tensor};

/// The dimensions and the parameters of a normalization.
#[derive(Clone)]
pub(super) struct RowNorm {
    pub(super) dims: Vec<isize>,
    pub(super) eps: f64,
    pub(super) centred: bool,
}

impl RowNorm {
    /// Computes the result if the kernels support the operands (`fits`). The caller has checked all sizes.
    #[track_caller]
    pub(super) fn launched(
        self,
        input: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        if !fits(input, weight, bias) {
            return Ok(None);
        }
        let exec = input.exec()?;
        let out = exec.empty(input.size(), input.dtype())?;
        let saved = self.saved(&exec, input, weight)?;
        let dense_bias = bias.map(|bias| bias.detach().contiguous()).transpose()?;
        let of_bias = dense_bias.as_ref().map(Tensor::as_view);
        let operands = ContiguousOperands::of(&saved)?;
        kernel::layer_norm(exec.target(), &operands.norm(&saved), None, of_bias, out.as_view())?;
        let inputs: SmallVec<[&Tensor; 3]> =
            [input].into_iter().chain(weight).chain(bias).collect();
        if !should_record(&inputs) {
            return Ok(Some(out));
        }
        let name = if saved.of.centred { "layer_norm" } else { "rms_norm" };
        record(name, out, &inputs, saved).map(Some)
    }

    /// Returns the normalized sum `input + residual`, then the sum. Returns `None` if the kernels do not support the
    /// operands (`fits`), or input and residual differ in dtype or device. The caller has checked all sizes.
    #[track_caller]
    pub(super) fn fused_with(
        self,
        input: &Tensor,
        residual: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Option<(Tensor, Tensor)>> {
        if !fits(input, weight, bias) || !alike(input, residual) {
            return Ok(None);
        }
        let exec = input.exec()?;
        let (out, sum) =
            (exec.empty(input.size(), input.dtype())?, exec.empty(input.size(), input.dtype())?);
        let saved = self.saved(&exec, &sum, weight)?;
        let [dense, other] = [input, residual].map(|t| t.detach().contiguous());
        let (dense, other) = (dense?, other?);
        let dense_bias = bias.map(|bias| bias.detach().contiguous()).transpose()?;
        let of_bias = dense_bias.as_ref().map(Tensor::as_view);
        let operands = ContiguousOperands::of(&saved)?;
        let of_input = LayerNorm { input: dense.as_view(), ..operands.norm(&saved) };
        let added = Some([other.as_view(), sum.as_view()]);
        kernel::layer_norm(exec.target(), &of_input, added, of_bias, out.as_view())?;
        let inputs: SmallVec<[&Tensor; 4]> =
            [input, residual].into_iter().chain(weight).chain(bias).collect();
        if should_record(&inputs) {
            let name = if saved.of.centred { "add_layer_norm" } else { "add_rms_norm" };
            record_all(name, &[&out, &sum], &inputs, saved)?;
        }
        Ok(Some((out, sum)))
    }

    /// Returns the state of a normalization of `input`, with memory for the moments.
    #[track_caller]
    fn saved(
        self,
        exec: &Exec<'_>,
        input: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<LayerNormState> {
        let rows = &input.size()[..input.dim() - self.dims.len()];
        let wide = LayerNorm::moment_dtype(input.dtype());
        Ok(LayerNormState {
            input: input.clone(),
            weight: weight.cloned(),
            mean: exec.empty(rows, wide)?,
            scale: exec.empty(rows, wide)?,
            of: self,
        })
    }
}

/// Returns whether the kernels support these operands: a float input with elements, a weight and a bias of the same
/// dtype and device, and no bias without a weight.
fn fits(input: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> bool {
    input.dtype().is_float()
        && input.numel() > 0
        && weight.iter().chain(&bias).all(|t| alike(input, t))
        && (weight.is_some() || bias.is_none())
}

/// Returns whether two tensors have the same dtype, device and runtime.
fn alike(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == b.dtype()
        && a.device() == b.device()
        && a.storage().runtime().same_as(b.storage().runtime())
}

saved! {
    /// The saved state of a normalization.
    struct LayerNormState {
        input: Tensor,
        weight: Option<Tensor>,
        mean: Tensor,
        scale: Tensor,
        of: RowNorm,
    }
}

impl Saved for RowNorm {}

impl LayerNormState {
    /// Returns the gradients of rows, weight (if there is one) and bias (if `has_bias`). The gradients of weight and
    /// bias are not summed over rows; the engine sums them.
    fn composed(&self, grad: &Tensor, has_bias: bool) -> Result<Gradients> {
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
        if has_bias {
            grads.push(Some(grad));
        }
        Ok(grads)
    }

    /// Returns the gradients of rows, weight and bias that `needs` marks. Adds `other` to the gradient of the rows.
    fn launched(
        &self,
        grad: &Tensor,
        other: Option<&Tensor>,
        needs: [bool; 3],
    ) -> Result<[Option<Tensor>; 3]> {
        let (operands, grad) = (ContiguousOperands::of(self)?, grad.contiguous()?);
        let (norm, exec) = (operands.norm(self), grad.exec()?);
        let mut grads = [None, None, None];
        if needs[0] {
            let out = exec.empty(self.input.size(), self.input.dtype())?;
            let other = other.map(Tensor::contiguous).transpose()?;
            let (target, other) = (exec.target(), other.as_ref().map(Tensor::as_view));
            kernel::layer_norm_backward(target, &norm, grad.as_view(), other, out.as_view())?;
            grads[0] = Some(out);
        }
        if let Some(weight) = &self.weight
            && (needs[1] || needs[2])
        {
            let of_weight = exec.empty(weight.size(), weight.dtype())?;
            let of_bias =
                needs[2].then(|| exec.empty(weight.size(), weight.dtype())).transpose()?;
            let views = (of_weight.as_view(), of_bias.as_ref().map(Tensor::as_view));
            let (target, grad) = (exec.target(), grad.as_view());
            kernel::layer_norm_parameters_backward(target, &norm, grad, views.0, views.1)?;
            (grads[1], grads[2]) = (Some(of_weight), of_bias);
        }
        Ok(grads)
    }
}

impl OpBackward for LayerNormState {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        self.composed(grad, inputs.len() == 3)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let grads = self.launched(grad, None, [0, 1, 2].map(|k| inputs.needs(k)))?;
        Ok(Some(grads.into_iter().take(inputs.len()).collect()))
    }
}

/// The gradient of the norm of a sum. The sum is the second result, and the saved input.
impl OpBackward<[Option<Tensor>]> for LayerNormState {
    fn backward(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let mut results: Gradients = match &grads[0] {
            Some(grad) => self.composed(grad, inputs.len() == 4)?,
            None => smallvec![None; inputs.len() - 1],
        };
        if let Some(other) = &grads[1] {
            results[0] = Some(match results[0].take() {
                Some(own) => own.add(other)?,
                None => other.clone(),
            });
        }
        results.insert(0, results[0].clone());
        Ok(results)
    }

    fn fused(
        &self,
        grads: &[Option<Tensor>],
        inputs: &NodeInputs<'_>,
    ) -> Result<Option<Gradients>> {
        let Some(grad) = &grads[0] else { return Ok(None) };
        let needs = [inputs.needs(0) || inputs.needs(1), inputs.needs(2), inputs.needs(3)];
        let [of_sum, of_weight, of_bias] = self.launched(grad, grads[1].as_ref(), needs)?;
        let results = [of_sum.clone(), of_sum, of_weight, of_bias];
        Ok(Some(results.into_iter().take(inputs.len()).collect()))
    }
}

/// Contiguous input and weight, which the kernels require.
struct ContiguousOperands {
    input: Tensor,
    weight: Option<Tensor>,
}

impl ContiguousOperands {
    #[track_caller]
    fn of(saved: &LayerNormState) -> Result<Self> {
        let weight =
            saved.weight.as_ref().map(|weight| weight.detach().contiguous()).transpose()?;
        Ok(Self { input: saved.input.detach().contiguous()?, weight })
    }

    fn norm<'a>(&'a self, saved: &'a LayerNormState) -> LayerNorm<'a> {
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
