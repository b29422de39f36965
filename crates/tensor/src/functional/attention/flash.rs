//! Attention of half-width floats in one launch, and its gradients in two. The kernels read rows as vectors,
//! so operands whose rows are not aligned vectors are copied first.

use warpline_kernels::attention::{
    ScoreOptions, attention, attention_backward, attention_takes, has_attention,
};
use warpline_runtime::{Layout, Sizes};

use super::plain::gradients;
use super::{masked, repeat_heads};
use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, record, saved, should_record};
use crate::exec::Exec;
use crate::methods::composite::signed;
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// Computes the result if the kernels support the operands.
#[track_caller]
pub(super) fn flash_attention(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    score_options: ScoreOptions,
    enable_gqa: bool,
) -> Result<Option<Tensor>> {
    let exec = query.exec()?;
    let (width, keys) = (query.size()[query.dim() - 1], key.size()[key.dim() - 2]);
    if !is_supported([query, key, value], mask, enable_gqa)
        || keys == 0
        || mask.is_some_and(|mask| should_record(&[mask]))
        || !has_attention(exec.target(), query.dtype(), width)
    {
        return Ok(None);
    }
    let (q, k, v) = (
        with_supported_strides(query)?,
        with_supported_strides(key)?,
        with_supported_strides(value)?,
    );
    let mask = expanded_mask(mask, &q, keys)?;
    let out = empty_result(&exec, &q)?;
    let lse = exec.empty(&q.size()[..q.dim() - 1], DType::F32)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    let of_mask = mask.as_ref().map(Tensor::as_view);
    attention(exec.target(), operands, of_mask, score_options, out.as_view(), lse.as_view())?;
    let inputs = [&q, &k, &v];
    if !should_record(&inputs) {
        return Ok(Some(out));
    }
    let saved = SavedFlashAttention {
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
        mask,
        out: out.clone(),
        lse,
        score_options,
    };
    record(OP, out, &inputs, saved).map(Some)
}

/// Returns whether the kernels of this module and of `few_queries` support the sizes, the devices and the mask's
/// dtype. They support no mask that would broadcast the scores to a larger shape.
pub(super) fn is_supported(
    [query, key, value]: [&Tensor; 3],
    mask: Option<&Tensor>,
    enable_gqa: bool,
) -> bool {
    let ([batch @ .., queries, width], [others @ .., keys, own]) = (query.size(), key.size())
    else {
        return false;
    };
    let alike = |t: &Tensor| {
        t.device() == query.device() && t.storage().runtime().same_as(query.storage().runtime())
    };
    let expands = |mask: &Tensor| {
        let scores = [keys, queries].into_iter().chain(batch.iter().rev());
        let mut sizes = mask.size().iter().rev().zip(scores);
        mask.dim() <= query.dim() && sizes.all(|(&own, &size)| own == 1 || own == size)
    };
    batch.len() <= 2
        && (batch == others || enable_gqa && groups(batch, others))
        && width == own
        && key.size() == value.size()
        && alike(key)
        && alike(value)
        && mask.is_none_or(|mask| {
            alike(mask) && [DType::Bool, query.dtype()].contains(&mask.dtype()) && expands(mask)
        })
        && *queries.max(keys) <= i32::MAX as usize
}

/// Returns whether the batch dimensions differ only in the number of heads, and the number of heads of the
/// keys divides the number of heads of the queries.
fn groups(queries: &[usize], keys: &[usize]) -> bool {
    match (queries, keys) {
        ([batch @ .., heads], [others @ .., own]) => {
            batch == others && *own > 0 && heads.is_multiple_of(*own)
        }
        _ => false,
    }
}

/// Returns the mask, expanded to the sizes of the scores and detached from the autograd graph.
#[track_caller]
pub(super) fn expanded_mask(
    mask: Option<&Tensor>,
    query: &Tensor,
    keys: usize,
) -> Result<Option<Tensor>> {
    let sizes: Sizes = query.size()[..query.dim() - 1].iter().copied().chain([keys]).collect();
    mask.map(|mask| mask.detach().expand(&sizes[..])).transpose()
}

