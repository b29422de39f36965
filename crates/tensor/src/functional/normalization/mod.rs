//! Normalization: `layer_norm` and `rms_norm`, also of the sum with a residual, `group_norm`, `batch_norm` and
//! `instance_norm`.

mod fused_batch_norm;
mod fused_layer_norm;
mod per_channel;
mod per_sample;

pub use per_channel::{BatchNormOptions, InstanceNormOptions, batch_norm, instance_norm};
pub use per_sample::{
    GroupNormOptions, LayerNormOptions, RMSNormOptions, add_layer_norm, add_rms_norm, group_norm,
    layer_norm, rms_norm,
};
