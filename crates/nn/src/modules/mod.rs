//! The modules of `torch.nn`.

mod activation;
mod attention;
mod conv;
mod dict;
mod dropout;
mod embedding;
mod linear;
mod loss;
mod normalization;
mod options;
mod pad;
mod pool;
mod recurrent;
mod repr;
mod sequential;
mod shape;
mod transformer;

pub use activation::*;
pub use attention::{
    MultiheadAttention, MultiheadAttentionForwardOptions, MultiheadAttentionOptions,
};
pub use conv::*;
pub use dict::ModuleDict;
pub use dropout::{Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::{Embedding, EmbeddingFromPretrainedOptions, EmbeddingOptions};
pub use linear::{Bilinear, Linear, LinearOptions};
pub use loss::*;
pub use normalization::*;
pub use pad::*;
pub use pool::*;
pub use recurrent::{
    GRU, GRUCell, IntoStates, LSTM, LSTMCell, RNN, RNNCell, RecurrentCellOptions, RecurrentOptions,
};
pub use sequential::{Layer, Sequential};
pub use shape::{Flatten, FlattenOptions, Identity, Unflatten};
pub use transformer::*;
// Options that a module shares with its function.
pub use warpline::functional::{
    AvgPoolOptions, BCELossOptions, BCEWithLogitsLossOptions, CrossEntropyLossOptions,
    HuberLossOptions, InterpolateMode, InterpolateOptions, KLDivLossOptions, MaxPoolOptions,
    NLLLossOptions, Padding, Reduction, SmoothL1LossOptions,
};
