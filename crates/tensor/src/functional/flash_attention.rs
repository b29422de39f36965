//! Attention of half-width floats in one launch, and its gradients in two, after copies of operands whose rows are not
//! whole vectors.

use warpline_kernels::attention::{
    Weighing, attention, attention_backward, attention_takes, has_attention,
};
use warpline_runtime::Layout;

use super::plain_attention::gradients;
use crate::autograd::{Context, Gradients, is_grad_enabled, record, wanted};
use crate::called::Called;
use crate::exec::Exec;
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// The result, if the operands are what the kernels are for.
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
    let (q, k, v) = (taken(query)?, taken(key)?, taken(value)?);
    let out = result(&exec, &q)?;
    let lse = exec.empty(&q.size()[..q.dim() - 1], DType::F32).of(OP)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    attention(exec.target(), operands, weighing, out.as_view(), lse.as_view()).of(OP)?;
    let inputs = [&q, &k, &v];
    if !wanted(&inputs) {
        return Ok(Some(out));
    }
    let saved = [&q, &k, &v, &out.clone(), &lse];
    let out = record(OP, out, &inputs, &saved, move |context, grad| {
        if is_grad_enabled() {
            composite(context, weighing, grad)
        } else {
            kernels(context, weighing, grad)
        }
    })?;
    Ok(Some(out))
}

fn kernels(context: &Context<'_>, weighing: Weighing, grad: &Tensor) -> Result<Gradients> {
    let saved = |i: usize| context.saved(i);
    let (q, k, v, out, lse, grad) =
        (saved(0)?, saved(1)?, saved(2)?, saved(3)?, saved(4)?, taken(grad)?);
    let exec = q.exec()?;
    let delta = exec.empty(lse.size(), DType::F32)?;
    let grads = [result(&exec, &q)?, result(&exec, &k)?, result(&exec, &v)?];
    {
        let [q, k, v] = [&q, &k, &v].map(Tensor::as_view);
        let [dq, dk, dv] = grads.each_ref().map(Tensor::as_view);
        let (of_out, sums) = ([out.as_view(), grad.as_view()], [lse.as_view(), delta.as_view()]);
        attention_backward(exec.target(), [q, k, v], weighing, of_out, sums, [dq, dk, dv])?;
    }
    Ok(grads.into_iter().enumerate().map(|(i, grad)| context.needs(i).then_some(grad)).collect())
}

/// The same in ops that have gradients themselves, from the weights as they were.
fn composite(context: &Context<'_>, weighing: Weighing, grad: &Tensor) -> Result<Gradients> {
    let operand = |i: usize| context.saved(i)?.widened();
    let (q, k) = (operand(0)?, operand(1)?);
    let scores = q.mul(weighing.scale)?.matmul(&k.transpose(-2, -1)?)?;
    let scores = if weighing.is_causal {
        let hidden = scores.above(OP, 0)?;
        scores.masked_fill(&hidden, f64::NEG_INFINITY)?
    } else {
        scores
    };
    let (weights, operands) = (scores.softmax(-1)?, [q, k, operand(2)?]);
    gradients(context, &operands, &weights, weighing.scale, Some(&grad.widened()?), None)
}

/// A copy where the kernels do not take it as it lies.
#[track_caller]
fn taken(t: &Tensor) -> Result<Tensor> {
    if attention_takes(t.as_view()) {
        return Ok(t.clone());
    }
    let t = t.contiguous().of(OP)?;
    // One that lies row after row may still begin between two vectors.
    if attention_takes(t.as_view()) { Ok(t) } else { t.copy().of(OP) }
}

/// Memory for what lies as an operand does, so that to turn it back is a view.
#[track_caller]
fn result(exec: &Exec<'_>, like: &Tensor) -> Result<Tensor> {
    let layout = like.layout().preserved();
    let by_rows = layout.strides().last() == Some(&1);
    let layout = if by_rows { layout } else { Layout::contiguous(like.size())? };
    exec.empty_in(layout, like.dtype()).of(OP)
}
