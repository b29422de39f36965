//! Losses that compare elements, and classification losses.

mod classes;
mod elements;
mod fused_cross_entropy;
mod options;

pub use classes::{cross_entropy, nll_loss};
pub use elements::{
    Reduction, binary_cross_entropy, binary_cross_entropy_with_logits, huber_loss, kl_div, l1_loss,
    mse_loss, smooth_l1_loss,
};
pub use options::{
    BCELossOptions, BCEWithLogitsLossOptions, CrossEntropyLossOptions, HuberLossOptions,
    KLDivLossOptions, NLLLossOptions, SmoothL1LossOptions,
};
