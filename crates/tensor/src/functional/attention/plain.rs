//! Attention without mask and dropout in few launches: three in the forward pass, and in the backward pass one per
//! gradient, plus two if queries or keys have a gradient. Operands whose strides a matrix product does not support are
//! copied first.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::attention::ScoreOptions;
use warpline_kernels::attention::{attention_weights, attention_weights_backward};
use warpline_kernels::matmul::{matmul, needs_contiguous};
use warpline_runtime::checked_numel;

use crate::autograd::{Gradients, NodeInputs, OpBackward, record_all, saved, should_record};
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// Attention with a given scale, causal or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainAttention(pub(super) ScoreOptions);

impl PlainAttention {
    /// Computes the result if the kernels support the operands: floats on one device, with the same batch dimensions.
    #[track_caller]
    pub(super) fn launched(
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
        let count = checked_numel(batch)?;
        // Merging the batch dimensions costs the backward pass no copies, because the gradients of these reshapes are
        // views.
        let (q, k, v) =
            (merge_batch(query, count)?, merge_batch(key, count)?, merge_batch(value, count)?);
        let exec = q.exec()?;
        let weights = exec.empty(&[count, *queries, *keys], q.dtype())?;
        {
            let scores = product(&q, &transposed(&k)?, score_dtype(q.dtype()))?;
            let (of, to) = (scores.as_view(), weights.as_view());
            attention_weights(exec.target(), of, self.0.scale, self.0.is_causal, to)?;
        }
        let out = product(&weights, &v, q.dtype())?;
        if should_record(&[&q, &k, &v]) {
            // The weights are also a result of the node, so that gradients of gradients flow through them.
            let saved = SavedPlainAttention {
                q: q.clone(),
                k: k.clone(),
                v: v.clone(),
                weights: weights.clone(),
                score_options: self.0,
            };
            record_all(OP, &[&out, &weights], &[&q, &k, &v], saved)?;
        }
        let sizes: SmallVec<[usize; 6]> =
            batch.iter().chain([queries, value_width]).copied().collect();
        Ok(Some(if sizes[..] == *out.size() { out } else { out.unsafe_view(&sizes)? }))
    }
}

saved! {
    struct SavedPlainAttention { q: Tensor, k: Tensor, v: Tensor, weights: Tensor, score_options: ScoreOptions }
}

impl OpBackward<[Option<Tensor>]> for SavedPlainAttention {
    fn backward(&self, grads: &[Option<Tensor>], inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let widened = |t: &Option<Tensor>| t.as_ref().map(Tensor::widened).transpose();
        let [grad, of_weights] = grads else { return Ok(Gradients::new()) };
        let (grad, of_weights) = (widened(grad)?, widened(of_weights)?);
        let operands = [self.q.widened()?, self.k.widened()?, self.v.widened()?];
        let (weights, scale) = (self.weights.widened()?, self.score_options.scale);
        gradients(inputs, &operands, &weights, scale, grad.as_ref(), of_weights.as_ref())
    }

    /// Returns `None` if the weights have a gradient.
    fn fused(
        &self,
        grads: &[Option<Tensor>],
        inputs: &NodeInputs<'_>,
    ) -> Result<Option<Gradients>> {
        let [Some(grad), None] = grads else { return Ok(None) };
        let Self { q, k, v, weights, score_options: ScoreOptions { scale, is_causal } } = self;
        let (grad, dtype) = (dense(grad)?, inputs.dtype(0));
        let of_value = inputs.gradient(2, || product(&transposed(weights)?, &grad, dtype))?;
        if !inputs.needs(0) && !inputs.needs(1) {
            return Ok(Some(smallvec![None, None, of_value]));
        }
        let exec = weights.exec()?;
        let of_scores = exec.empty(weights.size(), dtype)?;
        {
            let of_weights = product(&grad, &transposed(v)?, score_dtype(dtype))?;
            let views = [&of_weights, weights, &of_scores].map(Tensor::as_view);
            let target = exec.target();
            attention_weights_backward(target, views[0], views[1], *scale, *is_causal, views[2])?;
        }
        let of_query = inputs.gradient(0, || product(&of_scores, k, dtype))?;
        let of_key = inputs.gradient(1, || product(&transposed(&of_scores)?, q, dtype))?;
        Ok(Some(smallvec![of_query, of_key, of_value]))
    }
}

/// Computes the gradients of query, key and value from the gradients of the result and the weights, with
/// differentiable ops.
pub(super) fn gradients(
    inputs: &NodeInputs<'_>,
    [q, k, v]: &[Tensor; 3],
    weights: &Tensor,
    scale: f64,
    grad: Option<&Tensor>,
    of_weights: Option<&Tensor>,
) -> Result<Gradients> {
    let of_value = |grad: &Tensor| weights.transpose(-2, -1)?.matmul(grad);
    let by_value = |grad: &Tensor| grad.matmul(&v.transpose(-2, -1)?);
    let of_value = grad.filter(|_| inputs.needs(2)).map(of_value).transpose()?;
    let of_weights = match (grad.map(by_value).transpose()?, of_weights) {
        (Some(by_value), Some(own)) => by_value.add(own)?,
        (Some(by_value), None) => by_value,
        (None, Some(own)) => own.clone(),
        (None, None) => return Ok(Gradients::new()),
    };
    let along = of_weights.mul(weights)?.sum_keepdim(-1)?;
    let of_scores = of_weights.sub(&along)?.mul(weights)?.mul(scale)?;
    let of_query = inputs.gradient(0, || of_scores.matmul(k))?;
    let of_key = inputs.gradient(1, || of_scores.transpose(-2, -1)?.matmul(q))?;
    Ok(smallvec![of_query, of_key, of_value])
}

/// Returns the dtype of scores and their sums.
fn score_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Merges the batch dimensions of an operand into one dimension of size `count`.
#[track_caller]
fn merge_batch(t: &Tensor, count: usize) -> Result<Tensor> {
    let [.., rows, columns] = t.size() else { return Ok(t.clone()) };
    let flat = t.reshape([count, *rows, *columns].map(|n| n as isize))?;
    dense(&flat)
}

/// Returns the tensor, or a copy if cuBLAS does not support its strides.
#[track_caller]
fn dense(t: &Tensor) -> Result<Tensor> {
    if needs_contiguous(t.as_view()) { t.contiguous() } else { Ok(t.clone()) }
}

/// Returns a transposed view of the matrices. The view is not recorded.
#[track_caller]
fn transposed(t: &Tensor) -> Result<Tensor> {
    t.detach().transpose(1, 2)
}

/// Multiplies pairs of matrices. The product has dtype `dtype`, which may be `f32` for half-width operands. It is not
/// recorded.
#[track_caller]
fn product(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let (exec, sizes) = (a.exec()?, [a.size()[0], a.size()[1], b.size()[2]]);
    let out = exec.empty(&sizes, dtype)?;
    matmul(exec.target(), a.as_view(), b.as_view(), out.as_view())?;
    Ok(out)
}
