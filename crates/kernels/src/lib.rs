//! Warpline's ops, in one module per family of kernels, on top of `warpline_runtime`.
//!
//! Each op's folder holds its CUDA kernel, its CPU implementation, and its shape and dtype rules. The
//! compiled PTX of all kernels is committed in `ptx/`. Tests that run on every target are in
//! `tests/ops/`. Ops take [`View`](warpline_runtime::View)s and a
//! [`Target`](warpline_runtime::Target). The tensor crate allocates the results and chooses the
//! target.

pub mod attention;
pub mod autocast;
pub mod cat;
pub mod collective;
pub mod conv;
pub mod copy;
mod dim;
pub mod elementwise;
pub mod fill;
pub mod indexing;
pub mod kv_cache;
mod library;
pub mod loss;
mod math;
pub mod matmul;
pub mod normalization;
pub mod optim;
pub mod pool;
mod programs;
pub mod random;
pub mod reduce;
pub mod resample;
pub mod rotary;
pub mod scan;
pub mod scatter;
mod scratch;
pub mod softmax;
pub mod sort;
mod turn;
mod window;

pub use programs::programs;

/// Runs the program of this crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
