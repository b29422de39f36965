//! Utilities for training programs (`torch.nn.utils`).

pub mod rnn;
