//! Memory of CPU tensors (`torch.cpu`, which has no cache of its own).
//!
//! Large blocks of freed tensors are kept for new ones, up to
//! [`host_cache_limit`](crate::RuntimeConfig::host_cache_limit): to have the system provide pages takes
//! longer than most ops that fill them. Page-locked memory has a cache of its own
//! ([`cuda::host_memory_stats`](crate::cuda::host_memory_stats)).

use warpline_runtime::HostCacheStats;

use crate::runtime;

/// What is kept of freed CPU tensors' memory, and how often it was used again.
///
/// ```
/// use warpline::{cpu, ones, simulated, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let x = ones([1 << 20], ())?;
///     let y = (&x + 1.0)?;
///     assert_eq!(cpu::memory_stats().cached_bytes, 0);
///     drop(y);
///     assert_eq!(cpu::memory_stats().cached_bytes, 4 << 20);
///     let z = (&x * 2.0)?;
///     assert_eq!((cpu::memory_stats().num_alloc, cpu::memory_stats().num_reused), (2, 1));
///     drop((x, z));
///     cpu::empty_cache();
///     assert_eq!((cpu::memory_stats().cached_bytes, cpu::memory_stats().num_free), (0, 2));
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
#[must_use]
pub fn memory_stats() -> HostCacheStats {
    runtime().host_cache_stats()
}

/// Gives what is kept of freed CPU tensors' memory back to the system. Tensors keep theirs.
pub fn empty_cache() {
    runtime().empty_host_cache();
}
