//! Statistics of the caching allocators, and their caches (`torch.cuda.memory`).
//!
//! Sizes are in bytes. *Allocated* memory belongs to tensors and to workspaces of cuBLAS, and is rounded up by the
//! allocator. *Reserved* memory was obtained from the driver, and is not available to other processes.

use warpline_alloc::{AllocatorConfig, MemoryStats};
use warpline_cuda_sys_safe::{GpuProcess, MemInfo};

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
pub use crate::ambient::change_current_allocator;

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

/// Defines functions of a device's allocator.
macro_rules! allocator_functions {
    ($($(#[$doc:meta])* $name:ident: $output:ty = $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// The same as [`CudaDeviceArg::index_in`].
        #[track_caller]
        pub fn $name(device: impl CudaDeviceArg) -> Result<$output> {
            with_allocator(device, $call).of(stringify!($name))
        }
    )*};
}

allocator_functions! {
    /// Returns the memory that tensors and workspaces of cuBLAS occupy, in bytes (`torch.cuda.memory_allocated`).
    memory_allocated: usize = |a| a.memory_allocated();
    /// Returns the peak of [`memory_allocated`] since the start or the last [`reset_peak_memory_stats`], in bytes.
    max_memory_allocated: usize = |a| a.memory_stats().allocated_bytes.all.peak as usize;
    /// Returns the memory that the allocator has obtained from the driver, in use or cached, in bytes
    /// (`torch.cuda.memory_reserved`).
    memory_reserved: usize = |a| a.memory_reserved();
    /// Returns the peak of [`memory_reserved`] since the start or the last [`reset_peak_memory_stats`], in bytes.
    max_memory_reserved: usize = |a| a.memory_stats().reserved_bytes.all.peak as usize;
    /// The same as [`memory_reserved`], under PyTorch's deprecated name.
    memory_cached: usize = |a| a.memory_reserved();
    /// The same as [`max_memory_reserved`], under PyTorch's deprecated name.
    max_memory_cached: usize = |a| a.memory_stats().reserved_bytes.all.peak as usize;
    /// Resets each peak to its current value (`torch.cuda.reset_peak_memory_stats`).
    reset_peak_memory_stats: () = |a| a.reset_peak_stats();
    /// The same as [`reset_peak_memory_stats`], under PyTorch's deprecated name. As in PyTorch, it resets every
    /// peak.
    reset_max_memory_allocated: () = |a| a.reset_peak_stats();
    /// The same as [`reset_peak_memory_stats`], under PyTorch's deprecated name. As in PyTorch, it resets every
    /// peak.
    reset_max_memory_cached: () = |a| a.reset_peak_stats();
    /// Resets all sums and counts to zero (`torch.cuda.reset_accumulated_memory_stats`).
    reset_accumulated_memory_stats: () = |a| a.reset_accumulated_stats();
    /// Returns all statistics of a device's allocator (`torch.cuda.memory_stats`). [`MemoryStats::as_map`] has
    /// PyTorch's keys, such as `allocated_bytes.all.peak`. The fields are those of
    /// `torch.cuda.memory_stats_as_nested_dict`: `stats.allocated_bytes.all.peak`.
    #[doc(alias = "memory_stats_as_nested_dict")]
    memory_stats: MemoryStats = |a| a.memory_stats();
    /// Returns the statistics of a device's allocator as a table (`torch.cuda.memory_summary`).
    memory_summary: String = |a| a.memory_summary();
    /// Returns the options of a device's allocator.
    caching_allocator_config: AllocatorConfig = |a| a.config();
}

/// Releases all unused segments of all devices to the driver (`torch.cuda.empty_cache`). Memory of tensors stays. Has
/// no effect if there is no device.
pub fn empty_cache() {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.allocator().empty_cache();
        }
    }
}

/// Frees the workspaces of cuBLAS on all devices (`torch._C._cuda_clearCublasWorkspaces`). Has no effect if there is no
/// device.
///
/// Each stream on which cuBLAS computes a product keeps one workspace from the caching allocator, which counts as
/// allocated memory. `CUBLAS_WORKSPACE_CONFIG` or [`RuntimeConfig::cublas_workspace`](crate::RuntimeConfig) sets the
/// size. Later products allocate their workspaces again. Captured graphs keep their workspaces.
///
/// ```
/// use warpline::{cuda, ones, simulated, with_runtime};
///
/// # fn main() -> warpline::Result<()> {
/// with_runtime(&simulated(1)?, || {
///     let product = ones([32, 512], "cuda")?.matmul(&ones([512, 32], "cuda")?)?;
///     let with_workspace = cuda::memory_allocated(0)?;
///     cuda::clear_cublas_workspaces();
///     assert_eq!(with_workspace - cuda::memory_allocated(0)?, 32 << 20);
///     assert_eq!(product.to_vec::<f32>()?, [512.0; 1024]);
///     Ok(())
/// })
/// # }
/// ```
pub fn clear_cublas_workspaces() {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.clear_cublas_workspaces();
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

/// Returns the processes with a context on a device, with the device memory of each
/// (`torch.cuda.list_gpu_processes`, which returns a text). `None` if NVML is not available. In most containers, the
/// process identifiers are the host's, not the container's. The first call may take long.
///
/// ```
/// use warpline::{cuda, simulated, with_runtime, zeros};
///
/// with_runtime(&simulated(1)?, || {
///     let _x = zeros([1 << 20], "cuda")?;
///     for process in cuda::list_gpu_processes("cuda")?.into_iter().flatten() {
///         println!("process {} uses {:?} bytes", process.pid, process.memory);
///     }
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be used.
#[track_caller]
pub fn list_gpu_processes(device: impl CudaDeviceArg) -> Result<Option<Vec<GpuProcess>>> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("list_gpu_processes")?;
    Ok(runtime.driver()?.processes(index))
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
        .map_err(Error::from)
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
