//! Programs to copy, and what one who knows PyTorch looks up.
//!
//! Each program is an example of the crate, such as `cargo run --example kv_cache`, and runs on simulated GPUs
//! with `WARPLINE_DRIVER=sim:1` before it.

/// A loader whose batches are copied to the GPU while the one before is computed on.
///
#[doc = concat!("```no_run\n", include_str!("../examples/overlapped_loader.rs"), "```")]
pub mod overlapped_loader {}

/// Threads of a server that share a model, each with a stream of its own.
///
#[doc = concat!("```no_run\n", include_str!("../examples/server_threads.rs"), "```")]
pub mod server_threads {}

/// A test of a program's streams on simulated GPUs, in which a missing wait is found.
///
#[doc = concat!("```no_run\n", include_str!("../examples/simulated_race.rs"), "```")]
pub mod simulated_race {}

/// Decoding with keys and values in memory that is allocated once.
///
#[doc = concat!("```no_run\n", include_str!("../examples/kv_cache.rs"), "```")]
pub mod kv_cache {}

/// The caching allocator over memory of one's own.
///
#[doc = concat!("```no_run\n", include_str!("../examples/allocator_backend.rs"), "```")]
pub mod allocator_backend {}

// The first of two definitions holds: where the page leads to files of the repository, rustdoc has its own.
/// [streams]: crate::SyncPolicy
/// [settings]: crate::guide::settings
///
#[doc = include_str!("../docs/from-pytorch.md")]
pub mod from_pytorch {}

/// [streams]: crate::SyncPolicy
/// [options]: warpline_alloc::AllocatorConfig
///
#[doc = include_str!("../docs/settings.md")]
pub mod settings {}
