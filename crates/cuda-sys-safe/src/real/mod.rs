//! The real driver: `libcuda`, found and loaded at run time.
//!
//! # Library search
//! If `WARPLINE_LIBCUDA` is set, only its value is tried: the path of the library, or of the folder
//! that contains it. Otherwise `libcuda.so.1`, then `libcuda.so`, are looked for on the loader's
//! path (which `LD_LIBRARY_PATH` extends), then in `/usr/lib/x86_64-linux-gnu`,
//! `/usr/lib/aarch64-linux-gnu`, `/usr/lib64`, `/usr/local/nvidia/lib64` and `/usr/lib/wsl/lib`. On
//! Windows the name is `nvcuda.dll`, and the folders of `CUDA_PATH` and `PATH` are searched last.
//!
//! # Environment variables
//! `libcuda` itself obeys `CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`, `CUDA_LAUNCH_BLOCKING` and
//! `CUDA_MODULE_LOADING`. This module reads `WARPLINE_LIBCUDA` and `WARPLINE_NVML`, and checks that
//! the paths in `WARPLINE_CUBLAS`, `WARPLINE_CUDNN` and `WARPLINE_NVML` exist. If no device is
//! visible, the error contains the value of `CUDA_VISIBLE_DEVICES`, if it is set. Device indices
//! count only visible devices.
//!
//! # Contexts
//! Each device's primary context is retained on first need and never released, so objects may be
//! dropped at any time. Every call that needs a context makes the device's context current on its
//! thread. This costs some 20 ns. Remembering the current context would cost less, but would be
//! wrong if other CUDA code in the process changes it.
//!
//! # Sticky errors
//! After a sticky error ([`CudaCode::is_sticky`](crate::CudaCode::is_sticky)), no call on any
//! device of the process works: `libcuda` returns the same code everywhere. So every device then
//! returns [`DriverError::DeviceLost`] for good, and releases succeed, both without a driver call.
//! An asynchronous error surfaces in the next call on any device, so it is recognised by its code.

mod api;
mod call_macros;
mod captures;
mod device;
mod driver;
mod fork;
mod launch;
mod nvml;
mod properties;
mod raw;
#[cfg(unix)]
mod share;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use self::api::CudaApi;
use self::device::VisibleDevice;
use self::fork::OwnerProcess;
pub use self::fork::fork_generation;
use crate::dylib::{StatusCode, version_text};
use crate::owned::Refused;
use crate::{CudaCode, Driver, DriverError, Result};
use crate::{blas, cudnn};

/// The CUDA driver of this machine. [`load`] makes it.
///
/// ```no_run
/// use warpline_cuda_sys_safe::{owned::DeviceMemory, real};
///
/// let driver = real::load()?;
/// println!("{}", driver.properties(0)?.name);
/// let memory = DeviceMemory::new(&driver, 0, 1 << 20)?;
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Debug)]
pub struct CudaDriver {
    api: CudaApi,
    version: u32,
    devices: Vec<VisibleDevice>,
    owner: OwnerProcess,
    refused: Refused,
}

/// Returns the process's CUDA driver. The first call [loads](self#library-search)
/// the library and initialises it. Later calls return the same result, driver or error.
///
/// # Errors
/// - [`DriverError::LibraryNotFound`] if no library is found.
/// - [`DriverError::InvalidVariable`] if an environment variable names a library that cannot be
///   loaded or does not exist.
/// - [`DriverError::MissingSymbol`] if the library is too old.
/// - [`DriverError::NoDevice`] if the driver shows no device and `CUDA_VISIBLE_DEVICES` is not set.
/// - [`DriverError::DevicesHidden`] if the driver shows no device and the variable is set.
/// - [`DriverError::Cuda`] if the driver cannot be initialised.
pub fn load() -> Result<Arc<dyn Driver>> {
    static DRIVER: OnceLock<Result<Arc<dyn Driver>>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            let named = api::SEARCH.named_in_env();
            let driver = load_from(&search_paths(named.as_deref()));
            let driver = driver.map_err(|error| api::SEARCH.blame(named.as_deref(), error))?;
            // Check these variables now, because an invalid one would otherwise go unnoticed:
            // Warpline works without cuBLAS, cuDNN and NVML.
            for search in [blas::SEARCH, cudnn::SEARCH, nvml::SEARCH] {
                search.check_named()?;
            }
            Ok(driver)
        })
        .clone()
}

