//! `torch.nn.functional`: functions of tensors that layers and losses are made of.
//!
//! Where PyTorch has more than two options with defaults there is a struct of them:
//!
//! ```
//! use warpline::functional::{CrossEntropyOptions, cross_entropy};
//! use warpline::{tensor, zeros};
//!
//! let (logits, classes) = (zeros([2, 4], ())?, tensor([1i64, 3], ())?);
//! let loss = cross_entropy(&logits, &classes, &CrossEntropyOptions::default())?;
//! assert_eq!(loss.item::<f32>()?, 4f32.ln());
//! let smooth = CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() };
//! assert_eq!(cross_entropy(&logits, &classes, &smooth)?.item::<f32>()?, 4f32.ln());
//! # Ok::<(), warpline::Error>(())
//! ```

mod attention;
mod batch_norm;
mod cross_entropy;
mod distances;
mod dropout;
mod gates;
mod linear;
mod losses;
mod norms;
mod pad;
mod pixels;

pub use attention::{AttentionOptions, scaled_dot_product_attention};
pub use batch_norm::{BatchNormOptions, InstanceNormOptions, batch_norm, instance_norm};
pub use cross_entropy::{CrossEntropyOptions, NllLossOptions, cross_entropy, nll_loss};
pub use distances::{cosine_similarity, normalize};
pub use dropout::{dropout, dropout1d, dropout2d, dropout3d};
pub use gates::{glu, softmin};
pub use linear::linear;
pub use losses::{
    Reduction, binary_cross_entropy, binary_cross_entropy_with_logits, huber_loss, kl_div, l1_loss,
    mse_loss, smooth_l1_loss,
};
pub use norms::{group_norm, layer_norm, rms_norm};
pub use pad::{PadMode, pad};
pub use pixels::{pixel_shuffle, pixel_unshuffle};
