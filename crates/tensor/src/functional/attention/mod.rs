//! Attention.

mod few_queries;
mod flash;
mod plain;

use warpline_kernels::attention::ScoreOptions;

use super::options::options;
use crate::amp::autocast_operands;
use crate::methods::composite::signed;
use crate::{
    CallScope, DType, Error, ErrorKind, IntoOptionalTensor, IntoOptions, Result, Tensor, arange,
};
use few_queries::few_queries_attention;
use flash::flash_attention;
use plain::PlainAttention;

options! {
    /// Options of [`scaled_dot_product_attention`].
    #[derive(Clone, Copy, Debug)]
    AttentionOptions ['a] ['a] {
        /// Sets the mask. A boolean mask is true where a query may attend to a key; a floating-point mask is added to
        /// the scores. Broadcasts to `[.., queries, keys]`. Default: none.
        attn_mask: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the probability with which each weight is dropped, from 0 to 1. Default: 0.
        dropout_p: f64 = 0.0, f64;
        /// Sets whether a query attends only to keys up to its own position. Cannot be combined with a mask. Default:
        /// `false`.
        is_causal: bool = false, bool;
        /// Sets the number of valid keys per batch: an `int64` tensor of shape `[batch]` or `[1]` on the device of the
        /// queries. Later keys are ignored, such as the unused end of a cache. With `is_causal`, the last query attends
        /// to all valid keys. Default: all keys are valid.
        key_lengths: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the factor of the scores. Default: one over the square root of the last size of the queries.
        scale: Option<f64> = None, impl Into<Option<f64>> => Into::into;
        /// Sets whether keys and values may have fewer heads (the third dimension from the end) than the queries. Each
        /// head of keys and values then serves several heads of queries. Default: `false`.
        enable_gqa: bool = false, bool;
    }
}

/// `softmax(query @ key.T * scale + mask) @ value` (`torch.nn.functional.scaled_dot_product_attention`). The
/// shapes are `[.., queries, width]`, `[.., keys, width]` and `[.., keys, values]`; the result is
/// `[.., queries, values]`. A query that may attend to no key gets zeros.
///
/// Scores of half-width floats are computed in `f32`. Half-width floats use the first of these implementations that
/// supports the operands; the other floats use the last two:
///
/// - One kernel that splits the keys over the GPU, for up to 64 queries per head of keys and widths up to 256, without
///   a recorded gradient.
/// - One kernel that stores no weights (FlashAttention), for widths up to 128, without a recorded gradient of the mask.
/// - A few kernels that store the weights in the dtype of the operands, for equal batch dimensions, without a mask,
///   `key_lengths` and dropout.
/// - Separate ops, which compute half-width floats in `f32` throughout.
///
/// The first two need a width that is a multiple of 8 and is the same for keys and values, at most two batch
/// dimensions, which are equal except for grouped heads, no dropout, and on a GPU compute capability 8.0 or higher.
/// They do not repeat keys and values for grouped heads.
///
/// ```
/// # use warpline::functional::{AttentionOptions, scaled_dot_product_attention};
/// # use warpline::{arange_start, ones};
/// let (q, k) = (ones([1, 2, 4], ())?, ones([1, 2, 4], ())?);
/// let v = arange_start(1.0, 3.0, ())?.reshape([1, 2, 1])?;
/// let causal = AttentionOptions::new().is_causal(true);
/// let t = scaled_dot_product_attention(&q, &k, &v, causal)?;
/// assert_eq!(t.to_vec::<f32>()?, [1.0, 1.5]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if a tensor has fewer than two dimensions. [`ErrorKind::OperandDTypes`] if the dtypes
/// differ. [`ErrorKind::DTypeMismatch`] if the mask has an integer dtype, or if `key_lengths` is not an `int64` tensor.
/// [`ErrorKind::InvalidArgument`] if there is a mask and `is_causal` is set, or if `dropout_p` is not from 0 to 1; with
/// `enable_gqa`, if the number of heads of the keys or values does not divide the number of heads of the queries, or if
/// a tensor has fewer than three dimensions and the first two implementations do not support the operands.
/// [`ErrorKind::BroadcastMismatch`] or [`ErrorKind::ExpandMismatch`] if the mask or `key_lengths` does not fit the
/// scores. Otherwise the same as [`Tensor::matmul`].
#[track_caller]
pub fn scaled_dot_product_attention<'a>(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: impl IntoOptions<AttentionOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("scaled_dot_product_attention");
    attention(query, key, value, &options.into_options())
}

