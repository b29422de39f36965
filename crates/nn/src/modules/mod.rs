//! The modules of `torch.nn`.

mod activation;
mod attention;
mod dropout;
mod embedding;
mod linear;
mod losses;
mod norm;
mod recurrent;
mod sequential;
mod shape;

pub use activation::*;
pub use attention::{MultiheadAttention, MultiheadAttentionOptions};
pub use dropout::{Dropout, Dropout2d};
pub use embedding::Embedding;
pub use linear::{Bilinear, Linear};
pub use losses::*;
pub use norm::*;
pub use recurrent::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell, RecurrentOptions};
pub use sequential::{Layer, Sequential};
pub use shape::{Flatten, Identity, Unflatten};
