//! Devices, streams and memory, under PyTorch's names (`torch.cuda`).
//!
//! Functions apply to the [ambient runtime](crate::runtime). A graph or a memory pool belongs to the runtime in which
//! it was made. A device argument is a [`CudaDeviceArg`]: an index, a name, a [`Device`], or `()` for the current
//! device.
//!
//! ```no_run
//! use warpline::{cuda, zeros};
//!
//! if cuda::is_available()? {
//!     let _on_1 = cuda::device(1)?;
//!     let t = zeros([2], "cuda")?;
//!     assert_eq!(t.device(), warpline::Device::cuda(1));
//!     println!("{} bytes", cuda::memory_allocated(1)?);
//! }
//! # Ok::<(), warpline::Error>(())
//! ```

mod conditional;
pub mod driver;
mod graph;
mod graphed;
mod history;
mod host_memory;
mod mem_pool;
pub mod memory;
mod random;
mod stream;

use warpline_cuda_sys_safe::DeviceProperties;

use crate::ambient::{CurrentRuntime, count_devices_before_use};
use crate::called::Called as _;
use crate::{
    CallScope, Device, Error, ErrorKind, IntoDevice, Race, RaceReport, Result, Runtime, SyncPolicy,
    runtime,
};

pub use conditional::{graph_if, graph_while};
pub use graph::{
    CaptureOptions, CudaGraph, GraphPool, graph, graph_pool_handle, is_current_stream_capturing,
};
pub use graphed::{Callable, GraphedCallable, GraphedOptions, make_graphed_callables};
pub use host_memory::{
    host_memory_stats, reset_accumulated_host_memory_stats, reset_peak_host_memory_stats,
};
pub use mem_pool::{MemPool, MemPoolGuard, use_mem_pool, with_mem_pool};
pub use memory::{
    caching_allocator_config, change_current_allocator, clear_cublas_workspaces, empty_cache,
    get_per_process_memory_fraction, list_gpu_processes, max_memory_allocated, max_memory_cached,
    max_memory_reserved, mem_get_info, memory_allocated, memory_cached, memory_reserved,
    memory_snapshot, memory_stats, memory_summary, reset_accumulated_memory_stats,
    reset_max_memory_allocated, reset_max_memory_cached, reset_peak_memory_stats,
    set_per_process_memory_fraction,
};
pub use random::{get_rng_state, manual_seed, manual_seed_all, set_rng_state};
pub use stream::{
    Ambient, StreamOptions, current_stream, default_stream, exclusive_stream, external_stream,
    set_stream, stream, with_stream,
};
pub use warpline_alloc::{
    AllocatorConfig, Backtraces, BlockState, HostMemoryStats, MemoryStats, PoolOptions,
    SegmentInfo, Snapshot, TraceAction, TraceConfig,
};
pub use warpline_cuda_sys_safe::owned::CudaPluggableAllocator;
pub use warpline_cuda_sys_safe::{GpuProcess, MemInfo};
pub use warpline_stream::{DeviceGuard, Event, EventFlags, Stream, StreamDevice, StreamGuard};

/// A value that names a GPU: an index, a name such as `"cuda:1"`, a [`Device`], or `()` for the current device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a GPU",
    label = "expected an index, a name such as \"cuda:1\", a `Device`, or `()` for the current one"
)]
pub trait CudaDeviceArg {
    /// Returns the index of the GPU in a runtime.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`] if a string is not the name of a device. [`ErrorKind::InvalidArgument`] if
    /// the device is the CPU. [`ErrorKind::NoSuchDevice`] if there is no GPU with this index.
    /// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has
    /// an invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
    fn index_in(self, runtime: &Runtime) -> Result<usize>;
}

/// The current device.
impl CudaDeviceArg for () {
    #[track_caller]
    fn index_in(self, runtime: &Runtime) -> Result<usize> {
        Ok(runtime.devices()?.current_device())
    }
}

macro_rules! device_args {
    ($($ty:ty),*) => {$(
        impl CudaDeviceArg for $ty {
            #[track_caller]
            fn index_in(self, runtime: &Runtime) -> Result<usize> {
                index_of(runtime, self.into_device()?)
            }
        }
    )*};
}

