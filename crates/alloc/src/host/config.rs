//! Options of page-locked memory, in PyTorch's spelling.

use crate::ConfigError;
use crate::config::{boolean, invalid, megabytes, number};
use crate::rules::MIB;

/// Maximum number of threads that an option may request, as in PyTorch.
const MAX_REGISTER_THREADS: usize = 128;
/// Size from which allocations are registered by default, in bytes.
const REGISTER_FROM: usize = 8 * MIB;
/// Maximum number of threads by default.
const AUTO_THREADS: usize = 16;
/// Minimum number of bytes per thread by default.
const BYTES_PER_THREAD: usize = 16 * MIB;

/// Options of a [`HostCache`](crate::HostCache).
///
/// ```
/// use warpline_alloc::AllocatorConfig;
/// let text = "pinned_max_cached_size_mb:256,pinned_num_register_threads:8";
/// let host = AllocatorConfig::parse(text)?.host;
/// assert_eq!((host.max_cached_size, host.register_threads), (Some(256 << 20), Some(8)));
/// # Ok::<(), warpline_alloc::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// Source of page-locked memory (`pinned_use_cuda_host_register`). `true`: several threads
    /// touch ordinary memory, and the driver then page-locks this memory. `false`: the driver
    /// allocates page-locked memory. `None`, the default: `true` for sizes from 8 MiB, with the
    /// driver's allocation as a fallback.
    pub use_host_register: Option<bool>,
    /// Number of threads that touch memory before it is registered, a power of two up to 128
    /// (`pinned_num_register_threads`). `None`, the default: one per 16 MiB, at most one per core,
    /// up to 16.
    pub register_threads: Option<usize>,
    /// Accepted for compatibility, without effect: events are polled at requests, at the cost of
    /// one query per stream in use (`pinned_use_background_threads`). Default: `false`.
    pub use_background_threads: bool,
    /// Size of a segment in bytes that is allocated with the first block that fits, serves all
    /// blocks that fit, and is kept until the cache is dropped (`pinned_reserve_segment_size_mb`).
    /// Default: 0, no such segment.
    pub reserve_segment_size: usize,
    /// Accepted for compatibility, without effect: no size is rounded to a power of two
    /// (`pinned_max_round_threshold_mb`), in bytes. Default: `None`.
    pub max_round_threshold: Option<usize>,
    /// Maximum number of bytes kept in unused allocations (`pinned_max_cached_size_mb`). The limit
    /// applies to all of them together, and so also to each of them, as in PyTorch. Default: no
    /// limit.
    pub max_cached_size: Option<usize>,
}

impl HostConfig {
    /// Returns whether an allocation of this many bytes is registered.
    #[must_use]
    pub fn registers(&self, bytes: usize) -> bool {
        self.use_host_register.unwrap_or(bytes >= REGISTER_FROM)
    }

    /// Returns the number of threads that touch `bytes` bytes on a machine with `cores` cores.
    #[must_use]
    pub fn threads_for(&self, bytes: usize, cores: usize) -> usize {
        let auto = (bytes / BYTES_PER_THREAD).min(cores).clamp(1, AUTO_THREADS);
        self.register_threads.unwrap_or(auto)
    }

    /// Sets an option whose name starts with `pinned_`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            // PyTorch accepts both spellings in every build.
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                self.use_host_register = Some(boolean(key, value)?);
            }
            // The caller never sees a failed free, so both values have the same effect.
            "pinned_free_catch_all" => {
                boolean(key, value)?;
            }
            "pinned_use_background_threads" => self.use_background_threads = boolean(key, value)?,
            "pinned_num_register_threads" => {
                let expected = format!("a power of two from 1 to {MAX_REGISTER_THREADS}");
                let threads = number::<usize>(key, value, &expected)?;
                if !threads.is_power_of_two() || threads > MAX_REGISTER_THREADS {
                    return Err(invalid(key, value, expected));
                }
                self.register_threads = Some(threads);
            }
            "pinned_reserve_segment_size_mb" => {
                self.reserve_segment_size = megabytes(key, value, 0)?;
            }
            "pinned_max_round_threshold_mb" => {
                self.max_round_threshold = Some(megabytes(key, value, 1)?);
            }
            "pinned_max_cached_size_mb" => self.max_cached_size = Some(megabytes(key, value, 0)?),
            _ => return Err(ConfigError::UnknownOption { key: key.into() }),
        }
        Ok(())
    }
}
