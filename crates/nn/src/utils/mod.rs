//! Helpers of programs (`torch.nn.utils`).

pub mod rnn;