/// Returns the number of devices that [`load`] would show under a value of `CUDA_VISIBLE_DEVICES`,
/// according to NVML. `None` if NVML is not available, or if the value begins with an instance of a
/// partitioned device.
pub(crate) fn count_devices(visible: Option<&str>) -> Option<usize> {
    if visible.is_some_and(|value| value.trim_start().starts_with("MIG-")) {
        return None;
    }
    let uuids = nvml::uuids()?;
    Some(visible.map_or(uuids.len(), |value| crate::visible::visible(value, &uuids).len()))
}

/// Returns the paths that [`load`] tries, in order. If `named` is given, a library or its folder,
/// nothing else is tried.
#[must_use]
pub fn search_paths(named: Option<&Path>) -> Vec<PathBuf> {
    api::SEARCH.candidates(named)
}

/// Loads the first of `paths` that opens, and initialises it. Intended for tests and unusual
/// installations. Use one driver per process, because a driver learns only from its own calls that
/// a device is lost.
///
/// # Errors
/// The errors of [`load`], except [`DriverError::InvalidVariable`].
pub fn load_from(paths: &[PathBuf]) -> Result<Arc<dyn Driver>> {
    // Start to watch for forks before cuInit.
    let owner = OwnerProcess::here();
    let api = api::open(paths)?;

    // SAFETY: the function takes no pointers.
    let status = unsafe { (api.cuInit)(0) };
    let mut version = 0;
    // SAFETY: the pointer is valid for writes.
    let version_status = unsafe { (api.cuDriverGetVersion)(&mut version) };
    let version = version as u32;
    initialised("cuInit", status, version)?;
    initialised("cuDriverGetVersion", version_status, version)?;

    let mut count = 0;
    // SAFETY: the pointer is valid for writes.
    initialised("cuDeviceGetCount", unsafe { (api.cuDeviceGetCount)(&mut count) }, version)?;
    if count < 1 {
        return Err(no_device("cuDeviceGetCount answered 0"));
    }
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut raw = 0;
        // SAFETY: the pointer is valid for writes.
        initialised("cuDeviceGet", unsafe { (api.cuDeviceGet)(&mut raw, ordinal) }, version)?;
        devices.push(VisibleDevice::new(raw));
    }
    Ok(Arc::new(CudaDriver { api, version, devices, owner, refused: Refused::default() }))
}

fn initialised(call: &'static str, status: StatusCode, version: u32) -> Result<()> {
    let code = CudaCode(status);
    match code {
        CudaCode(0) => Ok(()),
        CudaCode::NO_DEVICE => Err(no_device(&format!("{call} answered {}", code.name()))),
        CudaCode::STUB_LIBRARY => Err(DriverError::cuda(call, code, None).with_detail(|| {
            format!(
                "the library found is the stub that the CUDA toolkit links against, not a driver; \
                 install one, or name its libcuda in {}",
                api::SEARCH.variable
            )
        })),
        _ => Err(DriverError::cuda(call, code, None)
            .with_detail(|| format!("the driver supports CUDA {}", version_text(version)))),
    }
}

fn no_device(what: &str) -> DriverError {
    match std::env::var_os("CUDA_VISIBLE_DEVICES") {
        Some(value) => DriverError::DevicesHidden {
            value: value.to_string_lossy().into_owned(),
            installed: installed(),
        },
        None => {
            DriverError::NoDevice { reason: format!("{what}; check that nvidia-smi lists one") }
        }
    }
}

/// Returns the number of devices of the kernel module, if known.
fn installed() -> Option<usize> {
    Some(std::fs::read_dir("/proc/driver/nvidia/gpus").ok()?.count())
}

#[cfg(test)]
mod tests;
