//! Multi-head attention.

use warpline::__Called as _;
use warpline::functional::{AttentionOptions, linear, scaled_dot_product_attention};
use warpline::{
    CallScope, DType, Error, IntoOptionalTensor, IntoOptions, Result, Tensor, empty, ones, zeros,
};

use super::activation::floats;
use super::linear::{Linear, LinearOptions};
use super::options::parameter_options;
use crate::init::{xavier_uniform_, zeros_};
use crate::{Forward, Module, Parameter, Training, input_device};

parameter_options! {
    /// Options of [`MultiheadAttention`].
    MultiheadAttentionOptions [] [] {
        /// Sets the probability of dropping an attention weight in training, from 0 to 1. Default: 0.
        dropout: f64 = 0.0, f64;
        /// Sets whether the projections add biases. Default: `true`.
        bias: bool = true, bool;
        /// Sets whether inputs and outputs are `[batch, time, width]` instead of `[time, batch, width]`. Default:
        /// `false`.
        batch_first: bool = false, bool;
    }
}

warpline::__options! {
    /// Options of [`MultiheadAttention::forward`].
    #[derive(Clone, Copy, Debug)]
    MultiheadAttentionForwardOptions ['a] ['a] {
        /// Sets the mask, `[time, source time]` or `[batch · heads, time, source time]`. In a boolean mask, true means
        /// that the query may **not** see the key, as in PyTorch's module. A floating-point mask is added to the
        /// scores. Default: none.
        attn_mask: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the mask of keys, `[batch, source time]`, or `[source time]` for inputs without a batch. In a boolean
        /// mask, true means that no query may see the key. A floating-point mask is added to the scores. Default: none.
        key_padding_mask: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets whether a query attends only to keys up to its own position. Has no effect if there is an `attn_mask`.
        /// Default: `false`.
        is_causal: bool = false, bool;
    }
}

/// Multi-head attention (`torch.nn.MultiheadAttention`) for queries, keys and values of equal width. Does not return
/// the attention weights (`need_weights=False`).
#[derive(Clone, Debug, Module)]
pub struct MultiheadAttention {
    /// Projections of queries, keys and values, `[3 · width, width]`.
    pub in_proj_weight: Parameter,
    /// Biases of the projections of queries, keys and values, `[3 · width]`.
    pub in_proj_bias: Option<Parameter>,
    /// The output projection.
    pub out_proj: Linear,
    num_heads: usize,
    dropout: f64,
    batch_first: bool,
    training: Training,
}

