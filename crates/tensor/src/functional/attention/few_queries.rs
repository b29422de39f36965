//! Attention of few queries in one launch, without gradients, for half-width floats.

use warpline_kernels::attention::{ScoreOptions, few_queries, has_few_queries};

use super::AttentionOptions;
use super::flash::{empty_result, expanded_mask, is_supported, with_supported_strides};
use crate::autograd::should_record;
use crate::{Result, Tensor};

/// Computes the result if the tensors are on a GPU, the kernel supports the operands, and no gradient is recorded.
#[track_caller]
pub(super) fn few_queries_attention(
    [query, key, value]: [&Tensor; 3],
    score_options: ScoreOptions,
    options: &AttentionOptions<'_>,
) -> Result<Option<Tensor>> {
    let (mask, lengths) = (options.attn_mask, options.key_lengths);
    let ([batch @ .., queries, width], [others @ .., keys, _]) = (query.size(), key.size()) else {
        return Ok(None);
    };
    let group = match (batch.last(), others.last()) {
        (Some(&heads), Some(&own)) if own > 0 => heads / own,
        _ => 1,
    };
    // With lengths, the kernel needs two batch dimensions, and takes one length for each index of the first.
    let has_lengths = |lengths: &Tensor| batch.len() == 2 && lengths.device() == query.device();
    let exec = query.exec()?;
    let recorded: [&Tensor; 4] = [query, key, value, mask.unwrap_or(query)];
    if !query.device().is_cuda()
        || !is_supported([query, key, value], mask, options.enable_gqa)
        || !lengths.is_none_or(has_lengths)
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
    let lengths = lengths.map(|lengths| lengths.expand([batch[0]])).transpose()?;
    let out = empty_result(&exec, &q)?;
    let operands = [q.as_view(), k.as_view(), v.as_view()];
    let mask = mask.as_ref().map(Tensor::as_view);
    let lengths = lengths.as_ref().map(Tensor::as_view);
    few_queries(exec.target(), operands, score_options, mask, lengths, out.as_view())?;
    Ok(Some(out))
}
