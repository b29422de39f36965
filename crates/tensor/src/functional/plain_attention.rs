//! Attention without mask and dropout in few launches: three forward, and backward two and one for each gradient; and
//! before those the copies of operands that do not lie as products take them.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::attention::Weighing;
use warpline_kernels::matmul::{matmul, needs_contiguous};
use warpline_kernels::softmax::{attention_weights, attention_weights_backward};
use warpline_runtime::checked_numel;

use crate::autograd::{Context, Gradients, is_grad_enabled, record_all, wanted};
use crate::called::Called;
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// Attention that weighs so.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainAttention(pub(super) Weighing);

impl PlainAttention {
    /// The result, if the operands are what the kernels are for: floats beside each other, of the same batches.
    #[track_caller]
    pub(super) fn fused(
        self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<Option<Tensor>> {
        let alike = |t: &Tensor| {
            t.device() == query.device()
                && t.storage().runtime().same_as(query.storage().runtime())
                && t.size()[..t.dim() - 2] == query.size()[..query.dim() - 2]
        };
        let [batch @ .., queries, width] = query.size() else { return Ok(None) };
        let ([.., keys, key_width], [.., values, value_width]) = (key.size(), value.size()) else {
            return Ok(None);
        };
        let fits = query.dtype().is_float()
            && alike(key)
            && alike(value)
            && (width, keys) == (key_width, values)
            && *width > 0
            && *keys <= i32::MAX as usize;
        if !fits {
            return Ok(None);
        }
        let count = checked_numel(batch).of(OP)?;
        // These copies are the only ones: their gradients are views.
        let (q, k, v) = (taken(query, count)?, taken(key, count)?, taken(value, count)?);
        let exec = q.exec()?;
        let weights = exec.empty(&[count, *queries, *keys], q.dtype()).of(OP)?;
        {
            let scores = product(&q, &turned(&k)?, wide(q.dtype()))?;
            let (of, to) = (scores.as_view(), weights.as_view());
            attention_weights(exec.target(), of, self.0.scale, self.0.is_causal, to).of(OP)?;
        }
        let out = product(&weights, &v, q.dtype())?;
        if wanted(&[&q, &k, &v]) {
            // The weights are a result too, so that gradients of gradients know what they depend on.
            let saved = [&q, &k, &v, &weights];
            record_all(OP, &[&out, &weights], &[&q, &k, &v], &saved, move |context, grads| {
                match grads {
                    [Some(grad), None] if !is_grad_enabled() => self.kernels(context, grad),
                    [grad, of_weights] => {
                        self.composite(context, grad.as_ref(), of_weights.as_ref())
                    }
                    _ => Ok(Gradients::new()),
                }
            })?;
        }
        let sizes: SmallVec<[usize; 6]> =
            batch.iter().chain([queries, value_width]).copied().collect();
        Ok(Some(if sizes[..] == *out.size() { out } else { out.unsafe_view(&sizes).of(OP)? }))
    }

    fn kernels(self, context: &Context<'_>, grad: &Tensor) -> Result<Gradients> {
        let saved = |i: usize| context.saved(i);
        let (weights, dtype) = (saved(3)?, context.dtype(0));
        let grad = dense(grad)?;
        let mut grads: Gradients = smallvec![None; 3];
        if context.needs(2) {
            grads[2] = Some(product(&turned(&weights)?, &grad, dtype)?);
        }
        if !context.needs(0) && !context.needs(1) {
            return Ok(grads);
        }
        let exec = weights.exec()?;
        let of_scores = exec.empty(weights.size(), dtype)?;
        {
            let of_weights = product(&grad, &turned(&saved(2)?)?, wide(dtype))?;
            let views = [&of_weights, &weights, &of_scores].map(Tensor::as_view);
            let (target, Weighing { scale, is_causal }) = (exec.target(), self.0);
            attention_weights_backward(target, views[0], views[1], scale, is_causal, views[2])?;
        }
        if context.needs(0) {
            grads[0] = Some(product(&of_scores, &saved(1)?, dtype)?);
        }
        if context.needs(1) {
            grads[1] = Some(product(&turned(&of_scores)?, &saved(0)?, dtype)?);
        }
        Ok(grads)
    }

    /// The same in ops that have gradients themselves, for the gradients of both results.
    fn composite(
        self,
        context: &Context<'_>,
        grad: Option<&Tensor>,
        of_weights: Option<&Tensor>,
    ) -> Result<Gradients> {
        let saved = |i: usize| context.saved(i)?.widened();
        let (operands, weights) = ([saved(0)?, saved(1)?, saved(2)?], saved(3)?);
        let [grad, of_weights] = [grad, of_weights].map(|t| t.map(Tensor::widened).transpose());
        gradients(context, &operands, &weights, self.0.scale, grad?.as_ref(), of_weights?.as_ref())
    }
}

/// The gradients of query, key and value for that of the result and that of the weights, in ops that have gradients.
pub(super) fn gradients(
    context: &Context<'_>,
    [q, k, v]: &[Tensor; 3],
    weights: &Tensor,
    scale: f64,
    grad: Option<&Tensor>,
    of_weights: Option<&Tensor>,
) -> Result<Gradients> {
    let of_value = |grad: &Tensor| weights.transpose(-2, -1)?.matmul(grad);
    let by_value = |grad: &Tensor| grad.matmul(&v.transpose(-2, -1)?);
    let of_value = grad.filter(|_| context.needs(2)).map(of_value).transpose()?;
    let of_weights = match (grad.map(by_value).transpose()?, of_weights) {
        (Some(by_value), Some(own)) => by_value.add(own)?,
        (Some(by_value), None) => by_value,
        (None, Some(own)) => own.clone(),
        (None, None) => return Ok(Gradients::new()),
    };
    let along = of_weights.mul(weights)?.sum_keepdim(-1)?;
    let of_scores = of_weights.sub(&along)?.mul(weights)?.mul(scale)?;
    let of_query = context.needs(0).then(|| of_scores.matmul(k)).transpose()?;
    let of_key = || of_scores.transpose(-2, -1)?.matmul(q);
    let of_key = context.needs(1).then(of_key).transpose()?;
    Ok(smallvec![of_query, of_key, of_value])
}

/// What scores and their sums are in.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// An operand with one dimension for all batches, as products take it.
#[track_caller]
fn taken(t: &Tensor, count: usize) -> Result<Tensor> {
    let [.., rows, columns] = t.size() else { return Ok(t.clone()) };
    let flat = t.reshape([count, *rows, *columns].map(|n| n as isize)).of(OP)?;
    dense(&flat)
}

/// A copy where cuBLAS could not take it as it lies.
#[track_caller]
fn dense(t: &Tensor) -> Result<Tensor> {
    if needs_contiguous(t.as_view()) { t.contiguous().of(OP) } else { Ok(t.clone()) }
}

/// The matrices turned, as a view that has no gradient.
#[track_caller]
fn turned(t: &Tensor) -> Result<Tensor> {
    t.detach().transpose(1, 2)
}

/// The product of pairs of matrices in a dtype, which may be `f32` for the halves. It has no gradient.
#[track_caller]
fn product(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let (exec, sizes) = (a.exec()?, [a.size()[0], a.size()[1], b.size()[2]]);
    let out = exec.empty(&sizes, dtype).of(OP)?;
    matmul(exec.target(), a.as_view(), b.as_view(), out.as_view()).of(OP)?;
    Ok(out)
}
