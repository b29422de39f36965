//! Statistics of the cache of page-locked host memory. All devices share this cache.

use warpline_alloc::HostMemoryStats;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Result, runtime};

/// Returns all statistics of page-locked memory, in bytes and counts (`torch.cuda.host_memory_stats`).
/// [`HostMemoryStats::as_map`] has PyTorch's keys.
///
/// ```
/// use warpline::{cuda, ones, simulated, with_runtime};
///
/// with_runtime(&simulated(1)?, || {
///     let pinned = ones([1000], ())?.pin_memory()?;
///     let stats = cuda::host_memory_stats()?;
///     assert_eq!((stats.requested_bytes.current, stats.active_bytes.current), (4000, 4096));
///     drop(pinned);
///     assert_eq!(cuda::host_memory_stats()?.active_requests.current, 0);
///     assert_eq!(cuda::host_memory_stats()?.active_requests.peak, 1);
///     cuda::reset_peak_host_memory_stats()?;
///     assert_eq!(cuda::host_memory_stats()?.active_requests.peak, 0);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn host_memory_stats() -> Result<HostMemoryStats> {
    Ok(runtime().pinned_cache()?.stats())
}

/// Resets each peak of the statistics of page-locked memory to its current value
/// (`torch.cuda.reset_peak_host_memory_stats`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn reset_peak_host_memory_stats() -> Result<()> {
    runtime().pinned_cache()?.reset_peak_stats();
    Ok(())
}

/// Resets the sums and counts of the statistics of page-locked memory to zero
/// (`torch.cuda.reset_accumulated_host_memory_stats`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn reset_accumulated_host_memory_stats() -> Result<()> {
    runtime().pinned_cache()?.reset_accumulated_stats();
    Ok(())
}
