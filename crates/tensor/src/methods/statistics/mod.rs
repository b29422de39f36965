//! Statistics over dimensions, norms, and comparisons of whole tensors.

mod compare;
mod logsumexp;
mod nan;
mod norms;
mod variance;

pub use nan::DiffOptions;
pub use norms::{NormOptions, VectorNormOptions};
pub use variance::VarOptions;
