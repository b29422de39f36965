//! A small GPT: a decoder of pre-norm blocks, as in GPT-2.

use warpline::functional::{AttentionOptions, linear, scaled_dot_product_attention};
use warpline::{DType, Device, Result, Tensor, arange};
use warpline_nn::{Dropout, Embedding, Forward, LayerNorm, Linear, Module, Training, init};

/// Sizes of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) vocabulary: usize,
    /// Maximum number of tokens in the input.
    pub(crate) context: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) dropout: f64,
}

#[derive(Clone, Debug, Module)]
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    resid_dropout: Dropout,
    heads: usize,
    dropout: f64,
    training: Training,
}

impl Attention {
    fn new(sizes: &Sizes) -> Result<Self> {
        let width = sizes.width;
        Ok(Self {
            c_attn: Linear::new(width, 3 * width, ())?,
            c_proj: Linear::new(width, width, ())?,
            resid_dropout: Dropout::new(sizes.dropout)?,
            heads: sizes.heads,
            dropout: sizes.dropout,
            training: Training::default(),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, time, width) = (x.size()[0], x.size()[1], x.size()[2]);
        // [3, batch, heads, time, width / heads]: queries, keys and values.
        let qkv = self.c_attn.forward(x)?;
        let qkv = qkv.reshape([batch, time, 3, self.heads, width / self.heads])?;
        let qkv = qkv.permute([2, 0, 3, 1, 4])?;
        let dropout_p = if self.training.get() { self.dropout } else { 0.0 };
        let options = AttentionOptions::new().is_causal(true).dropout_p(dropout_p);
        let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
        let y = scaled_dot_product_attention(&q, &k, &v, options)?;
        let y = y.transpose(1, 2)?.reshape([batch, time, width])?;
        self.resid_dropout.forward(&self.c_proj.forward(&y)?)
    }
}

#[derive(Clone, Debug, Module)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
    dropout: Dropout,
}

impl Mlp {
    fn new(sizes: &Sizes) -> Result<Self> {
        let width = sizes.width;
        Ok(Self {
            c_fc: Linear::new(width, 4 * width, ())?,
            c_proj: Linear::new(4 * width, width, ())?,
            dropout: Dropout::new(sizes.dropout)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.dropout.forward(&self.c_proj.forward(&self.c_fc.forward(x)?.gelu_tanh()?)?)
    }
}

#[derive(Clone, Debug, Module)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn new(sizes: &Sizes) -> Result<Self> {
        Ok(Self {
            ln_1: LayerNorm::new(sizes.width, ())?,
            attn: Attention::new(sizes)?,
            ln_2: LayerNorm::new(sizes.width, ())?,
            mlp: Mlp::new(sizes)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attn.forward(&self.ln_1.forward(x)?)?)?;
        x.add(&self.mlp.forward(&self.ln_2.forward(&x)?)?)
    }
}

/// The model. Its output layer is tied to the token embedding.
#[derive(Clone, Debug, Module)]
pub(crate) struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Gpt {
    /// Creates a model with GPT-2's initialisation. Parameters are drawn on the host, so that they are the same on
    /// every device.
    pub(crate) fn new(sizes: &Sizes, device: Device) -> Result<Self> {
        let mut gpt = Self {
            wte: Embedding::new(sizes.vocabulary, sizes.width, ())?,
            wpe: Embedding::new(sizes.context, sizes.width, ())?,
            drop: Dropout::new(sizes.dropout)?,
            h: (0..sizes.layers).map(|_| Block::new(sizes)).collect::<Result<_>>()?,
            ln_f: LayerNorm::new(sizes.width, ())?,
        };
        for (name, parameter) in gpt.named_parameters() {
            if name.ends_with("bias") {
                init::zeros_(&parameter)?;
            } else if parameter.dim() == 2 {
                // GPT-2 scales the layers that add to the residual stream by 1/√(number of such layers).
                let parts = if name.contains("c_proj") { 2.0 * sizes.layers as f64 } else { 1.0 };
                init::normal_(&parameter, (0.0, 0.02 / parts.sqrt()))?;
            }
        }
        gpt.to(device)?;
        Ok(gpt)
    }
}

/// Computes the logits of the successor of each token: `[batch, time]` to `[batch, time, vocabulary]`.
impl Forward<Tensor> for Gpt {
    type Output = Tensor;

    fn forward(&self, tokens: Tensor) -> Result<Tensor> {
        let places = arange(tokens.size()[1] as i64, (DType::I64, tokens.device()))?;
        let x = self.wte.forward(&tokens)?.add(&self.wpe.forward(&places)?)?;
        let mut x = self.drop.forward(&x)?;
        for block in &self.h {
            x = block.forward(&x)?;
        }
        linear(&self.ln_f.forward(&x)?, &self.wte.weight, None)
    }
}
