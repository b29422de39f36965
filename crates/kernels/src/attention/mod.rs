//! Attention: one fused launch for half-width floats ([`attention`]), and for other dtypes two
//! matrix products with a softmax of the scores between them ([`attention_weights`]).

mod fused;
#[cfg(test)]
mod tests;
mod weights;

use warpline_runtime::module::Program;

pub use fused::{
    Weighing, attention, attention_backward, attention_takes, few_queries, has_attention,
    has_few_queries,
};
pub use weights::{attention_weights, attention_weights_backward};

pub(crate) const PROGRAMS: &[&Program] = &[
    &fused::ATTENTION,
    &fused::ATTENTION_MASKED,
    &fused::ATTENTION_BACKWARD,
    &fused::ATTENTION_MASKED_BACKWARD,
    &fused::FEW_QUERIES,
    &weights::ATTENTION_WEIGHTS,
    &weights::ATTENTION_WEIGHTS_BACKWARD,
];
