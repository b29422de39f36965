//! The modules of `torch.nn`.

mod activation;
mod attention;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod losses;
mod norm;
mod pool;
mod recurrent;
mod sequential;
mod shape;

pub use activation::*;
pub use attention::{MultiheadAttention, MultiheadAttentionOptions};
pub use conv::*;
pub use dropout::{Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::Embedding;
pub use linear::{Bilinear, Linear};
pub use losses::*;
pub use norm::*;
pub use pool::*;
pub use recurrent::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell, RecurrentOptions};
pub use sequential::{Layer, Sequential};
pub use shape::{Flatten, Identity, Unflatten};
