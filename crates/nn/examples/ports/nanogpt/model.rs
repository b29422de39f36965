//! The GPT (`model.py`).

use warpline::autograd::no_grad;
use warpline::functional::{
    AttentionOptions, CrossEntropyLossOptions, LayerNormOptions, cross_entropy, layer_norm,
    scaled_dot_product_attention, softmax,
};
use warpline::{Error, Result, Tensor, arange, cat, expr, ones, zeros};
use warpline_nn::optim::{AdamW, AdamWOptions, ParamGroup};
use warpline_nn::{
    Dropout, Embedding, GELU, Linear, LinearOptions, Module, Parameter, Training, init,
};

/// Layer norm with an optional bias.
#[derive(Debug, Module)]
struct LayerNorm {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl LayerNorm {
    fn new(ndim: usize, bias: bool) -> Result<Self> {
        let weight = Parameter::new(ones([ndim], ())?)?;
        let bias = if bias { Some(Parameter::new(zeros([ndim], ())?)?) } else { None };
        Ok(Self { weight, bias })
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let options = LayerNormOptions::new().weight(&self.weight).bias(self.bias.as_deref());
        layer_norm(input, self.weight.size(), options.eps(1e-5))
    }
}

#[derive(Debug, Module)]
struct CausalSelfAttention {
    c_attn: Linear,
    c_proj: Linear,
    resid_dropout: Dropout,
    n_head: usize,
    n_embd: usize,
    dropout: f64,
    training: Training,
}

impl CausalSelfAttention {
    fn new(config: &GPTConfig) -> Result<Self> {
        let options = || LinearOptions::new().bias(config.bias);
        Ok(Self {
            c_attn: Linear::new(config.n_embd, 3 * config.n_embd, options())?,
            c_proj: Linear::new(config.n_embd, config.n_embd, options())?,
            resid_dropout: Dropout::new(config.dropout)?,
            n_head: config.n_head,
            n_embd: config.n_embd,
            dropout: config.dropout,
            training: Training::default(),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, t, c] = x.dims()?;
        let qkv = self.c_attn.forward(x)?.split(self.n_embd, 2)?;
        let heads = |x: &Tensor| x.view((b, t, self.n_head, c / self.n_head))?.transpose(1, 2);
        let (q, k, v) = (heads(&qkv[0])?, heads(&qkv[1])?, heads(&qkv[2])?);
        let dropout_p = if self.training.get() { self.dropout } else { 0.0 };
        let options = AttentionOptions::new().dropout_p(dropout_p).is_causal(true);
        let y = scaled_dot_product_attention(&q, &k, &v, options)?;
        let y = y.transpose(1, 2)?.contiguous()?.view((b, t, c))?;
        self.resid_dropout.forward(&self.c_proj.forward(&y)?)
    }
}

#[derive(Debug, Module)]
struct MLP {
    c_fc: Linear,
    gelu: GELU,
    c_proj: Linear,
    dropout: Dropout,
}

impl MLP {
    fn new(config: &GPTConfig) -> Result<Self> {
        let options = || LinearOptions::new().bias(config.bias);
        Ok(Self {
            c_fc: Linear::new(config.n_embd, 4 * config.n_embd, options())?,
            gelu: GELU::new(()),
            c_proj: Linear::new(4 * config.n_embd, config.n_embd, options())?,
            dropout: Dropout::new(config.dropout)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.c_fc.forward(x)?;
        let x = self.gelu.forward(&x)?;
        let x = self.c_proj.forward(&x)?;
        self.dropout.forward(&x)
    }
}

#[derive(Debug, Module)]
struct Block {
    ln_1: LayerNorm,
    attn: CausalSelfAttention,
    ln_2: LayerNorm,
    mlp: MLP,
}

impl Block {
    fn new(config: &GPTConfig) -> Result<Self> {
        Ok(Self {
            ln_1: LayerNorm::new(config.n_embd, config.bias)?,
            attn: CausalSelfAttention::new(config)?,
            ln_2: LayerNorm::new(config.n_embd, config.bias)?,
            mlp: MLP::new(config)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = expr!(x + self.attn.forward(&self.ln_1.forward(x)))?;
        expr!(x + self.mlp.forward(&self.ln_2.forward(&x)))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GPTConfig {
    pub(crate) block_size: usize,
    pub(crate) vocab_size: usize,
    pub(crate) n_layer: usize,
    pub(crate) n_head: usize,
    pub(crate) n_embd: usize,
    pub(crate) dropout: f64,
    pub(crate) bias: bool,
}

#[derive(Debug, Module)]
struct Transformer {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Debug, Module)]
pub(crate) struct GPT {
    #[module(skip)]
    config: GPTConfig,
    transformer: Transformer,
    lm_head: Linear,
}

impl GPT {
    pub(crate) fn new(config: GPTConfig) -> Result<Self> {
        let blocks = (0..config.n_layer).map(|_| Block::new(&config));
        let mut transformer = Transformer {
            wte: Embedding::new(config.vocab_size, config.n_embd, ())?,
            wpe: Embedding::new(config.block_size, config.n_embd, ())?,
            drop: Dropout::new(config.dropout)?,
            h: blocks.collect::<Result<_>>()?,
            ln_f: LayerNorm::new(config.n_embd, config.bias)?,
        };
        let options = LinearOptions::new().bias(false);
        let lm_head = Linear::new(config.n_embd, config.vocab_size, options)?;
        transformer.wte.weight = lm_head.weight.clone();
        let mut gpt = Self { config, transformer, lm_head };
        gpt.apply(init_weights)?;
        for (pn, p) in gpt.named_parameters() {
            if pn.ends_with("c_proj.weight") {
                init::normal_(&p, (0.0, 0.02 / (2.0 * config.n_layer as f64).sqrt()))?;
            }
        }
        println!("number of parameters: {:.2}M", gpt.get_num_params() as f64 / 1e6);
        Ok(gpt)
    }

    /// Returns the number of parameters without the position embeddings.
    fn get_num_params(&self) -> usize {
        let n_params: usize = self.parameters().iter().map(|p| p.numel()).sum();
        n_params - self.transformer.wpe.weight.numel()
    }

    /// Returns the logits of the next characters and the loss. Without targets, the logits are those of the last
    /// position only.
    pub(crate) fn forward(
        &self,
        idx: &Tensor,
        targets: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let [_, t] = idx.dims()?;
        if t > self.config.block_size {
            let block_size = self.config.block_size;
            let reason = format!("a sequence of {t} exceeds the block size {block_size}");
            return Err(Error::invalid("GPT", reason));
        }
        let pos = arange(t, idx.device())?;
        let tok_emb = self.transformer.wte.forward(idx)?;
        let pos_emb = self.transformer.wpe.forward(&pos)?;
        let mut x = self.transformer.drop.forward(&expr!(tok_emb + pos_emb)?)?;
        for block in &self.transformer.h {
            x = block.forward(&x)?;
        }
        let x = self.transformer.ln_f.forward(&x)?;
        let Some(targets) = targets else {
            return Ok((self.lm_head.forward(&x.i((.., -1..))?)?, None));
        };
        let logits = self.lm_head.forward(&x)?;
        let options = CrossEntropyLossOptions::new().ignore_index(-1);
        let loss = cross_entropy(&logits.flatten((0, 1))?, &targets.view(-1)?, options)?;
        Ok((logits, Some(loss)))
    }

    pub(crate) fn configure_optimizers(
        &self,
        weight_decay: f64,
        learning_rate: f64,
        betas: (f64, f64),
    ) -> Result<AdamW> {
        let (decay_params, nodecay_params): (Vec<_>, Vec<_>) =
            self.parameters().into_iter().partition(|p| p.dim() >= 2);
        let count = |params: &[Tensor]| params.iter().map(Tensor::numel).sum::<usize>();
        for (name, params) in [("decayed", &decay_params), ("non-decayed", &nodecay_params)] {
            let (tensors, numel) = (params.len(), count(params));
            println!("num {name} parameter tensors: {tensors}, with {numel} parameters");
        }
        let options = AdamWOptions::new().lr(learning_rate).betas(betas);
        let groups = vec![
            ParamGroup::new(decay_params).options(options.weight_decay(weight_decay)),
            ParamGroup::new(nodecay_params).options(options.weight_decay(0.0)),
        ];
        AdamW::new(groups, options)
    }

    /// Estimates the fraction of an A100's peak throughput in `bfloat16` (MFU).
    pub(crate) fn estimate_mfu(&self, fwdbwd_per_iter: usize, dt: f64) -> f64 {
        let GPTConfig { n_layer, n_head, n_embd, block_size, .. } = self.config;
        let attention = 12 * n_layer * n_head * (n_embd / n_head) * block_size;
        let flops_per_token = 6 * self.get_num_params() + attention;
        let flops_per_iter = flops_per_token * block_size * fwdbwd_per_iter;
        flops_per_iter as f64 / dt / 312e12
    }

    /// Appends `max_new_tokens` sampled characters to `idx`, `[batch, time]`.
    pub(crate) fn generate(
        &self,
        idx: &Tensor,
        max_new_tokens: usize,
        temperature: f64,
        top_k: Option<usize>,
    ) -> Result<Tensor> {
        no_grad(|| {
            let mut idx = idx.clone();
            for _ in 0..max_new_tokens {
                let begin = idx.size()[1].saturating_sub(self.config.block_size);
                let (logits, _) = self.forward(&idx.i((.., begin..))?, None)?;
                let logits = expr!(logits.i((.., -1)) / temperature)?;
                if let Some(k) = top_k {
                    let (v, _) = logits.topk(k.min(self.config.vocab_size), ())?;
                    let unlikely = expr!(logits < v.i((.., -1..)))?;
                    logits.masked_fill_(&unlikely, f64::NEG_INFINITY)?;
                }
                let idx_next = softmax(&logits, -1)?.multinomial(1, ())?;
                idx = cat(&[idx, idx_next], 1)?;
            }
            Ok(idx)
        })
    }
}

fn init_weights(module: &mut dyn Module) -> Result<()> {
    if let Some(linear) = module.downcast_ref::<Linear>() {
        init::normal_(&linear.weight, (0.0, 0.02))?;
        if let Some(bias) = &linear.bias {
            init::zeros_(bias)?;
        }
    } else if let Some(embedding) = module.downcast_ref::<Embedding>() {
        init::normal_(&embedding.weight, (0.0, 0.02))?;
    }
    Ok(())
}