device_args!(usize, Device, &Device, &str, &String, String);

#[track_caller]
fn index_of(runtime: &Runtime, device: Device) -> Result<usize> {
    match device {
        Device::Cpu => Err(Error::invalid("cuda", "expected a CUDA device, but 'cpu' was given")),
        Device::Cuda(None) => ().index_in(runtime),
        Device::Cuda(Some(index)) => Ok(runtime.device(index)?.index()),
    }
}

/// Returns whether there is a GPU to use (`torch.cuda.is_available`). Creates no driver context.
///
/// After the first use of the driver, also by this function, children that the process forks cannot use CUDA. If the
/// variable `PYTORCH_NVML_BASED_CUDA_CHECK` is `1`, this function and [`device_count`] ask NVML instead, as long as no
/// runtime is in use. They then read only the settings that choose the devices. The first tensor or other use of the
/// runtime opens the driver and checks all settings.
///
/// The result is `false` on a machine without a driver or a visible device. A wrong setup is an error, so that no
/// program runs on the CPU by mistake. To run on the CPU even if a setting is wrong, use `.unwrap_or(false)`.
///
/// ```
/// use warpline::{cuda, zeros};
///
/// let device = if cuda::is_available()? { "cuda" } else { "cpu" };
/// let x = zeros([2], device)?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidVariable`] if an environment variable, such as `WARPLINE_ALLOC_CONF`, has an invalid
/// value. [`ErrorKind::Driver`] if a driver is installed that does not work.
#[doc(alias = "cuda_is_available")]
#[track_caller]
pub fn is_available() -> Result<bool> {
    Ok(device_count()? > 0)
}

/// Returns the number of visible GPUs (`torch.cuda.device_count`). Creates no driver context.
///
/// # Errors
/// The same as [`is_available`].
#[track_caller]
pub fn device_count() -> Result<usize> {
    if let Some(count) = count_devices_before_use() {
        return Ok(count);
    }
    match CurrentRuntime::get().devices() {
        Ok(devices) => Ok(devices.count()),
        Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns the index of this thread's current device (`torch.cuda.current_device`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
#[track_caller]
pub fn current_device() -> Result<usize> {
    ().index_in(&runtime()).of("current_device")
}

/// Sets this thread's current device (`torch.cuda.set_device`). [`device`] and [`with_device`] also restore the
/// previous device.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::ThreadEnding`] if the thread is ending and its current device is gone.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn set_device(device: impl CudaDeviceArg) -> Result<()> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("set_device")?;
    runtime.devices()?.set_device(index)?;
    Ok(())
}

/// Sets this thread's current device until the guard is dropped (`torch.cuda.device`).
///
/// # Errors
/// The same as [`set_device`].
#[track_caller]
pub fn device(device: impl CudaDeviceArg) -> Result<DeviceGuard> {
    let runtime = CurrentRuntime::get();
    let index = device.index_in(&runtime).of("device")?;
    runtime.devices()?.device_guard(index)
}

/// Runs `f` with a device as this thread's current device, and restores the previous device, even if `f`
/// panics.
///
/// # Errors
/// Errors of `f`. Without running `f`: the same as [`set_device`].
#[track_caller]
pub fn with_device<R>(device: impl CudaDeviceArg, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let call = CallScope::enter("with_device");
    let _guard = self::device(device)?;
    drop(call);
    f()
}

/// Blocks the host until all work on a device is complete (`torch.cuda.synchronize`).
///
/// # Errors
/// [`ErrorKind::Surfaced`] if work on the device failed. [`ErrorKind::IndexCheck`], once, if an index check failed in
/// an op of this thread, or of a thread that has ended. [`ErrorKind::Capturing`] while a stream of the device is
/// captured. [`ErrorKind::NoSuchDevice`] if there is no GPU with this index.
/// [`ErrorKind::InvalidArgument`] if the device is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does
/// not name a device. [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`]
/// if no GPU can be used.
#[track_caller]
pub fn synchronize(device: impl CudaDeviceArg) -> Result<()> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("synchronize")?;
    runtime.device(index)?.device().synchronize()
}

