//! Products of matrices and vectors under PyTorch's names, sums of products, and the trace.

mod contract;
mod einsum;
mod matmul;
mod matrices;

pub use contract::TensordotDims;
pub use einsum::einsum;
pub use matrices::AddmmOptions;
