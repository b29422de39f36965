//! Losses: those of elements, and those of classes.

mod classes;
mod elements;
mod fused;

pub use classes::{CrossEntropyOptions, NllLossOptions, cross_entropy, nll_loss};
pub use elements::{
    Reduction, binary_cross_entropy, binary_cross_entropy_with_logits, huber_loss, kl_div, l1_loss,
    mse_loss, smooth_l1_loss,
};
