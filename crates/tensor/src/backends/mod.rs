//! The libraries that compute ops on a GPU, and their settings (`torch.backends`).

pub mod cudnn;
