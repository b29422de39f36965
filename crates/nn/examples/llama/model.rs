//! The decoder of Llama. One matrix product computes queries, keys and values, and one computes the gate and
//! the values that it multiplies.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, ensure};
use warpline::functional::{
    AttentionOptions, KvCache, RMSNormOptions, add_rms_norm, linear, linear_silu_mul, rms_norm,
    rotary_embedding, scaled_dot_product_attention,
};
use warpline::{DType, Device, Result, Tensor, arange, cat, embedding, tensor};
use warpline_nn::load_file;

use super::config::Config;

/// The tensors of a folder that are not part of the model yet.
struct Weights {
    tensors: HashMap<String, Tensor>,
    dtype: DType,
}

impl Weights {
    /// Loads the weights in `folder`, one file or several with an index.
    fn load(folder: &Path, (dtype, device): (DType, Device)) -> anyhow::Result<Self> {
        let names = ["model.safetensors.index.json", "model.safetensors"];
        let path = names.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        let path = path.with_context(|| {
            format!(
                "{}: it has neither model.safetensors nor model.safetensors.index.json; download \
                 the weights, or save them with save_pretrained of transformers",
                folder.display()
            )
        })?;
        Ok(Self { tensors: load_file(path, device)?.into_iter().collect(), dtype })
    }

    /// Removes a tensor and converts it to the model's dtype.
    fn take(&mut self, name: &str, size: &[usize]) -> anyhow::Result<Tensor> {
        let tensor = self.tensors.remove(name).with_context(|| {
            format!("the weights have no `{name}`; config.json or a file belongs to another model")
        })?;
        ensure!(
            tensor.size() == size,
            "`{name}` has sizes {:?}, but config.json implies {size:?}; they belong to different models",
            tensor.size()
        );
        Ok(tensor.to(self.dtype)?)
    }

    /// Removes several matrices with the same number of columns, and joins their rows.
    fn join<const N: usize>(
        &mut self,
        prefix: &str,
        parts: [(&str, usize); N],
        columns: usize,
    ) -> anyhow::Result<Tensor> {
        let parts = parts
            .map(|(part, rows)| self.take(&format!("{prefix}.{part}.weight"), &[rows, columns]));
        let parts = parts.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        Ok(cat(&parts, 0)?)
    }
}

struct Layer {
    input_norm: Tensor,
    qkv: Tensor,
    out: Tensor,
    post_norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
}

impl Layer {
    fn take(weights: &mut Weights, index: usize, config: &Config) -> anyhow::Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let all = config.num_attention_heads * config.head_dim();
        let narrow = config.key_heads() * config.head_dim();
        let prefix = format!("model.layers.{index}");
        let (attention, mlp) = (format!("{prefix}.self_attn"), format!("{prefix}.mlp"));
        let qkv = [("q_proj", all), ("k_proj", narrow), ("v_proj", narrow)];
        let norm = |name| format!("{prefix}.{name}_layernorm.weight");
        Ok(Self {
            input_norm: weights.take(&norm("input"), &[width])?,
            qkv: weights.join(&attention, qkv, width)?,
            out: weights.take(&format!("{attention}.o_proj.weight"), &[width, all])?,
            post_norm: weights.take(&norm("post_attention"), &[width])?,
            gate_up: weights.join(&mlp, [("gate_proj", inner), ("up_proj", inner)], width)?,
            down: weights.take(&format!("{mlp}.down_proj.weight"), &[width, inner])?,
        })
    }
}

/// The model.
pub(crate) struct Llama {
    pub(crate) config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    /// Angles per position of the pairs of a head, `[1, head_dim / 2]`.
    frequencies: Tensor,
}

impl Llama {
    /// Loads the weights of the model in `folder`.
    pub(crate) fn load(
        folder: &Path,
        config: Config,
        (dtype, device): (DType, Device),
    ) -> anyhow::Result<Self> {
        let mut weights = Weights::load(folder, (dtype, device))?;
        let table = [config.vocab_size, config.hidden_size];
        let embedding = weights.take("model.embed_tokens.weight", &table)?;
        let head = if config.tie_word_embeddings {
            weights.tensors.remove("lm_head.weight"); // some files have a copy
            embedding.clone()
        } else {
            weights.take("lm_head.weight", &table)?
        };
        let layers = 0..config.num_hidden_layers;
        let layers = layers.map(|index| Layer::take(&mut weights, index, &config));
        let layers = layers.collect::<anyhow::Result<_>>()?;
        let norm = weights.take("model.norm.weight", &[config.hidden_size])?;
        // Old files also contain the rotary frequencies. The program computes them from the configuration
        // instead.
        let unused = weights.tensors.keys().find(|name| !name.ends_with("rotary_emb.inv_freq"));
        if let Some(name) = unused {
            anyhow::bail!("`{name}` is not a tensor of the model that config.json describes");
        }
        let frequencies = tensor(config.frequencies()?, device)?.unsqueeze(0)?;
        Ok(Self { config, embedding, layers, norm, head, frequencies })
    }

