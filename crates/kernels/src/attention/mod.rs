//! Attention. [`attention`] and [`few_queries`] compute it in one launch, for half-width floats.
//! [`attention_weights`] computes the softmax of the scores between two matrix products, for all
//! floats.

mod flash;
mod weights;

use warpline_runtime::module::Program;

pub use flash::{
    ScoreOptions, attention, attention_backward, attention_takes, few_queries, has_attention,
    has_few_queries,
};
pub use weights::{attention_weights, attention_weights_backward};

pub(crate) const PROGRAMS: &[&Program] = &[
    &flash::ATTENTION,
    &flash::ATTENTION_MASKED,
    &flash::ATTENTION_BACKWARD,
    &flash::ATTENTION_MASKED_BACKWARD,
    &flash::FEW_QUERIES,
    &weights::ATTENTION_WEIGHTS,
    &weights::ATTENTION_WEIGHTS_BACKWARD,
];