impl MultiheadAttention {
    /// Creates a module for inputs of `width` features, which `num_heads` heads share. Parameters are initialised as in
    /// PyTorch. Default dtype: `float32`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `width` is 0, `num_heads` does not divide
    /// `width`, or `dropout` is not from 0 to 1; errors of [`empty`] and [`Tensor::uniform_`].
    #[track_caller]
    pub fn new(
        width: usize,
        num_heads: usize,
        options: impl IntoOptions<MultiheadAttentionOptions>,
    ) -> Result<Self> {
        let options = options.into_options();
        if width == 0 {
            return Err(Error::invalid(
                "MultiheadAttention",
                "a width must be at least 1, but is 0",
            ));
        }
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            let reason = format!("{num_heads} heads do not divide a width of {width}");
            return Err(Error::invalid("MultiheadAttention", reason));
        }
        if !(0.0..=1.0).contains(&options.dropout) {
            let reason =
                format!("dropout must be a probability, from 0 to 1, but is {}", options.dropout);
            return Err(Error::invalid("MultiheadAttention", reason));
        }
        Self::drawn(width, num_heads, &options).of("MultiheadAttention")
    }

    #[track_caller]
    fn drawn(width: usize, num_heads: usize, of: &MultiheadAttentionOptions) -> Result<Self> {
        let options = &floats(&of.tensor);
        let weight = empty([width.saturating_mul(3), width], options)?;
        // Draw in PyTorch's order: the output projection first.
        let out_proj = Linear::new(width, width, LinearOptions::from(options).bias(of.bias))?;
        xavier_uniform_(&weight, 1.0)?;
        let mut bias = None;
        if of.bias {
            bias = Some(Parameter::new(zeros([width.saturating_mul(3)], options)?)?);
        }
        if let Some(bias) = &out_proj.bias {
            zeros_(bias)?;
        }
        Ok(Self {
            in_proj_weight: Parameter::new(weight)?,
            in_proj_bias: bias,
            out_proj,
            num_heads,
            dropout: of.dropout,
            batch_first: of.batch_first,
            training: Training::default(),
        })
    }

    /// Computes attention. Queries are `[time, batch, width]`, keys and values `[source time, batch, width]`; with
    /// `batch_first` the batch comes first. Inputs without a batch have two dimensions. The result has the shape of the
    /// queries.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if an input does not have two or three
    /// dimensions, if `attn_mask` has neither two dimensions nor three with a first size that the number of heads
    /// divides, or if `key_padding_mask` has no dimensions;
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if `query` is on a device that cannot access
    /// the parameters; errors of [`linear()`] and [`scaled_dot_product_attention`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: impl IntoOptions<MultiheadAttentionForwardOptions<'a>>,
    ) -> Result<Tensor> {
        let op = "MultiheadAttention";
        let _call = CallScope::enter(op);
        input_device::check(op, query, "in_proj_weight", &self.in_proj_weight)?;
        self.apply(query, key, value, options.into_options())
    }

    #[track_caller]
    fn apply(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadAttentionForwardOptions<'_>,
    ) -> Result<Tensor> {
        let MultiheadAttentionForwardOptions { attn_mask, key_padding_mask, is_causal } = options;
        let mask = match attn_mask {
            None if is_causal && key_padding_mask.is_some() => {
                let time = |x: &Tensor| match (x.dim(), self.batch_first) {
                    (3, true) => x.size()[1],
                    _ => x.size().first().copied().unwrap_or(1),
                };
                Some(ones((time(query), time(key)), (DType::Bool, query.device()))?.triu(1)?)
            }
            mask => mask.cloned(),
        };
        let mask = match mask {
            Some(mask) if mask.dim() == 3 && mask.size()[0].is_multiple_of(self.num_heads) => {
                Some(mask.unflatten(0, [mask.size()[0] / self.num_heads, self.num_heads])?)
            }
            Some(mask) if mask.dim() != 2 => {
                let reason = format!(
                    "expects a mask of [time, other time] or [batch · {} heads, time, other time], not {:?}",
                    self.num_heads,
                    mask.size()
                );
                return Err(Error::invalid("MultiheadAttention", reason));
            }
            mask => mask,
        };
        let mask = match key_padding_mask {
            None => mask,
            Some(padding) => {
                let [.., keys] = *padding.size() else {
                    let reason = "expects a key_padding_mask of [batch, source time], not a number";
                    return Err(Error::invalid("MultiheadAttention", reason));
                };
                Some(both_masks(mask, padding.reshape((-1, 1, 1, keys))?)?)
            }
        };
        // The function's boolean masks are true where a query may see a key.
        let mask = match mask {
            Some(mask) if mask.dtype() == DType::Bool => Some(mask.logical_not()?),
            mask => mask,
        };
        let weights = self.in_proj_weight.chunk(3, 0)?;
        let biases = match &self.in_proj_bias {
            Some(bias) => Some(bias.chunk(3, 0)?),
            None => None,
        };
        let mut heads = Vec::with_capacity(3);
        for (i, x) in [query, key, value].into_iter().enumerate() {
            heads.push(self.heads(x, &weights[i], biases.as_ref().map(|b| &b[i]))?);
        }
        let options = AttentionOptions::new()
            .attn_mask(mask.as_ref())
            .dropout_p(if self.training.get() { self.dropout } else { 0.0 })
            .is_causal(is_causal && mask.is_none());
        let out = scaled_dot_product_attention(&heads[0], &heads[1], &heads[2], options)?;
        // From [batch, heads, time, width / heads] to the layout of the queries.
        let out = out.transpose(1, 2)?.flatten((2, 3))?;
        let out = self.out_proj.forward(&out)?;
        match (query.dim(), self.batch_first) {
            (2, _) => out.squeeze(0),
            (_, true) => Ok(out),
            (_, false) => out.transpose(0, 1),
        }
    }

    /// Projects an input and splits it into heads: `[batch, heads, time, width / heads]`.
    #[track_caller]
    fn heads(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let x = match (x.dim(), self.batch_first) {
            (2, _) => x.unsqueeze(0)?,
            (3, true) => x.clone(),
            (3, false) => x.transpose(0, 1)?,
            _ => {
                let reason = format!("expects [time, batch, width], not {:?}", x.size());
                return Err(Error::invalid("MultiheadAttention", reason));
            }
        };
        let x = linear(&x, weight, bias)?;
        let width = x.size()[2] / self.num_heads;
        x.unflatten(2, [self.num_heads, width])?.transpose(1, 2)
    }
}

/// Combines two masks. Two boolean masks give a boolean mask. Otherwise the result is the sum of the numbers that the
/// masks add to the scores.
#[track_caller]
fn both_masks(mask: Option<Tensor>, padding: Tensor) -> Result<Tensor> {
    let Some(mask) = mask else { return Ok(padding) };
    let dtype = match (mask.dtype(), padding.dtype()) {
        (DType::Bool, DType::Bool) => return mask.logical_or(&padding),
        (DType::Bool, dtype) | (dtype, _) => dtype,
    };
    let added = |mask: Tensor| match mask.dtype() {
        DType::Bool => mask.zeros_like(dtype)?.masked_fill(&mask, f64::NEG_INFINITY),
        _ => Ok(mask),
    };
    added(mask)?.add(&added(padding)?)
}

/// Takes queries, keys and values.
impl Forward<(Tensor, Tensor, Tensor)> for MultiheadAttention {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, (query, key, value): (Tensor, Tensor, Tensor)) -> Result<Tensor> {
        self.forward(&query, &key, &value, ())
    }
}