#[track_caller]
fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &AttentionOptions<'_>,
) -> Result<Tensor> {
    let op = "scaled_dot_product_attention";
    let attn_mask = options.attn_mask;
    autocast_operands!(Low, Low, [query, key, value; attn_mask] =>
        attention(query, key, value, &AttentionOptions { attn_mask, ..*options }));
    check(op, query, key, value, options)?;
    let width = query.size()[query.dim() - 1] as f64;
    let scale = options.scale.unwrap_or(width.sqrt().recip());
    let score_options = ScoreOptions { scale, is_causal: options.is_causal };
    let operands = [query, key, value];
    let drops = options.dropout_p > 0.0;
    if !drops && let Some(out) = few_queries_attention(operands, score_options, options)? {
        return Ok(out);
    }
    let exists =
        options.key_lengths.map(|lengths| existing_keys(query, key, lengths, options.is_causal));
    let exists = exists.transpose()?;
    // The mask made from `key_lengths` already includes the causal limit.
    let score_options =
        ScoreOptions { is_causal: options.is_causal && exists.is_none(), ..score_options };
    let mask = match (options.attn_mask, exists) {
        (None, exists) => exists,
        (Some(mask), None) => Some(mask.clone()),
        (Some(mask), Some(exists)) if mask.dtype() == DType::Bool => {
            Some(mask.logical_and(&exists)?)
        }
        // The logarithm is 0 for valid keys, and negative infinity for other keys.
        (Some(mask), Some(exists)) => Some(mask.add(&exists.to(mask.dtype())?.log()?)?),
    };
    if !drops
        && let Some(out) =
            flash_attention(operands, mask.as_ref(), score_options, options.enable_gqa)?
    {
        return Ok(out);
    }
    let (k, v) = if options.enable_gqa {
        (repeat_heads(op, query, key)?, repeat_heads(op, query, value)?)
    } else {
        (key.clone(), value.clone())
    };
    if !drops
        && mask.is_none()
        && let Some(out) = PlainAttention(score_options).launched(query, &k, &v)?
    {
        return Ok(out);
    }
    let (q, k, v) = (query.widened()?, k.widened()?, v.widened()?);
    // Scales the queries, which usually have fewer elements than the scores.
    let scores = q.mul(scale)?.matmul(&k.transpose(-2, -1)?)?;
    let (scores, blind) = match &mask {
        None if score_options.is_causal => {
            let hidden = scores.mask_above(op, 0)?;
            (scores.masked_fill(&hidden, f64::NEG_INFINITY)?, None)
        }
        None => (scores, None),
        Some(mask) => masked(&scores, mask)?,
    };
    let weights = scores.softmax(-1)?;
    let weights = if drops {
        let kept = weights.empty_like(())?;
        kept.bernoulli_(1.0 - options.dropout_p)?;
        // If all weights are dropped, the scale does not matter, but must be finite.
        let scale = if options.dropout_p < 1.0 { (1.0 - options.dropout_p).recip() } else { 0.0 };
        weights.mul(&kept.mul(scale)?)?
    } else {
        weights
    };
    let out = weights.matmul(&v)?;
    let out = match blind {
        None => out,
        Some(blind) => out.masked_fill(&blind, 0)?,
    };
    out.to(query.dtype())
}

