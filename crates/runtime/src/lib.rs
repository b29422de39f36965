//! Storage, views, the launch path, race detection, graphs and random generators: the base of all
//! Warpline ops.
//!
//! An op declares its kernels as [`launch::Kernel`]s. That is its only unsafe step;
//! [`launch::Kernel::new`] lists the guarantees of the op's author. The order between streams, race
//! reports, the work of simulated GPUs and error messages derive from the operands that a launch
//! declares. Ops take [`View`]s and a [`Target`]; [`iter`] walks operands of any strides.
//! `docs/custom-ops.md` walks through an op of another crate.

mod completion;
#[macro_use]
mod dispatch;
mod captured_collectives;
mod error;
pub mod generator;
pub mod graph;
pub mod host;
pub mod iter;
pub mod launch;
mod layout;
pub mod module;
pub mod overlap;
mod race;
mod runtime;
mod semaphore;
mod storage;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod view;

pub use captured_collectives::{CallNames, CollectiveWatcher};
pub use completion::Completion;
pub use launch::Target;
pub use layout::{
    Layout, MemoryFormat, Sizes, Strides, broadcast, byte_size, checked_numel, resolve_dim,
};
#[doc(hidden)]
pub use race::printed;
pub use race::{Race, RaceReport, RacingUse};
pub use runtime::{
    ChosenGenerators, CudaDevice, CudnnSettings, Generator, HostCacheStats, Precision, PrecisionOf,
    Runtime, RuntimeConfig, SharedGenerator, Staging, SyncPolicy, Workspace,
};
pub use semaphore::{OwnSemaphore, PeerSemaphore, SharedSemaphore};
pub use storage::{ExportedStorage, Storage, Version, reclaim_before_out_of_memory};
pub use view::{Operand, View};
pub use warpline_cuda_sys_safe::{Access, InvalidVariable};
pub use warpline_stream::{IndexCheck, Stream};
pub use warpline_types::{
    CallScope, Category, DType, Device, Element, Error, ErrorKind, Result, ResultExt, Scalar, Site,
    bf16, f16,
};

/// Runs the program of this crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
