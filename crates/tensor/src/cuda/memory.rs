//! What the caching allocators hold, and their caches (`torch.cuda.memory`).
//!
//! Sizes are in bytes. *Allocated* is what tensors hold, rounded as the allocator rounds it;
//! *reserved* is what the allocator holds of the driver, which other processes cannot have.

use warpline_alloc::{AllocatorConfig, MemoryStats};
use warpline_cuda_sys_safe::MemInfo;

use super::CudaDeviceArg;
use crate::called::Called as _;
use crate::{Error, Result, runtime};

#[cfg(feature = "snapshot")]
pub use super::history::dump_snapshot;
pub use super::history::{
    annotate, memory_snapshot, record_memory_history, set_memory_metadata, snapshot,
};

/// Asks a device's allocator.
#[track_caller]
fn ask<R>(
    device: impl CudaDeviceArg,
    f: impl FnOnce(&warpline_alloc::cuda::CudaAllocator) -> R,
) -> Result<R> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(f(runtime.device(index)?.allocator()))
}

/// Bytes that tensors hold.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn memory_allocated(device: impl CudaDeviceArg) -> Result<usize> {
    ask(device, |a| a.memory_allocated()).of("memory_allocated")
}

/// The most bytes that tensors held since the start or the last [`reset_peak_memory_stats`].
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn max_memory_allocated(device: impl CudaDeviceArg) -> Result<usize> {
    ask(device, |a| a.memory_stats().allocated_bytes.all.peak as usize).of("max_memory_allocated")
}

/// Bytes the allocator holds of the driver, in use or cached.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn memory_reserved(device: impl CudaDeviceArg) -> Result<usize> {
    ask(device, |a| a.memory_reserved()).of("memory_reserved")
}

/// The most bytes the allocator held since the start or the last [`reset_peak_memory_stats`].
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn max_memory_reserved(device: impl CudaDeviceArg) -> Result<usize> {
    ask(device, |a| a.memory_stats().reserved_bytes.all.peak as usize).of("max_memory_reserved")
}

/// The name that [`memory_reserved`] had in 2018.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn memory_cached(device: impl CudaDeviceArg) -> Result<usize> {
    memory_reserved(device)
}

/// The name that [`max_memory_reserved`] had in 2018.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn max_memory_cached(device: impl CudaDeviceArg) -> Result<usize> {
    max_memory_reserved(device)
}

/// Starts every peak anew from what is current.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn reset_peak_memory_stats(device: impl CudaDeviceArg) -> Result<()> {
    ask(device, |a| a.reset_peak_stats()).of("reset_peak_memory_stats")
}

/// The name of 2018. It resets every peak, as it does in PyTorch today.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn reset_max_memory_allocated(device: impl CudaDeviceArg) -> Result<()> {
    reset_peak_memory_stats(device)
}

/// The name of 2018. It resets every peak, as it does in PyTorch today.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn reset_max_memory_cached(device: impl CudaDeviceArg) -> Result<()> {
    reset_peak_memory_stats(device)
}

/// Starts every sum and count anew from zero.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn reset_accumulated_memory_stats(device: impl CudaDeviceArg) -> Result<()> {
    ask(device, |a| a.reset_accumulated_stats()).of("reset_accumulated_memory_stats")
}

/// All statistics; [`MemoryStats::as_map`] has them under PyTorch's keys.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn memory_stats(device: impl CudaDeviceArg) -> Result<MemoryStats> {
    ask(device, |a| a.memory_stats()).of("memory_stats")
}

/// The statistics as a table.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn memory_summary(device: impl CudaDeviceArg) -> Result<String> {
    ask(device, |a| a.memory_summary()).of("memory_summary")
}

/// The options of a device's allocator.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn caching_allocator_config(device: impl CudaDeviceArg) -> Result<AllocatorConfig> {
    ask(device, |a| a.config()).of("caching_allocator_config")
}

/// Gives every unused segment of every device back to the driver. Tensors keep theirs. Nothing
/// where there is no device.
pub fn empty_cache() {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.allocator().empty_cache();
        }
    }
}

/// Free and total memory of a device, as the driver says: cached memory counts as used.
///
/// # Errors
/// The driver's own; as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn mem_get_info(device: impl CudaDeviceArg) -> Result<MemInfo> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("mem_get_info")?;
    runtime.driver()?.mem_info(index).map_err(|e| Error::driver("mem_get_info", e))
}

/// Limits what the allocator may reserve to a share of the device's memory, from 0 to 1.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for any other number; as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn set_per_process_memory_fraction(fraction: f64, device: impl CudaDeviceArg) -> Result<()> {
    ask(device, |a| a.set_memory_fraction(fraction))
        .of("set_per_process_memory_fraction")?
        .map_err(|e| Error::invalid("", e.to_string()))
        .of("set_per_process_memory_fraction")
}

/// The share of the device's memory that the allocator may reserve; 1 is no limit.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn get_per_process_memory_fraction(device: impl CudaDeviceArg) -> Result<f64> {
    ask(device, |a| a.config().memory_fraction.unwrap_or(1.0)).of("get_per_process_memory_fraction")
}
