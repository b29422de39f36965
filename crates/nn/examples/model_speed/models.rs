//! The models that `model_speed` measures.

use warpline::functional::{AttentionOptions, cross_entropy, linear, scaled_dot_product_attention};
use warpline::{DType, Result, Tensor, arange};
use warpline_nn::{Embedding, LayerNorm, Linear, Module, ReLU, Sequential};

/// Three linear layers with inputs of width 256.
pub(crate) fn mlp() -> Result<Sequential> {
    Ok(Sequential::new()
        .with(Linear::new(256, 256, ())?)
        .with(ReLU)
        .with(Linear::new(256, 256, ())?)
        .with(ReLU)
        .with(Linear::new(256, 10, ())?))
}

/// Sizes of a GPT.
#[derive(Clone, Copy)]
pub(crate) struct GptSizes {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    pub(crate) length: usize,
}

#[derive(Clone, Module)]
struct Block {
    ln_1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    ln_2: LayerNorm,
    fc: Linear,
    out: Linear,
    heads: usize,
}

impl Block {
    fn new(width: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            ln_1: LayerNorm::new([width], ())?,
            qkv: Linear::new(width, 3 * width, ())?,
            proj: Linear::new(width, width, ())?,
            ln_2: LayerNorm::new([width], ())?,
            fc: Linear::new(width, 4 * width, ())?,
            out: Linear::new(4 * width, width, ())?,
            heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, l, width] = [0, 1, 2].map(|d| x.size()[d] as isize);
        let heads = self.heads as isize;
        let split = self.qkv.forward(&self.ln_1.forward(x)?)?.split(width as usize, 2)?;
        let apart = |t: &Tensor| t.view([b, l, heads, width / heads])?.transpose(1, 2);
        let causal = AttentionOptions::new().is_causal(true);
        let (q, k, v) = (apart(&split[0])?, apart(&split[1])?, apart(&split[2])?);
        let y = scaled_dot_product_attention(&q, &k, &v, causal)?;
        let y = y.transpose(1, 2)?.reshape([b, l, width])?;
        let x = x.add(&self.proj.forward(&y)?)?;
        let y = self.fc.forward(&self.ln_2.forward(&x)?)?.gelu_tanh()?;
        x.add(&self.out.forward(&y)?)
    }
}

/// GPT-2 with tied embeddings.
#[derive(Clone, Module)]
pub(crate) struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

impl Gpt {
    pub(crate) fn new(sizes: GptSizes) -> Result<Self> {
        let GptSizes { width, heads, layers, vocabulary, length } = sizes;
        Ok(Self {
            wte: Embedding::new(vocabulary, width, ())?,
            wpe: Embedding::new(length, width, ())?,
            h: (0..layers).map(|_| Block::new(width, heads)).collect::<Result<_>>()?,
            ln_f: LayerNorm::new([width], ())?,
        })
    }

    /// Returns the mean cross entropy of `[batch, length]` tokens and the expected next tokens.
    pub(crate) fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let positions = arange(tokens.size()[1] as i64, tokens.device())?;
        let mut x = self.wte.forward(tokens)?.add(&self.wpe.forward(&positions)?)?;
        for block in &self.h {
            x = block.forward(&x)?;
        }
        let logits = linear(&self.ln_f.forward(&x)?, &self.wte.weight, None)?;
        let classes = logits.size()[2] as isize;
        let logits = logits.view([-1, classes])?.to(DType::F32)?;
        cross_entropy(&logits, &targets.view([-1])?, ())
    }
}
