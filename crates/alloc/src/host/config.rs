//! Options of page-locked memory, in PyTorch's spelling.

use crate::ConfigError;
use crate::config::{boolean, invalid, megabytes, number};
use crate::rules::MIB;

/// Threads that an option may ask for, as in PyTorch.
const MAX_REGISTER_THREADS: usize = 128;
/// Allocations from here on are registered unless an option says otherwise.
const REGISTER_FROM: usize = 8 * MIB;
/// Threads that are used without an option, and what each has at least to do.
const AUTO_THREADS: usize = 16;
const BYTES_PER_THREAD: usize = 16 * MIB;

/// How a [`HostCache`](crate::HostCache) behaves.
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
    /// Whether ordinary memory is touched by several threads and then page-locked, rather than
    /// allocated page-locked by the driver (`pinned_use_cuda_host_register`). Unset, that is done
    /// from 8 MiB on, where it is faster, and where it fails the driver allocates.
    pub use_host_register: Option<bool>,
    /// How many threads touch memory that is to be registered, a power of two up to 128
    /// (`pinned_num_register_threads`). Unset, as many as there are cores for it, up to 16.
    pub register_threads: Option<usize>,
    /// Accepted and without effect: events are polled where memory is asked for, at the cost of
    /// one query per stream in use (`pinned_use_background_threads`).
    pub use_background_threads: bool,
    /// Size in bytes of a segment that is made with the first block, serves whatever fits in it,
    /// and is kept until the cache is dropped; 0 for none (`pinned_reserve_segment_size_mb`).
    pub reserve_segment_size: usize,
    /// Accepted and without effect: nothing is rounded to a power of two, whatever its size
    /// (`pinned_max_round_threshold_mb`, in bytes).
    pub max_round_threshold: Option<usize>,
    /// The most bytes to keep in allocations that nobody uses (`pinned_max_cached_size_mb`). The
    /// bound is on all of them together, so that PyTorch's, on each of them, holds as well.
    pub max_cached_size: Option<usize>,
}

impl HostConfig {
    /// Whether an allocation of this many bytes is to be registered.
    #[must_use]
    pub fn registers(&self, bytes: usize) -> bool {
        self.use_host_register.unwrap_or(bytes >= REGISTER_FROM)
    }

    /// How many threads are to touch so many bytes, on a machine with so many cores.
    #[must_use]
    pub fn threads_for(&self, bytes: usize, cores: usize) -> usize {
        let auto = (bytes / BYTES_PER_THREAD).min(cores).clamp(1, AUTO_THREADS);
        self.register_threads.unwrap_or(auto)
    }

    /// Sets an option whose name starts with `pinned_`.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            // PyTorch takes both spellings in every build.
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                self.use_host_register = Some(boolean(key, value)?);
            }
            // An error of a free never reaches the caller: both values hold.
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
