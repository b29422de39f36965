//! A decoder with the shape of Llama 3.2 1B: grouped heads, rotary embeddings, RMSNorm and tied embeddings.

use warpline::functional::{
    self, AttentionOptions, KvCache, add_rms_norm, linear, linear_silu_mul, rotary_embedding,
    scaled_dot_product_attention,
};
use warpline::{DType, Result, Tensor, arange, arange_start_step, cat, expr, stack, zeros};
use warpline_nn::{Embedding, Linear, LinearOptions, Module, RMSNorm, RMSNormOptions};

/// Sizes of a decoder.
#[derive(Clone, Copy)]
pub(crate) struct DecoderSizes {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// Number of positions for which the cache has room.
    pub(crate) capacity: usize,
}

#[derive(Module)]
struct Layer {
    n1: RMSNorm,
    n2: RMSNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    key_heads: usize,
}

/// The tensors that all layers of a step share.
struct Position<'a> {
    cos: Tensor,
    sin: Tensor,
    index: &'a Tensor,
    mask: Tensor,
}

/// Applies the rotary embedding to the two halves of each head.
fn rotate(x: Tensor, at: &Position<'_>) -> Result<Tensor> {
    let halves = x.chunk(2, -1)?;
    expr!(x * at.cos + cat(&[&-&halves[1], &halves[0]], -1)? * at.sin)
}

impl Layer {
    fn new(sizes: DecoderSizes) -> Result<Self> {
        let DecoderSizes { width, heads, key_heads, hidden, .. } = sizes;
        let narrow = width / heads * key_heads;
        let linear =
            |inputs, outputs| Linear::new(inputs, outputs, LinearOptions::new().bias(false));
        let norm = || RMSNorm::new([width], RMSNormOptions::new().eps(1e-5));
        Ok(Self {
            n1: norm()?,
            n2: norm()?,
            q: linear(width, width)?,
            k: linear(width, narrow)?,
            v: linear(width, narrow)?,
            o: linear(width, width)?,
            gate: linear(width, hidden)?,
            up: linear(width, hidden)?,
            down: linear(hidden, width)?,
            heads,
            key_heads,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        at: &Position<'_>,
        [keys, values]: &[Tensor; 2],
    ) -> Result<Tensor> {
        let [b, l, width] = x.dims()?;
        let apart =
            |t: Tensor, heads: usize| t.view((b, l, heads, width / self.heads))?.transpose(1, 2);
        let y = self.n1.forward(x)?;
        let q = rotate(apart(self.q.forward(&y)?, self.heads)?, at)?;
        let k = rotate(apart(self.k.forward(&y)?, self.key_heads)?, at)?;
        let v = apart(self.v.forward(&y)?, self.key_heads)?;
        keys.index_copy_(2, at.index, &k)?;
        values.index_copy_(2, at.index, &v)?;
        let options = AttentionOptions::new().attn_mask(&at.mask).enable_gqa(true);
        let y = scaled_dot_product_attention(&q, keys, values, options)?;
        let x = x.add(&self.o.forward(&y.transpose(1, 2)?.reshape([b, l, width])?)?)?;
        let y = self.n2.forward(&x)?;
        let y = self.gate.forward(&y)?.silu()?.mul(&self.up.forward(&y)?)?;
        x.add(&self.down.forward(&y)?)
    }
}

/// The decoder's parameters.
#[derive(Module)]
pub(crate) struct Decoder {
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RMSNorm,
}

impl Decoder {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        Ok(Self {
            embedding: Embedding::new(sizes.vocabulary, sizes.width, ())?,
            layers: (0..sizes.layers).map(|_| Layer::new(sizes)).collect::<Result<_>>()?,
            norm: RMSNorm::new([sizes.width], RMSNormOptions::new().eps(1e-5))?,
        })
    }
}

/// The state of decoding one sequence.
pub(crate) struct Decoding {
    token: Tensor,
    position: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    caches: Vec<[Tensor; 2]>,
    capacity: usize,
}

impl Decoding {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        let own = sizes.width / sizes.heads;
        let cache = || zeros([1, sizes.key_heads, sizes.capacity, own], (DType::BF16, "cuda"));
        let steps = arange_start_step(0.0, own as f64, 2.0, (DType::F32, "cuda"))?;
        Ok(Self {
            token: zeros([1, 1], (DType::I64, "cuda"))?,
            position: zeros([1], (DType::I64, "cuda"))?,
            positions: arange(sizes.capacity as i64, (DType::I64, "cuda"))?,
            frequencies: steps.mul(-500_000f64.ln() / own as f64)?.exp()?,
            caches: (0..sizes.layers).map(|_| Ok([cache()?, cache()?])).collect::<Result<_>>()?,
            capacity: sizes.capacity,
        })
    }

    /// Decodes one token.
    pub(crate) fn step(&self, model: &Decoder) -> Result<()> {
        let angles =
            self.position.to(DType::F32)?.unsqueeze(1)?.mul(&self.frequencies.unsqueeze(0)?)?;
        let angles = cat(&[&angles, &angles], -1)?.to(DType::BF16)?;
        let at = Position {
            cos: angles.cos()?,
            sin: angles.sin()?,
            index: &self.position,
            mask: self.positions.le(&self.position)?.view([1, 1, 1, self.capacity])?,
        };
        let mut x = model.embedding.forward(&self.token)?;
        for (layer, cache) in model.layers.iter().zip(&self.caches) {
            x = layer.forward(&x, &at, cache)?;
        }
        let logits = linear(&model.norm.forward(&x)?, &model.embedding.weight, None)?;
        self.token.copy_(&logits.argmax(-1)?, ())?;
        self.position.add_(1)?.remainder_(self.capacity as i64)?;
        Ok(())
    }
}

