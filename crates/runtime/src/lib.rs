//! What any op of Warpline stands on: storage, views, the one launch path, race detection, graphs,
//! generators.
//!
//! An op declares its kernels as [`launch::Kernel`]s, which is its one unsafe step: [`launch::Kernel::new`] says what the
//! author vouches for. Each launch becomes one [`launch::Call`], from which come the order between streams,
//! race reports, what a simulated GPU runs, and what an error says. Ops take [`View`]s and a
//! [`Target`]; [`iter`] walks operands of any strides. `docs/custom-ops.md` walks through an op of another crate.

mod completion;
#[macro_use]
mod dispatch;
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
mod replays;
mod runtime;
mod semaphore;
mod storage;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod view;

pub use completion::Completion;
pub use launch::Target;
pub use layout::{
    Layout, MemoryFormat, Sizes, Strides, broadcast, byte_size, checked_numel, resolve_dim,
};
#[doc(hidden)]
pub use race::printed;
pub use race::{Race, RaceReport, RacingUse};
pub use replays::{Calls, Replays};
pub use runtime::{
    CudaDevice, GeneratorGuard, HostCacheStats, Runtime, RuntimeConfig, Staging, SyncPolicy,
};
pub use semaphore::{OwnSemaphore, PeerSemaphore, SharedSemaphore};
pub use storage::{ExportedStorage, Storage, Version};
pub use view::{Operand, View};
pub use warpline_cuda_sys_safe::{Access, InvalidVariable};
pub use warpline_stream::{IndexCheck, Stream};
pub use warpline_types::{
    Category, DType, Device, Element, Error, ErrorKind, Result, ResultExt, Scalar, Site, bf16, f16,
};

/// The program of this crate's README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
