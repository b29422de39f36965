//! Warpline's ops: storage, the one launch path, and a folder per family of kernels.
//!
//! Every op has a CUDA kernel with committed PTX, a CPU implementation, a shape and dtype rule and
//! shared tests, all in one place. Ops take [`View`]s and a [`Target`]; the tensor façade above
//! makes the results' memory and picks the target.

#[cfg(test)]
mod any_view_tests;
pub mod collective;
pub mod copy;
mod dispatch;
mod dtype;
pub mod elementwise;
mod error;
pub mod fill;
pub mod graph;
mod host;
pub mod indexing;
pub mod launch;
mod layout;
pub mod matmul;
mod overlap;
mod race;
pub mod random;
pub mod reduce;
mod runtime;
mod semaphore;
pub mod softmax;
mod storage;
#[cfg(test)]
mod testing;
mod view;

pub use dtype::{Category, DType, Element, Scalar};
pub use error::{Error, Result};
pub use launch::Target;
pub use layout::{Layout, Sizes, Strides, broadcast, checked_numel, resolve_dim};
pub use race::{Race, RaceReport, RacingUse};
pub use runtime::{CudaDevice, KernelSet, Module, Runtime, RuntimeConfig, Staging, SyncPolicy};
pub use semaphore::{OwnSemaphore, PeerSemaphore, SharedSemaphore};
pub use storage::{ExportedStorage, Site, Storage, Version};
pub use view::{Operand, View};
pub use warpline_cuda_sys_safe::Access;
pub use warpline_stream::IndexCheck;
