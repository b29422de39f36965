//! Warpline's ops: a folder per family of kernels, on what `warpline_runtime` gives.
//!
//! Every op has a CUDA kernel with committed PTX, a CPU implementation, a shape and dtype rule and
//! shared tests, all in one place. Ops take [`View`](warpline_runtime::View)s and a
//! [`Target`](warpline_runtime::Target); the tensor façade above makes the results' memory and
//! picks the target.

#[cfg(test)]
mod any_view_tests;
pub mod attention;
pub mod cat;
pub mod collective;
pub mod conv;
pub mod copy;
mod dim;
pub mod elementwise;
pub mod fill;
pub mod indexing;
pub mod loss;
mod math;
pub mod matmul;
pub mod norm;
pub mod optim;
pub mod pool;
mod programs;
pub mod random;
pub mod reduce;
pub mod resample;
pub mod scan;
pub mod scatter;
mod scratch;
pub mod softmax;
pub mod sort;
mod turn;
mod window;

pub use programs::programs;

/// The program of this crate's README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