/// Returns a mask that broadcasts to `[batch, .., queries, keys]`: whether a key is valid and, if `is_causal`, also not
/// after the query.
#[track_caller]
fn existing_keys(
    query: &Tensor,
    key: &Tensor,
    lengths: &Tensor,
    is_causal: bool,
) -> Result<Tensor> {
    let (queries, keys) = (query.size()[query.dim() - 2], key.size()[key.dim() - 2]);
    let numbers = |n: usize| arange(n as i64, (DType::I64, query.device()));
    let mut sizes = vec![1; query.dim()];
    sizes[0] = -1;
    let lengths = lengths.clamp(0, keys as i64)?.view(&sizes[..])?;
    let positions = numbers(keys)?;
    let exists = positions.lt(&lengths)?;
    if !is_causal {
        return Ok(exists);
    }
    // The last query attends to the last key that exists.
    let last = numbers(queries)?.unsqueeze(1)?.add(&lengths)?.sub(queries as i64)?;
    exists.logical_and(&positions.le(&last)?)
}

/// Applies a mask to scores. Also returns a mask of the queries that attend to no key. The returned scores
/// let such a query attend to all keys, so that no gradient is NaN. The caller discards the query's result.
#[track_caller]
fn masked(scores: &Tensor, mask: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    if mask.dtype() == DType::Bool {
        let blind = mask.any_keepdim(-1)?.logical_not()?;
        let hidden = mask.logical_or(&blind)?.logical_not()?;
        return Ok((scores.masked_fill(&hidden, f64::NEG_INFINITY)?, Some(blind)));
    }
    let blind = mask.detach().eq(f64::NEG_INFINITY)?.all_keepdim(-1)?;
    let added = mask.widened()?.masked_fill(&blind, 0)?;
    Ok((scores.add(&added)?, Some(blind)))
}

/// Repeats each head of keys or values to match the number of query heads.
#[track_caller]
fn repeat_heads(op: &'static str, q: &Tensor, t: &Tensor) -> Result<Tensor> {
    let (&[.., heads, _, _], &[.., own, _, _]) = (q.size(), t.size()) else {
        let reason = "enable_gqa needs at least 3 dimensions";
        return Err(Error::invalid(op, reason));
    };
    if own == heads {
        return Ok(t.clone());
    }
    if own == 0 || !heads.is_multiple_of(own) {
        let reason = format!("{own} heads of keys and values do not divide {heads} of queries");
        return Err(Error::invalid(op, reason));
    }
    let d = t.dim() - 3;
    let mut sizes = signed(t.size());
    sizes.insert(d + 1, (heads / own) as isize);
    let repeated = t.unsqueeze(d as isize + 1)?.expand(&sizes)?;
    sizes.remove(d + 1);
    sizes[d] = heads as isize;
    repeated.reshape(&sizes)
}

#[track_caller]
fn check(
    op: &'static str,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &AttentionOptions<'_>,
) -> Result<()> {
    for (name, tensor) in [("query", query), ("key", key), ("value", value)] {
        if tensor.dim() < 2 {
            return Err(Error::shape(
                op,
                format!("the {name} needs at least 2 dimensions, but has {}", tensor.dim()),
            ));
        }
        if tensor.dtype() != query.dtype() {
            let operands = if name == "key" { "query and key" } else { "query and value" };
            let (first, second) = (query.dtype(), tensor.dtype());
            return Err(ErrorKind::OperandDTypes { operands, first, second }.of(op));
        }
    }
    if !(0.0..=1.0).contains(&options.dropout_p) {
        let reason = format!("dropout_p must be from 0 to 1, but is {}", options.dropout_p);
        return Err(Error::invalid(op, reason));
    }
    if let Some(lengths) = options.key_lengths {
        lengths.as_view().check_operand_dtype(op, "key_lengths", DType::I64)?;
    }
    if let Some(mask) = options.attn_mask {
        if options.is_causal {
            let reason = "a mask and is_causal cannot be given both";
            return Err(Error::invalid(op, reason));
        }
        if !mask.dtype().is_float() {
            let operand = "a mask that is not floating-point";
            mask.as_view().check_operand_dtype(op, operand, DType::Bool)?;
        }
    }
    Ok(())
}
