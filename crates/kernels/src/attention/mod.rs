//! Attention: fused into one launch for half-width floats ([`attention`]), and for the other dtypes as two matrix products with
//! a softmax between them, which this folder computes ([`attention_weights`]).

mod fused;
mod weights;

use warpline_runtime::module::Program;

pub use fused::{Weighing, attention, attention_backward, attention_takes, has_attention};
pub use weights::{attention_weights, attention_weights_backward};

pub(crate) const PROGRAMS: &[&Program] = &[
    &fused::ATTENTION,
    &fused::ATTENTION_BACKWARD,
    &weights::ATTENTION_WEIGHTS,
    &weights::ATTENTION_WEIGHTS_BACKWARD,
];
