//! A block-splitting caching allocator for GPU memory, with PyTorch's rules, over any backend.
//!
//! [`CachingAllocator`] serves the memory of one device, [`HostCache`] page-locked host memory.
//! Both take the order of streams into account. Freed device memory serves later requests for the
//! stream of its allocation at once, unless other streams are recorded as using it: then it is
//! reused after these streams have completed their work. Freed host memory is reused after all
//! streams recorded as using it have completed their work.
//! A [`Backend`] allocates the memory; with the feature `cuda` (on by default), [`cuda`] has a
//! backend over the CUDA driver.
//!
//! [`default_policy`] explains how the default policy gets memory from the backend: in pages that
//! move.
//!
//! A custom backend:
//!
//! ```
//! use warpline_alloc::{AllocatorConfig, Backend, CachingAllocator, StreamBackend};
//! use std::collections::TryReserveError;
//!
//! /// Host memory, with streams that complete their work at once.
//! struct Ram;
//!
//! impl StreamBackend for Ram {
//!     type Stream = u64;
//!     type Event = ();
//!     type Error = TryReserveError;
//!     fn stream_id(stream: &u64) -> u64 { *stream }
//!     fn record(&self, _: &u64) -> Result<(), TryReserveError> { Ok(()) }
//!     fn query(&self, _: &()) -> Result<bool, TryReserveError> { Ok(true) }
//!     fn synchronize(&self, _: &()) -> Result<(), TryReserveError> { Ok(()) }
//! }
//!
//! impl Backend for Ram {
//!     type Memory = Vec<u8>;
//!     fn alloc(&self, bytes: usize) -> Result<Vec<u8>, TryReserveError> {
//!         let mut memory = Vec::new();
//!         memory.try_reserve_exact(bytes)?;
//!         Ok(memory)
//!     }
//!     fn address(memory: &Vec<u8>) -> u64 { memory.as_ptr() as u64 }
//!     fn is_out_of_memory(&self, _: &TryReserveError) -> bool { true }
//!     fn mem_info(&self) -> Result<(usize, usize), TryReserveError> { Ok((1 << 30, 1 << 30)) }
//! }
//!
//! let allocator = CachingAllocator::new(Ram, AllocatorConfig::default());
//! let block = allocator.malloc(1000, &0)?;
//! assert_eq!((block.requested(), block.size()), (1000, 1024));
//! assert_eq!(allocator.memory_reserved(), 2 << 20);
//! let address = block.address();
//! drop(block);
//! assert_eq!(allocator.malloc(1000, &0)?.address(), address);
//! allocator.empty_cache();
//! assert_eq!(allocator.memory_reserved(), 0);
//! # Ok::<(), warpline_alloc::AllocError>(())
//! ```

#![forbid(unsafe_code)]

mod allocator;
mod backend;
mod block;
mod config;
mod core;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod events;
mod growth;
mod heap;
mod hooks;
mod host;
mod malloc;
mod mem_pool;
mod miss;
mod out_of_memory;
mod policy;
mod reclaim;
mod release;
mod routes;
pub mod rules;
mod shard;
mod shared;
mod snapshot;
mod source;
mod stats;
mod summary;
mod sync;
mod trace;

pub use allocator::CachingAllocator;
pub use backend::{Backend, Handle, HostBackend, StreamBackend, VirtualMemory};
pub use block::Block;
pub use config::{AllocatorConfig, ConfigError, Policy};
#[cfg(feature = "cuda")]
pub use cuda::{
    CudaAllocator, CudaBackend, CudaBlock, CudaHostBackend, CudaHostCache, CudaPinnedBlock,
};
pub use error::AllocError;
pub use host::{DurationStat, HostCache, HostCapture, HostConfig, HostMemoryStats, PinnedBlock};
pub use mem_pool::{MemPool, PoolRoute};
pub use out_of_memory::OutOfMemory;
pub use routes::PoolOptions;
pub use rules::PoolKind;
pub use snapshot::{Annotation, BlockInfo, BlockState, Frame, SegmentInfo, Snapshot};
pub use stats::{MemoryStats, PoolStats, Stat};
pub use trace::{Backtraces, TraceAction, TraceConfig, TraceEntry};

#[doc = include_str!("../docs/default-policy.md")]
///
/// # The picture
#[doc = include_str!("../docs/default-policy.svg")]
pub mod default_policy {}

/// Runs the program of `docs/allocator.md` as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/allocator.md")]
struct AllocatorPage;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
