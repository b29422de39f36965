//! The modules of `torch.nn`.

mod activation;
mod linear;
mod rnn;
mod sequential;

pub use activation::ReLU;
pub use linear::Linear;
pub use rnn::RnnCell;
pub use sequential::{Layer, Sequential};
