//! Example programs, and the pages about PyTorch's names and about settings.
//!
//! Each program is an example of this crate. Run it with `cargo run --example kv_cache`, for instance, and on a
//! simulated GPU with `WARPLINE_DRIVER=sim:1` before the command.

/// A loader that copies the next batch to the GPU while the GPU computes with the current batch.
///
#[doc = concat!("```no_run\n", include_str!("../examples/overlapped_loader.rs"), "```")]
pub mod overlapped_loader {}

/// Threads of a server that share a model, each with its own stream.
///
#[doc = concat!("```no_run\n", include_str!("../examples/server_threads.rs"), "```")]
pub mod server_threads {}

/// A test on simulated GPUs that finds a missing wait between streams.
///
#[doc = concat!("```no_run\n", include_str!("../examples/simulated_race.rs"), "```")]
pub mod simulated_race {}

/// Decoding with a cache of keys and values that is allocated once.
///
#[doc = concat!("```no_run\n", include_str!("../examples/kv_cache.rs"), "```")]
pub mod kv_cache {}

/// The caching allocator with a custom source of memory.
///
#[doc = concat!("```no_run\n", include_str!("../examples/allocator_backend.rs"), "```")]
pub mod allocator_backend {}

// Both pages link to files of the repository. Markdown uses the first definition of a link, so the definitions here
// override those of the page.
/// [streams]: crate::SyncPolicy
/// [settings]: crate::guide::settings
///
#[doc = include_str!("../docs/from-pytorch.md")]
pub mod from_pytorch {}

/// [streams]: crate::SyncPolicy
/// [alloc]: warpline_alloc::AllocatorConfig
///
#[doc = include_str!("../docs/settings.md")]
pub mod settings {}
