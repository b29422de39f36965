//! Encoders of the Transformer.

use warpline::__Called as _;
use warpline::functional::relu;
use warpline::{CallScope, IntoOptionalTensor, IntoOptions, Result, Tensor};

use super::attention::{
    MultiheadAttention, MultiheadAttentionForwardOptions, MultiheadAttentionOptions,
};
use super::dropout::Dropout;
use super::linear::{Linear, LinearOptions};
use super::normalization::{LayerNorm, LayerNormOptions};
use super::options::{check_layers, parameter_options};
use crate::{Forward, MemberMut, Module, VisitorMut};

/// A function between the linear maps of a [`TransformerEncoderLayer`], such as
/// [`relu`](warpline::functional::relu).
pub type Activation = fn(&Tensor) -> Result<Tensor>;

parameter_options! {
    /// Options of [`TransformerEncoderLayer`].
    TransformerEncoderLayerOptions [] [] {
        /// Sets the width between the linear maps. Default: 2048.
        dim_feedforward: usize = 2048, usize;
        /// Sets the probability of dropout in training, from 0 to 1. Default: 0.1.
        dropout: f64 = 0.1, f64;
        /// Sets the function between the linear maps. Default: [`relu`].
        activation: Option<Activation> = None, Activation => Some;
        /// Sets the number that is added to the variances of the norms. Default: 1e-5.
        layer_norm_eps: f64 = 1e-5, f64;
        /// Sets whether inputs and outputs are `[batch, time, width]` instead of `[time, batch, width]`. Default:
        /// `false`.
        batch_first: bool = false, bool;
        /// Sets whether the norms come before attention and feed-forward network instead of after them. Default:
        /// `false`.
        norm_first: bool = false, bool;
        /// Sets whether linear maps and norms add biases. Default: `true`.
        bias: bool = true, bool;
    }
}

warpline::__options! {
    /// Options of [`TransformerEncoderLayer::forward`] and [`TransformerEncoder::forward`].
    #[derive(Clone, Copy, Debug)]
    TransformerEncoderForwardOptions ['a] ['a] {
        /// Sets the mask of the attention, as [`MultiheadAttentionForwardOptions::attn_mask`]. Default: none.
        mask: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the mask of padded positions, as [`MultiheadAttentionForwardOptions::key_padding_mask`]. Default: none.
        src_key_padding_mask: Option<&'a Tensor> = None,
            impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets whether a position attends only to positions up to its own. Has no effect if there is a `mask`.
        /// Default: `false`.
        is_causal: bool = false, bool;
    }
}

/// Self-attention and a feed-forward network, each with dropout, a residual connection and a norm
/// (`torch.nn.TransformerEncoderLayer`).
///
/// ```
/// use warpline_nn::{TransformerEncoderForwardOptions, TransformerEncoderLayer};
///
/// let layer = TransformerEncoderLayer::new(16, 4, ())?;
/// let src = warpline::randn([5, 2, 16], ())?;
/// let causal = TransformerEncoderForwardOptions::new().is_causal(true);
/// assert_eq!(layer.forward(&src, causal)?.size(), [5, 2, 16]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct TransformerEncoderLayer {
    /// The self-attention.
    pub self_attn: MultiheadAttention,
    /// The first linear map of the feed-forward network.
    pub linear1: Linear,
    /// Dropout between the linear maps.
    pub dropout: Dropout,
    /// The second linear map of the feed-forward network.
    pub linear2: Linear,
    /// Norm of the self-attention.
    pub norm1: LayerNorm,
    /// Norm of the feed-forward network.
    pub norm2: LayerNorm,
    /// Dropout of the self-attention's result.
    pub dropout1: Dropout,
    /// Dropout of the feed-forward network's result.
    pub dropout2: Dropout,
    #[module(skip)]
    /// `None`: `relu`.
    activation: Option<Activation>,
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// Creates a layer for inputs of `d_model` features, which `nhead` heads share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `d_model` is 0, `nhead` does not divide
    /// it, or `dropout` is not from 0 to 1; errors of [`Linear::new`] and [`LayerNorm::new`].
    #[track_caller]
    pub fn new(
        d_model: usize,
        nhead: usize,
        options: impl IntoOptions<TransformerEncoderLayerOptions>,
    ) -> Result<Self> {
        Self::of(d_model, nhead, &options.into_options()).of("TransformerEncoderLayer")
    }

    #[track_caller]
    fn of(d_model: usize, nhead: usize, all: &TransformerEncoderLayerOptions) -> Result<Self> {
        let attention = MultiheadAttentionOptions::new().tensor(&all.tensor);
        let attention = attention.dropout(all.dropout).bias(all.bias).batch_first(all.batch_first);
        let linear = LinearOptions::new().tensor(&all.tensor).bias(all.bias);
        let norm =
            LayerNormOptions::new().tensor(&all.tensor).eps(all.layer_norm_eps).bias(all.bias);
        Ok(Self {
            self_attn: MultiheadAttention::new(d_model, nhead, attention)?,
            linear1: Linear::new(d_model, all.dim_feedforward, linear.clone())?,
            dropout: Dropout::new(all.dropout)?,
            linear2: Linear::new(all.dim_feedforward, d_model, linear)?,
            norm1: LayerNorm::new(d_model, norm.clone())?,
            norm2: LayerNorm::new(d_model, norm)?,
            dropout1: Dropout::new(all.dropout)?,
            dropout2: Dropout::new(all.dropout)?,
            activation: all.activation,
            norm_first: all.norm_first,
        })
    }

    /// Computes the result for `src`, `[time, batch, width]`; with `batch_first` the batch comes first. The result has
    /// the shape of `src`.
    ///
    /// # Errors
    /// The same as [`MultiheadAttention::forward`]; errors of [`Linear::forward`] and [`LayerNorm::forward`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        src: &Tensor,
        options: impl IntoOptions<TransformerEncoderForwardOptions<'a>>,
    ) -> Result<Tensor> {
        let _call = CallScope::enter("TransformerEncoderLayer");
        self.apply(src, options.into_options())
    }

    #[track_caller]
    fn apply(&self, x: &Tensor, options: TransformerEncoderForwardOptions<'_>) -> Result<Tensor> {
        if self.norm_first {
            let x = x.add(&self.attended(&self.norm1.forward(x)?, options)?)?;
            return x.add(&self.fed_forward(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&x.add(&self.attended(x, options)?)?)?;
        self.norm2.forward(&x.add(&self.fed_forward(&x)?)?)
    }

    #[track_caller]
    fn attended(
        &self,
        x: &Tensor,
        options: TransformerEncoderForwardOptions<'_>,
    ) -> Result<Tensor> {
        let options = MultiheadAttentionForwardOptions::new()
            .attn_mask(options.mask)
            .key_padding_mask(options.src_key_padding_mask)
            .is_causal(options.is_causal);
        self.dropout1.forward(&self.self_attn.forward(x, x, x, options)?)
    }

    #[track_caller]
    fn fed_forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.linear1.forward(x)?;
        let hidden = match self.activation {
            None => relu(&hidden)?,
            Some(activation) => {
                // Errors of the program's function must name its own ops and lines, not those of this call.
                let _own = CallScope::none();
                activation(&hidden)?
            }
        };
        self.dropout2.forward(&self.linear2.forward(&self.dropout.forward(&hidden)?)?)
    }

    /// Returns a layer with parameters of its own, of the same values.
    #[track_caller]
    fn copied(&self) -> Result<Self> {
        let (mut copy, mut result) = (self.clone(), Ok(()));
        copy.visit_mut(&mut VisitorMut::new(&mut |_, member| {
            if let MemberMut::Parameter(parameter) = member
                && result.is_ok()
            {
                let requires_grad = parameter.requires_grad();
                let copied = parameter.detach().copy();
                result = copied
                    .and_then(|tensor| tensor.requires_grad_(requires_grad))
                    .map(|tensor| parameter.replace(tensor));
            }
        }));
        result.map(|()| copy)
    }
}

