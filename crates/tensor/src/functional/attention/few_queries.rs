//! Attention of few queries in one launch, without gradients, for half-width floats.

use warpline_kernels::attention::{Weighing, few_queries, has_few_queries};

use super::AttentionOptions;
use super::flash::{empty_result, with_supported_strides};
use crate::autograd::should_record;
use crate::called::Called;
use crate::{DType, Result, Tensor};

const OP: &str = "scaled_dot_product_attention";

/// Computes the result if the kernel supports the operands and no gradient is recorded.
#[track_caller]
pub(super) fn few_queries_attention(
    [query, key, value]: [&Tensor; 3],
    weighing: Weighing,
    options: &AttentionOptions<'_>,
) -> Result<Option<Tensor>> {
    let (mask, lengths) = (options.attn_mask, options.key_lengths);
    let [q, k, v] = [query, key, value].map(with_heads);
    let (Some(q), Some(k), Some(v)) = (q?, k?, v?) else { return Ok(None) };
    let &[outer, heads, queries, width] = q.size() else { return Ok(None) };
    let &[others, own, keys, _] = k.size() else { return Ok(None) };
    let alike = |t: &Tensor| {
        t.device() == q.device() && t.storage().runtime().same_as(q.storage().runtime())
    };
    let is_grouped = own == heads || options.enable_gqa && own > 0 && heads.is_multiple_of(own);
    let fits = q.device().is_cuda()
        && others == outer
        && v.size() == k.size()
        && k.size()[3] == width
        && is_grouped
        && keys <= i32::MAX as usize
        && alike(&k)
        && alike(&v)
        && mask.is_none_or(|mask| alike(mask) && [DType::Bool, q.dtype()].contains(&mask.dtype()))
        && lengths.is_none_or(alike);
    let exec = q.exec()?;
    let group = heads.checked_div(own).unwrap_or(1);
    let operands: [&Tensor; 4] = [query, key, value, mask.unwrap_or(query)];
    if !fits
        || !has_few_queries(exec.target(), q.dtype(), [group, queries, width])
        || should_record(&operands)
    {
        return Ok(None);
    }
    let [q, k, v] =
        [with_supported_strides(&q)?, with_supported_strides(&k)?, with_supported_strides(&v)?];
    let mask =
        mask.map(|mask| mask.detach().expand([outer, heads, queries, keys])).transpose().of(OP)?;
    let lengths = lengths.map(|lengths| lengths.expand([outer])).transpose().of(OP)?;
    let out = empty_result(&exec, &q)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    let mask = mask.as_ref().map(Tensor::as_view);
    let lengths = lengths.as_ref().map(Tensor::as_view);
    few_queries(exec.target(), operands, weighing, mask, lengths, out.as_view()).of(OP)?;
    if query.dim() == 4 {
        return Ok(Some(out));
    }
    out.view(query.size()).of(OP).map(Some)
}

/// Returns a tensor of two to four dimensions as one of four. `None` for other tensors.
#[track_caller]
fn with_heads(t: &Tensor) -> Result<Option<Tensor>> {
    let mut t = match t.dim() {
        2..=4 => t.detach(),
        _ => return Ok(None),
    };
    while t.dim() < 4 {
        t = t.unsqueeze(0).of(OP)?;
    }
    Ok(Some(t))
}
