//! Statistics of the caching allocators, and their caches (`torch.cuda.memory`).
//!
//! Sizes are in bytes. *Allocated* memory belongs to tensors, and is rounded up by the allocator. *Reserved*
//! memory was obtained from the driver, and is not available to other processes.

use warpline_alloc::{AllocatorConfig, MemoryStats};
use warpline_cuda_sys_safe::MemInfo;

use super::CudaDeviceArg;
#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called as _;
use crate::{Error, Result, runtime};

#[cfg(feature = "snapshot")]
pub use super::history::dump_snapshot;
pub use super::history::{
    annotate, memory_snapshot, record_memory_history, set_memory_metadata, snapshot,
};

/// Calls `f` with a device's allocator.
#[track_caller]
fn with_allocator<R>(
    device: impl CudaDeviceArg,
    f: impl FnOnce(&warpline_alloc::cuda::CudaAllocator) -> R,
) -> Result<R> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(f(runtime.device(index)?.allocator()))
}

/// Returns the memory that tensors occupy, in bytes (`torch.cuda.memory_allocated`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn memory_allocated(device: impl CudaDeviceArg) -> Result<usize> {
    with_allocator(device, |a| a.memory_allocated()).of("memory_allocated")
}

/// Returns the peak of [`memory_allocated`] since the start or the last [`reset_peak_memory_stats`], in bytes.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn max_memory_allocated(device: impl CudaDeviceArg) -> Result<usize> {
    with_allocator(device, |a| a.memory_stats().allocated_bytes.all.peak as usize)
        .of("max_memory_allocated")
}

/// Returns the memory that the allocator has obtained from the driver, in use or cached, in bytes
/// (`torch.cuda.memory_reserved`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn memory_reserved(device: impl CudaDeviceArg) -> Result<usize> {
    with_allocator(device, |a| a.memory_reserved()).of("memory_reserved")
}

/// Returns the peak of [`memory_reserved`] since the start or the last [`reset_peak_memory_stats`], in bytes.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn max_memory_reserved(device: impl CudaDeviceArg) -> Result<usize> {
    with_allocator(device, |a| a.memory_stats().reserved_bytes.all.peak as usize)
        .of("max_memory_reserved")
}

/// The same as [`memory_reserved`], under PyTorch's deprecated name.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn memory_cached(device: impl CudaDeviceArg) -> Result<usize> {
    memory_reserved(device)
}

/// The same as [`max_memory_reserved`], under PyTorch's deprecated name.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn max_memory_cached(device: impl CudaDeviceArg) -> Result<usize> {
    max_memory_reserved(device)
}

/// Resets each peak to its current value (`torch.cuda.reset_peak_memory_stats`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn reset_peak_memory_stats(device: impl CudaDeviceArg) -> Result<()> {
    with_allocator(device, |a| a.reset_peak_stats()).of("reset_peak_memory_stats")
}

/// The same as [`reset_peak_memory_stats`], under PyTorch's deprecated name. As in PyTorch, it resets every
/// peak.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn reset_max_memory_allocated(device: impl CudaDeviceArg) -> Result<()> {
    reset_peak_memory_stats(device)
}

/// The same as [`reset_peak_memory_stats`], under PyTorch's deprecated name. As in PyTorch, it resets every
/// peak.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn reset_max_memory_cached(device: impl CudaDeviceArg) -> Result<()> {
    reset_peak_memory_stats(device)
}

/// Resets all sums and counts to zero (`torch.cuda.reset_accumulated_memory_stats`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn reset_accumulated_memory_stats(device: impl CudaDeviceArg) -> Result<()> {
    with_allocator(device, |a| a.reset_accumulated_stats()).of("reset_accumulated_memory_stats")
}

/// Returns all statistics of a device's allocator (`torch.cuda.memory_stats`). [`MemoryStats::as_map`] has
/// PyTorch's keys.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn memory_stats(device: impl CudaDeviceArg) -> Result<MemoryStats> {
    with_allocator(device, |a| a.memory_stats()).of("memory_stats")
}

/// Returns the statistics of a device's allocator as a table (`torch.cuda.memory_summary`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn memory_summary(device: impl CudaDeviceArg) -> Result<String> {
    with_allocator(device, |a| a.memory_summary()).of("memory_summary")
}

/// Returns the options of a device's allocator.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn caching_allocator_config(device: impl CudaDeviceArg) -> Result<AllocatorConfig> {
    with_allocator(device, |a| a.config()).of("caching_allocator_config")
}

/// Releases all unused segments of all devices to the driver (`torch.cuda.empty_cache`). Memory of tensors
/// stays. No effect if there is no device.
pub fn empty_cache() {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.allocator().empty_cache();
        }
    }
}

/// Returns the free and the total memory of a device according to the driver, in bytes
/// (`torch.cuda.mem_get_info`). Cached memory counts as used.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used or the driver fails.
#[track_caller]
pub fn mem_get_info(device: impl CudaDeviceArg) -> Result<MemInfo> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("mem_get_info")?;
    runtime.driver()?.mem_info(index).map_err(|e| Error::driver("mem_get_info", e))
}

/// Limits the memory that the allocator may reserve to a fraction of the device's memory, from 0 to 1
/// (`torch.cuda.set_per_process_memory_fraction`). 1 is no limit.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `fraction` is not from 0 to 1. [`ErrorKind::NoSuchDevice`] if there is no
/// GPU with this index. [`ErrorKind::InvalidArgument`] if the device is the CPU.
/// [`ErrorKind::InvalidDeviceString`] if a string does not name a device. [`ErrorKind::CudaUnavailable`],
/// [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be used.
#[track_caller]
pub fn set_per_process_memory_fraction(fraction: f64, device: impl CudaDeviceArg) -> Result<()> {
    with_allocator(device, |a| a.set_memory_fraction(fraction))
        .of("set_per_process_memory_fraction")?
        .map_err(|e| Error::invalid("", e.to_string()))
        .of("set_per_process_memory_fraction")
}

/// Returns the fraction of the device's memory that the allocator may reserve
/// (`torch.cuda.get_per_process_memory_fraction`). Default: 1, no limit.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn get_per_process_memory_fraction(device: impl CudaDeviceArg) -> Result<f64> {
    with_allocator(device, |a| a.config().memory_fraction.unwrap_or(1.0))
        .of("get_per_process_memory_fraction")
}
