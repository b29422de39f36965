//! Attention of few queries in one launch, without gradients, for half-width floats.

use warpline_kernels::attention::{Weighing, few_queries, has_few_queries};

use super::AttentionOptions;
use super::flash::{empty_result, expanded_mask, groups, with_supported_strides};
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
    let ([batch @ .., queries, width], [others @ .., keys, own]) = (query.size(), key.size())
    else {
        return Ok(None);
    };
    let alike = |t: &Tensor| {
        t.device() == query.device() && t.storage().runtime().same_as(query.storage().runtime())
    };
    let is_grouped = options.enable_gqa && groups(batch, others);
    let fits = query.device().is_cuda()
        && batch.len() <= 2
        && (batch == others || is_grouped)
        && width == own
        && value.size() == key.size()
        && *keys <= i32::MAX as usize
        && alike(key)
        && alike(value)
        && mask.is_none_or(|mask| {
            alike(mask) && [DType::Bool, query.dtype()].contains(&mask.dtype())
        })
        // The kernel has a length for each of the first of two batch dimensions.
        && lengths.is_none_or(|lengths| batch.len() == 2 && alike(lengths));
    let exec = query.exec()?;
    let group = if is_grouped { batch[batch.len() - 1] / others[others.len() - 1] } else { 1 };
    let recorded: [&Tensor; 4] = [query, key, value, mask.unwrap_or(query)];
    if !fits
        || !has_few_queries(exec.target(), query.dtype(), [group, *queries, *width])
        || should_record(&recorded)
    {
        return Ok(None);
    }
    let (q, k, v) = (
        with_supported_strides(query)?,
        with_supported_strides(key)?,
        with_supported_strides(value)?,
    );
    let mask = expanded_mask(mask, query, *keys)?;
    let lengths = lengths.map(|lengths| lengths.expand([batch[0]])).transpose().of(OP)?;
    let out = empty_result(&exec, &q)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    let mask = mask.as_ref().map(Tensor::as_view);
    let lengths = lengths.as_ref().map(Tensor::as_view);
    few_queries(exec.target(), operands, weighing, mask, lengths, out.as_view()).of(OP)?;
    Ok(Some(out))
}