impl Forward<Tensor> for TransformerEncoderLayer {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, src: Tensor) -> Result<Tensor> {
        self.forward(&src, ())
    }
}

warpline::__options! {
    /// Options of [`TransformerEncoder`].
    #[derive(Clone, Debug)]
    TransformerEncoderOptions [] [] {
        /// Sets the norm of the result. Default: none.
        norm: Option<LayerNorm> = None, LayerNorm => Some;
    }
}

/// A sequence of [`TransformerEncoderLayer`]s (`torch.nn.TransformerEncoder`).
///
/// ```
/// use warpline_nn::{LayerNorm, TransformerEncoder, TransformerEncoderLayer, TransformerEncoderOptions};
///
/// let layer = TransformerEncoderLayer::new(16, 4, ())?;
/// let norm = TransformerEncoderOptions::new().norm(LayerNorm::new(16, ())?);
/// let encoder = TransformerEncoder::new(&layer, 6, norm)?;
/// assert_eq!(encoder.forward(&warpline::randn([5, 2, 16], ())?, ())?.size(), [5, 2, 16]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// Norm of the result.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// Creates an encoder of `num_layers` copies of a layer. The copies have parameters of their own, which all begin
    /// with the values of `encoder_layer`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `num_layers` is above 65,536; errors of
    /// [`Tensor::copy`].
    #[track_caller]
    pub fn new(
        encoder_layer: &TransformerEncoderLayer,
        num_layers: usize,
        options: impl IntoOptions<TransformerEncoderOptions>,
    ) -> Result<Self> {
        const OP: &str = "TransformerEncoder";
        check_layers(OP, num_layers)?;
        let mut layers = Vec::new();
        for _ in 0..num_layers {
            layers.push(encoder_layer.copied().of(OP)?);
        }
        Ok(Self { layers, norm: options.into_options().norm })
    }

    /// Computes the result for `src`, `[time, batch, width]`; the layers' `batch_first` puts the batch first. The
    /// result has the shape of `src`.
    ///
    /// # Errors
    /// The same as [`TransformerEncoderLayer::forward`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        src: &Tensor,
        options: impl IntoOptions<TransformerEncoderForwardOptions<'a>>,
    ) -> Result<Tensor> {
        let _call = CallScope::enter("TransformerEncoder");
        let (options, mut output) = (options.into_options(), src.clone());
        for layer in &self.layers {
            output = layer.forward(&output, options)?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&output),
            None => Ok(output),
        }
    }
}

impl Forward<Tensor> for TransformerEncoder {
    type Output = Tensor;

    #[track_caller]
    fn forward(&self, src: Tensor) -> Result<Tensor> {
        self.forward(&src, ())
    }
}
