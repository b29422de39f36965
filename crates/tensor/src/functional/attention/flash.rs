//! Attention of half-width floats in one launch, and its gradients in two. The kernels read rows as vectors,
//! so operands with other strides are copied first.

use warpline_kernels::attention::{
    Weighing, attention, attention_backward, attention_takes, has_attention,
};
use warpline_runtime::Layout;

use super::plain::gradients;
use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, record, saved, should_record};
use crate::called::Called;
use crate::exec::Exec;
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// Computes the result if the kernels support the operands.
#[track_caller]
pub(super) fn flash_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    weighing: Weighing,
) -> Result<Option<Tensor>> {
    let ([batch @ .., queries, width], [others @ .., keys, _]) = (query.size(), key.size()) else {
        return Ok(None);
    };
    let alike = |t: &Tensor| {
        t.device() == query.device()
            && t.storage().runtime().same_as(query.storage().runtime())
            && t.size()[t.dim() - 1] == *width
    };
    let fits = batch.len() <= 2
        && batch == others
        && key.size() == value.size()
        && alike(key)
        && alike(value)
        && *keys > 0
        && *queries.max(keys) <= i32::MAX as usize;
    let exec = query.exec()?;
    if !fits || !has_attention(exec.target(), query.dtype(), *width) {
        return Ok(None);
    }
    let (q, k, v) = (
        with_supported_strides(query)?,
        with_supported_strides(key)?,
        with_supported_strides(value)?,
    );
    let out = empty_result(&exec, &q)?;
    let lse = exec.empty(&q.size()[..q.dim() - 1], DType::F32).of(OP)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    attention(exec.target(), operands, weighing, out.as_view(), lse.as_view()).of(OP)?;
    let inputs = [&q, &k, &v];
    if !should_record(&inputs) {
        return Ok(Some(out));
    }
    let saved = SavedFlashAttention {
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
        out: out.clone(),
        lse,
        weighing,
    };
    record(OP, out, &inputs, saved).map(Some)
}

saved! {
    struct SavedFlashAttention {
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        /// Log-sum-exp of the scores of each query.
        lse: Tensor,
        weighing: Weighing,
    }
}

impl Saved for Weighing {}

impl OpBackward for SavedFlashAttention {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let operands = [self.q.widened()?, self.k.widened()?, self.v.widened()?];
        let scores = operands[0].mul(self.weighing.scale)?;
        let scores = scores.matmul(&operands[1].transpose(-2, -1)?)?;
        let scores = if self.weighing.is_causal {
            let hidden = scores.mask_above(OP, 0)?;
            scores.masked_fill(&hidden, f64::NEG_INFINITY)?
        } else {
            scores
        };
        let (weights, scale) = (scores.softmax(-1)?, self.weighing.scale);
        gradients(inputs, &operands, &weights, scale, Some(&grad.widened()?), None)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let Self { q, k, v, out, lse, weighing } = self;
        let grad = with_supported_strides(grad)?;
        let exec = q.exec()?;
        let delta = exec.empty(lse.size(), DType::F32)?;
        let grads = [empty_result(&exec, q)?, empty_result(&exec, k)?, empty_result(&exec, v)?];
        let operands = [q, k, v].map(Tensor::as_view);
        let to = grads.each_ref().map(Tensor::as_view);
        let (of_out, sums) = ([out.as_view(), grad.as_view()], [lse.as_view(), delta.as_view()]);
        attention_backward(exec.target(), operands, *weighing, of_out, sums, to)?;
        let wanted = |(i, grad)| inputs.needs(i).then_some(grad);
        Ok(Some(grads.into_iter().enumerate().map(wanted).collect()))
    }
}

/// Returns the tensor, or a copy if the kernels do not support its strides.
#[track_caller]
pub(super) fn with_supported_strides(t: &Tensor) -> Result<Tensor> {
    if attention_takes(t.as_view()) {
        return Ok(t.clone());
    }
    let t = t.contiguous().of(OP)?;
    // A contiguous tensor may still begin at an address that is not aligned to a vector.
    if attention_takes(t.as_view()) { Ok(t) } else { t.copy().of(OP) }
}

/// Allocates a tensor with the dimension order of an operand. If the operand is a transposed view, the same
/// transpose of the result is contiguous.
#[track_caller]
pub(super) fn empty_result(exec: &Exec<'_>, like: &Tensor) -> Result<Tensor> {
    let layout = like.layout().preserved();
    let by_rows = layout.strides().last() == Some(&1);
    let layout = if by_rows { layout } else { Layout::contiguous(like.size())? };
    exec.empty_in(layout, like.dtype()).of(OP)
}