    pub(crate) fn device(&self) -> Device {
        self.embedding.device()
    }

    /// Returns the number of bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|layer| {
            let Layer { input_norm, qkv, out, post_norm, gate_up, down } = layer;
            [input_norm, qkv, out, post_norm, gate_up, down]
        });
        let head = (!self.config.tie_word_embeddings).then_some(&self.head);
        let all = layers.chain([&self.embedding, &self.norm]).chain(head);
        all.map(|weight| weight.numel() * weight.dtype().size()).sum()
    }

    /// Creates the caches of all layers for one text of up to `capacity` tokens.
    pub(crate) fn caches(&self, capacity: usize) -> Result<Vec<KvCache>> {
        let size = [1, self.config.key_heads(), capacity, self.config.head_dim()];
        let options = (self.embedding.dtype(), self.device());
        self.layers.iter().map(|_| KvCache::new(size, options)).collect()
    }

    /// Computes the logits of the successor of each token, or of the last token only if `all` is not set: `[1,
    /// n]` to `[1, n, vocabulary]` or `[1, 1, vocabulary]`. Appends the tokens to the caches, which must be
    /// empty if there are several tokens.
    pub(crate) fn forward(&self, tokens: &Tensor, caches: &[KvCache], all: bool) -> Result<Tensor> {
        let count = tokens.size()[1];
        let positions = arange(count as i64, (DType::I64, tokens.device()))?;
        let positions = positions.add(caches[0].len())?.unsqueeze(1)?;
        let angles = self.frequencies.mul(&positions)?;
        let angles = (&angles.cos()?, &angles.sin()?);
        let (mut x, mut residual) = (embedding(&self.embedding, tokens)?, None);
        for (layer, cache) in self.layers.iter().zip(caches) {
            let (y, sum) = self.add_norm(&x, residual, &layer.input_norm)?;
            let y = self.attend(layer, &y, angles, cache)?;
            let (y, sum) = self.add_norm(&y, Some(sum), &layer.post_norm)?;
            x = linear(&linear_silu_mul(&y, &layer.gate_up)?, &layer.down, None)?;
            residual = Some(sum);
        }
        let (x, _) = self.add_norm(&x, residual, &self.norm)?;
        let x = if all { x } else { x.narrow(1, -1, 1)? };
        linear(&x, &self.head, None)
    }

    /// Adds the residual, if any, and normalizes. Returns the normalized sum and the sum.
    fn add_norm(
        &self,
        x: &Tensor,
        residual: Option<Tensor>,
        weight: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let options = RMSNormOptions::new().weight(weight).eps(self.config.rms_norm_eps);
        match residual {
            Some(residual) => add_rms_norm(x, &residual, [self.config.hidden_size], options),
            None => Ok((rms_norm(x, [self.config.hidden_size], options)?, x.clone())),
        }
    }

    fn attend(
        &self,
        layer: &Layer,
        x: &Tensor,
        (cos, sin): (&Tensor, &Tensor),
        cache: &KvCache,
    ) -> Result<Tensor> {
        let (heads, key_heads) = (self.config.num_attention_heads, self.config.key_heads());
        let (count, width) = (x.size()[1], self.config.head_dim());
        let qkv = linear(x, &layer.qkv, None)?;
        let qkv = qkv.view([1, count, heads + 2 * key_heads, width])?.transpose(1, 2)?;
        let rotated = rotary_embedding(&qkv.narrow(1, 0, heads + key_heads)?, cos, sin, ())?;
        let (q, k) = (rotated.narrow(1, 0, heads)?, rotated.narrow(1, heads, key_heads)?);
        let v = qkv.narrow(1, heads + key_heads, key_heads)?;
        cache.append(&k, &v)?;
        let options = AttentionOptions::new().enable_gqa(true);
        let y = if count > 1 {
            scaled_dot_product_attention(&q, &k, &v, options.is_causal(true))?
        } else {
            let options = options.key_lengths(cache.len());
            scaled_dot_product_attention(&q, cache.keys(), cache.values(), options)?
        };
        linear(&y.transpose(1, 2)?.reshape([1, count, heads * width])?, &layer.out, None)
    }
}