/// A layer in which one matrix product computes queries, keys and values, and one computes the gate and the
/// values that it multiplies.
#[derive(Module)]
struct FusedLayer {
    n1: RMSNorm,
    n2: RMSNorm,
    qkv: Linear,
    o: Linear,
    gate_up: Linear,
    down: Linear,
    heads: usize,
    key_heads: usize,
}

/// Adds the residual and normalizes. Returns the normalized sum and the sum.
fn add_norm(norm: &RMSNorm, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
    let options = functional::RMSNormOptions::new().weight(norm.weight.as_deref()).eps(1e-5);
    add_rms_norm(x, residual, [x.size()[x.dim() - 1]], options)
}

impl FusedLayer {
    fn new(sizes: DecoderSizes) -> Result<Self> {
        let DecoderSizes { width, heads, key_heads, hidden, .. } = sizes;
        let linear =
            |inputs, outputs| Linear::new(inputs, outputs, LinearOptions::new().bias(false));
        let norm = || RMSNorm::new([width], RMSNormOptions::new().eps(1e-5));
        Ok(Self {
            n1: norm()?,
            n2: norm()?,
            qkv: linear(width, width / heads * (heads + 2 * key_heads))?,
            o: linear(width, width)?,
            gate_up: linear(width, 2 * hidden)?,
            down: linear(hidden, width)?,
            heads,
            key_heads,
        })
    }

    /// Computes the layer. `x` is the result of the previous layer, and `residual` the sum to which it is
    /// added. Returns the same two tensors for the next layer.
    fn forward(
        &self,
        (x, residual): (&Tensor, &Tensor),
        (cos, sin): (&Tensor, &Tensor),
        cache: &KvCache,
    ) -> Result<(Tensor, Tensor)> {
        let [b, l, width] = x.dims()?;
        let (heads, key_heads) = (self.heads, self.key_heads);
        let (y, residual) = add_norm(&self.n1, x, residual)?;
        let y = self
            .qkv
            .forward(&y)?
            .view((b, l, heads + 2 * key_heads, width / heads))?
            .transpose(1, 2)?;
        let rotated = rotary_embedding(&y.narrow(1, 0, heads + key_heads)?, cos, sin, ())?;
        let (q, k) = (rotated.narrow(1, 0, heads)?, rotated.narrow(1, heads, key_heads)?);
        cache.append(&k, &y.narrow(1, heads + key_heads, key_heads)?)?;
        let options = AttentionOptions::new().key_lengths(cache.len()).enable_gqa(true);
        let y = scaled_dot_product_attention(&q, cache.keys(), cache.values(), options)?;
        let y = self.o.forward(&y.transpose(1, 2)?.reshape([b, l, width])?)?;
        let (y, residual) = add_norm(&self.n2, &y, &residual)?;
        Ok((self.down.forward(&linear_silu_mul(&y, &self.gate_up.weight)?)?, residual))
    }
}

/// The decoder, built from functions that compute several of its ops in one launch.
#[derive(Module)]
pub(crate) struct FusedDecoder {
    embedding: Embedding,
    layers: Vec<FusedLayer>,
    norm: RMSNorm,
}

impl FusedDecoder {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        Ok(Self {
            embedding: Embedding::new(sizes.vocabulary, sizes.width, ())?,
            layers: (0..sizes.layers).map(|_| FusedLayer::new(sizes)).collect::<Result<_>>()?,
            norm: RMSNorm::new([sizes.width], RMSNormOptions::new().eps(1e-5))?,
        })
    }
}

/// The state of decoding one sequence with a [`FusedDecoder`].
pub(crate) struct FusedDecoding {
    token: Tensor,
    /// Cosines and sines of all positions: `[capacity, 2, own / 2]`.
    angles: Tensor,
    caches: Vec<KvCache>,
    nothing: Tensor,
}

impl FusedDecoding {
    pub(crate) fn new(sizes: DecoderSizes) -> Result<Self> {
        let own = sizes.width / sizes.heads;
        let cache = [1, sizes.key_heads, sizes.capacity, own];
        let steps = arange_start_step(0.0, own as f64, 2.0, (DType::F32, "cuda"))?;
        let positions = arange(sizes.capacity as i64, (DType::F32, "cuda"))?.unsqueeze(1)?;
        let angles = positions.mul(&steps.mul(-500_000f64.ln() / own as f64)?.exp()?)?;
        Ok(Self {
            token: zeros([1, 1], (DType::I64, "cuda"))?,
            angles: stack(&[&angles.cos()?, &angles.sin()?], 1)?,
            caches: (0..sizes.layers)
                .map(|_| KvCache::new(cache, (DType::BF16, "cuda")))
                .collect::<Result<_>>()?,
            nothing: zeros([1, 1, sizes.width], (DType::BF16, "cuda"))?,
        })
    }

    /// Empties the caches.
    pub(crate) fn reset(&self) -> Result<()> {
        self.caches.iter().try_for_each(KvCache::reset)
    }

    /// Decodes one token.
    pub(crate) fn step(&self, model: &FusedDecoder) -> Result<()> {
        let angles = self.angles.index_select(0, self.caches[0].len())?;
        let (cos, sin) = (angles.select(1, 0)?, angles.select(1, 1)?);
        let (mut x, mut residual) = (model.embedding.forward(&self.token)?, self.nothing.clone());
        for (layer, cache) in model.layers.iter().zip(&self.caches) {
            (x, residual) = layer.forward((&x, &residual), (&cos, &sin), cache)?;
        }
        let (x, _) = add_norm(&model.norm, &x, &residual)?;
        let logits = linear(&x, &model.embedding.weight, None)?;
        self.token.copy_(&logits.argmax(-1)?, ())?;
        Ok(())
    }
}
