//! Memory of CPU tensors.
//!
//! A cache keeps large blocks of freed CPU tensors for new tensors, because getting pages from the system takes
//! longer than most ops that fill them. Its size is at most
//! [`host_cache_limit`](crate::RuntimeConfig::host_cache_limit) bytes. `torch.cpu` has no such cache.
//! Page-locked memory has a separate cache ([`cuda::host_memory_stats`](crate::cuda::host_memory_stats)).

use warpline_runtime::HostCacheStats;

use crate::runtime;

/// Returns statistics of the cache: the memory of freed CPU tensors that it keeps, and how often it was reused.
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

/// Releases the cached memory to the system. Memory of live tensors stays.
pub fn empty_cache() {
    runtime().empty_host_cache();
}