saved! {
    struct SavedFlashAttention {
        q: Tensor,
        k: Tensor,
        v: Tensor,
        /// The mask, with the sizes of the scores.
        mask: Option<Tensor>,
        out: Tensor,
        /// For each query, the base-2 logarithm of the sum of the exponentials of its scores.
        lse: Tensor,
        score_options: ScoreOptions,
    }
}

impl Saved for ScoreOptions {}

impl OpBackward for SavedFlashAttention {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let repeated = |t: &Tensor| -> Result<Tensor> {
            let t = t.widened()?;
            if t.dim() < 3 { Ok(t) } else { repeat_heads(OP, &self.q, &t) }
        };
        let operands = [self.q.widened()?, repeated(&self.k)?, repeated(&self.v)?];
        let scores = operands[0].mul(self.score_options.scale)?;
        let scores = scores.matmul(&operands[1].transpose(-2, -1)?)?;
        let (scores, blind) = match &self.mask {
            Some(mask) => masked(&scores, mask)?,
            None if self.score_options.is_causal => {
                let hidden = scores.mask_above(OP, 0)?;
                (scores.masked_fill(&hidden, f64::NEG_INFINITY)?, None)
            }
            None => (scores, None),
        };
        let weights = scores.softmax(-1)?;
        let weights = match blind {
            Some(blind) => weights.masked_fill(&blind, 0)?,
            None => weights,
        };
        let scale = self.score_options.scale;
        let mut grads =
            gradients(inputs, &operands, &weights, scale, Some(&grad.widened()?), None)?;
        for (grad, own) in grads.iter_mut().skip(1).zip([&self.k, &self.v]) {
            *grad = grad.take().map(|grad| sum_of_groups(&grad, own)).transpose()?;
        }
        Ok(grads)
    }

    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let Self { q, k, v, mask, out, lse, score_options } = self;
        let grad = with_supported_strides(grad)?;
        let exec = q.exec()?;
        let delta = exec.empty(lse.size(), DType::F32)?;
        let grads = [empty_result(&exec, q)?, empty_result(&exec, k)?, empty_result(&exec, v)?];
        let operands = [q, k, v].map(Tensor::as_view);
        let to = grads.each_ref().map(Tensor::as_view);
        let mask = mask.as_ref().map(Tensor::as_view);
        let (of_out, sums) = ([out.as_view(), grad.as_view()], [lse.as_view(), delta.as_view()]);
        attention_backward(exec.target(), operands, mask, *score_options, of_out, sums, to)?;
        let wanted = |(i, grad)| inputs.needs(i).then_some(grad);
        Ok(Some(grads.into_iter().enumerate().map(wanted).collect()))
    }
}

/// Adds the gradients of the heads that were repeated from one head of `own`.
fn sum_of_groups(grad: &Tensor, own: &Tensor) -> Result<Tensor> {
    if grad.size() == own.size() {
        return Ok(grad.clone());
    }
    let heads = own.dim() - 3;
    let mut sizes = signed(own.size());
    sizes.insert(heads + 1, -1);
    grad.reshape(&sizes)?.sum(heads + 1)
}

/// Returns the tensor, or a copy if the kernels do not support its strides or its offset.
#[track_caller]
pub(super) fn with_supported_strides(t: &Tensor) -> Result<Tensor> {
    if attention_takes(t.as_view()) {
        return Ok(t.clone());
    }
    let t = t.contiguous()?;
    // A contiguous tensor may still begin at an address that is not aligned to a vector.
    if attention_takes(t.as_view()) { Ok(t) } else { t.copy() }
}

/// Allocates a tensor with the dimension order of an operand. If the operand is a transposed view, the same
/// transpose of the result is contiguous. The tensor is row-major if that order would not keep rows contiguous.
#[track_caller]
pub(super) fn empty_result(exec: &Exec<'_>, like: &Tensor) -> Result<Tensor> {
    let layout = like.layout().preserved();
    let by_rows = layout.strides().last() == Some(&1);
    let layout = if by_rows { layout } else { Layout::contiguous(like.size())? };
    exec.empty_in(layout, like.dtype())
}
