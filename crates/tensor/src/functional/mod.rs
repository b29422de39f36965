//! Functions that layers and losses consist of (`torch.nn.functional`).
//!
//! The last argument holds the options: the arguments that have defaults in PyTorch, except a layer's bias. Pass `()`
//! for the defaults, or a struct with a setter per option:
//!
//! ```
//! use warpline::functional::{CrossEntropyLossOptions, cross_entropy};
//! use warpline::{tensor, zeros};
//!
//! let (logits, classes) = (zeros([2, 4], ())?, tensor([1i64, 3], ())?);
//! let loss = cross_entropy(&logits, &classes, ())?;
//! assert_eq!(loss.item::<f32>()?, 4f32.ln());
//! let smooth = CrossEntropyLossOptions::new().label_smoothing(0.1);
//! assert_eq!(cross_entropy(&logits, &classes, smooth)?.item::<f32>()?, 4f32.ln());
//! # Ok::<(), warpline::Error>(())
//! ```

mod activation;
mod attention;
mod conv;
mod distances;
mod dropout;
mod fold;
mod interpolate;
mod kv_cache;
mod linear;
mod loss;
mod normalization;
pub(crate) mod options;
mod pad;
mod pixels;
mod pool;
mod rotary;
mod sparse;
mod window;

pub use activation::{
    Approximate, CELUOptions, ELUOptions, GLUOptions, HardshrinkOptions, HardtanhOptions,
    LeakyReLUOptions, SoftplusOptions, SoftshrinkOptions, celu, celu_, elu, elu_, gelu, glu,
    hardshrink, hardsigmoid, hardswish, hardtanh, hardtanh_, leaky_relu, leaky_relu_, log_softmax,
    logsigmoid, mish, prelu, relu, relu_, relu6, selu, selu_, sigmoid, silu, silu_mul, softmax,
    softmin, softplus, softshrink, softsign, tanh, tanhshrink, threshold, threshold_,
};
pub use attention::{AttentionOptions, scaled_dot_product_attention};
pub use conv::{
    ConvOptions, ConvTransposeOptions, IntoPadding, Padding, conv_transpose1d, conv_transpose2d,
    conv_transpose3d, conv1d, conv2d, conv3d,
};
pub use distances::{CosineSimilarityOptions, NormalizeOptions, cosine_similarity, normalize};
pub use dropout::{DropoutOptions, dropout, dropout1d, dropout2d, dropout3d};
pub use fold::{FoldOptions, fold, unfold};
pub use interpolate::{InterpolateMode, InterpolateOptions, ScaleFactor, interpolate};
pub use kv_cache::KvCache;
pub use linear::{bilinear, linear, linear_silu_mul};
pub use loss::{
    BCELossOptions, BCEWithLogitsLossOptions, CrossEntropyLossOptions, HuberLossOptions,
    KLDivLossOptions, NLLLossOptions, Reduction, SmoothL1LossOptions, binary_cross_entropy,
    binary_cross_entropy_with_logits, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss,
    nll_loss, smooth_l1_loss,
};
pub use normalization::{
    BatchNormOptions, GroupNormOptions, InstanceNormOptions, LayerNormOptions, RMSNormOptions,
    add_layer_norm, add_rms_norm, batch_norm, group_norm, instance_norm, layer_norm, rms_norm,
};
pub use options::PerDimension;
pub use pad::{PadMode, pad};
pub use pixels::{pixel_shuffle, pixel_unshuffle};
pub use pool::{
    AvgPoolOptions, MaxPoolOptions, adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d,
    adaptive_max_pool1d, adaptive_max_pool1d_with_indices, adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices, adaptive_max_pool3d, adaptive_max_pool3d_with_indices,
    avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool1d_with_indices, max_pool2d,
    max_pool2d_with_indices, max_pool3d, max_pool3d_with_indices,
};
pub use rotary::{RotaryEmbeddingOptions, rotary_embedding};
pub use sparse::{EmbeddingOptions, OneHotOptions, embedding, one_hot};