/// Returns the name of a device (`torch.cuda.get_device_name`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn get_device_name(device: impl CudaDeviceArg) -> Result<String> {
    Ok(get_device_properties(device).of("get_device_name")?.name)
}

/// Returns the properties of a device (`torch.cuda.get_device_properties`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn get_device_properties(device: impl CudaDeviceArg) -> Result<DeviceProperties> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("get_device_properties")?;
    Ok(runtime.device(index)?.properties().clone())
}

/// Returns the compute capability of a device, major and minor (`torch.cuda.get_device_capability`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[track_caller]
pub fn get_device_capability(device: impl CudaDeviceArg) -> Result<(u32, u32)> {
    Ok(get_device_properties(device).of("get_device_capability")?.compute_capability)
}

/// Returns whether a device can access the memory of a peer (`torch.cuda.can_device_access_peer`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used or the driver fails.
#[track_caller]
pub fn can_device_access_peer(
    device: impl CudaDeviceArg,
    peer: impl CudaDeviceArg,
) -> Result<bool> {
    let runtime = runtime();
    let (device, peer) = (
        device.index_in(&runtime).of("can_device_access_peer")?,
        peer.index_in(&runtime).of("can_device_access_peer")?,
    );
    runtime
        .driver()?
        .can_access_peer(device, peer)
        .map_err(|e| Error::driver("can_device_access_peer", e))
}

/// Allows ops on `device` to take tensors of `peer`, whose memory they then read directly: `x + y` runs on the
/// device of `x`, on its current stream, in order with the work on both devices. The access lasts for the life
/// of the runtime. The other direction is enabled separately.
///
/// PyTorch enables peer access when a copy needs it, and refuses ops on tensors of two devices. Copies need no
/// call of this function.
///
/// ```
/// # use warpline::{RuntimeConfig, cuda, full, open, with_runtime};
/// # with_runtime(&open("sim:2", &RuntimeConfig::default())?, || -> warpline::Result<()> {
/// cuda::enable_peer_access(0, 1)?;
/// let sum = (full([2], 1.0, "cuda:0")? + full([2], 2.0, "cuda:1")?)?;
/// assert_eq!(sum.device(), warpline::Device::cuda(0));
/// assert_eq!(sum.to_vec::<f32>()?, [3.0, 3.0]);
/// # Ok(()) })?;
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Driver`] if there is no link between the devices ([`can_device_access_peer`]).
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
#[doc(alias = "cudaDeviceEnablePeerAccess")]
#[track_caller]
pub fn enable_peer_access(device: impl CudaDeviceArg, peer: impl CudaDeviceArg) -> Result<()> {
    let runtime = runtime();
    let (device, peer) = (
        device.index_in(&runtime).of("enable_peer_access")?,
        peer.index_in(&runtime).of("enable_peer_access")?,
    );
    runtime.enable_peer_access(device, peer)
}

/// Releases memory that was shared with other processes, dropped here, and is not used by any work
/// (`torch.cuda.ipc_collect`). Sharing and receiving do the same for a part of this memory. Returns the number of
/// bytes that work still uses. No process needs to collect memory for another process.
pub fn ipc_collect() -> usize {
    crate::runtime().ipc_collect()
}

/// Sets the policy that orders work on different streams, from now on.
pub fn set_sync_policy(policy: SyncPolicy) {
    runtime().set_sync_policy(policy);
}

/// Sets the response to races under [`SyncPolicy::Manual`].
pub fn set_race_report(report: RaceReport) {
    runtime().set_race_report(report);
}

/// Returns the races noted under [`SyncPolicy::Manual`] since the last call, oldest first. At most 1,024 are kept.
#[must_use]
pub fn take_races() -> Vec<Race> {
    runtime().take_races()
}

/// Returns the possible races noted under [`SyncPolicy::Manual`] since the last call, oldest first. At most 1,024 are
/// kept. A race counts as possible if it takes too long to decide whether the elements of two strided views overlap
/// ([`Race::certain`]).
#[must_use]
pub fn take_possible_races() -> Vec<Race> {
    runtime().take_possible_races()
}
