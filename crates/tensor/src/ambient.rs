//! The runtime of functions that take no runtime as an argument. No other file of this crate reads the environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPLINE_DRIVER` | `cuda` (default): the driver of the machine. `sim:N` and options: N simulated GPUs |
//! | `CUDA_VISIBLE_DEVICES` | the visible devices, in their order |
//! | `CUDA_LAUNCH_BLOCKING` | `0` (default) or `1`. With `1` the host waits for each launch, which then reports its own failure |
//! | `CUBLAS_WORKSPACE_CONFIG` | the size of cuBLAS's workspace per stream, as pairs `:SIZE:COUNT` with sizes in KiB. `:0:0`: none. Empty or unset: [`CudaDevice::cublas_workspace_bytes`](warpline_runtime::CudaDevice::cublas_workspace_bytes) |
//! | `PYTORCH_NVML_BASED_CUDA_CHECK` | `1`: before the runtime is in use, the number of devices is read without the CUDA driver, so that forked children can use CUDA |
//! | `WARPLINE_CACHE` | the folder that keeps the code compiled by NVRTC for later processes. Empty: none. Default: `warpline` in the user's cache folder |
//! | `WARPLINE_ALLOC_CONF`, PyTorch's names for it, and `PYTORCH_NO_CUDA_MEMORY_CACHING` | [`warpline_alloc::AllocatorConfig::from_env_with`] |
//!
//! A program with more rights than its caller (a setuid program) neither keeps compiled code nor reads it. A
//! variable with an invalid value, and an unknown name that begins with `WARPLINE_`, leave a runtime without
//! CUDA. Every call that needs a device, or asks whether there is one, then returns
//! [`crate::ErrorKind::InvalidVariable`]. CPU tensors work.

use std::cell::RefCell;
use std::env::VarError;
use std::ffi::OsStr;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;

use warpline_alloc::{AllocatorConfig, ConfigError};
use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::CudaPluggableAllocator;

use crate::environment::{cublas_workspace, hides_on_purpose, unknown_variable, why_hidden};
use crate::{Error, IntoOptions, Result, Runtime, RuntimeConfig};

/// Created on first use and never destroyed, because tensors in statics and threads may outlive `main`.
static PROCESS: OnceLock<Runtime> = OnceLock::new();

thread_local! {
    static OVERRIDE: RefCell<Option<Rc<Runtime>>> = const { RefCell::new(None) };
}

/// A handle to the current runtime for the duration of a call. The reference count of the override is not atomic, so
/// taking a handle changes no atomic counter.
pub(crate) enum CurrentRuntime {
    Override(Rc<Runtime>),
    Process(&'static Runtime),
}

impl CurrentRuntime {
    #[inline]
    pub(crate) fn get() -> Self {
        // Thread-locals may already be destroyed if the thread is ending.
        match OVERRIDE.try_with(|own| own.borrow().clone()).ok().flatten() {
            Some(own) => Self::Override(own),
            None => {
                Self::Process(PROCESS.get_or_init(|| process_runtime(RuntimeConfig::default())))
            }
        }
    }
}

impl Deref for CurrentRuntime {
    type Target = Runtime;

    #[inline]
    fn deref(&self) -> &Runtime {
        match self {
            Self::Override(runtime) => runtime,
            Self::Process(runtime) => runtime,
        }
    }
}

/// Returns the runtime in use: the runtime of the innermost [`with_runtime`], or the runtime of the process,
/// which is created from the environment on first use.
#[must_use]
pub fn runtime() -> Runtime {
    CurrentRuntime::get().clone()
}

/// Runs `f` with another runtime in this thread. Runtimes share no tensors, streams or memory caches, although two of
/// them may use the same GPU. Threads that `f` starts do not inherit the runtime; they call `with_runtime` themselves.
///
/// The previous runtime is restored afterwards, even if `f` panics.
#[doc(alias = "simulate")]
pub fn with_runtime<R>(runtime: &Runtime, f: impl FnOnce() -> R) -> R {
    struct RestoreRuntime(Option<Rc<Runtime>>);
    impl Drop for RestoreRuntime {
        fn drop(&mut self) {
            let former = self.0.take();
            let _ = OVERRIDE.try_with(|own| own.replace(former));
        }
    }
    let own = Rc::new(runtime.clone());
    let former = OVERRIDE.try_with(|slot| slot.replace(Some(own))).ok().flatten();
    let _restore = RestoreRuntime(former);
    f()
}

/// Seeds the generators of the CPU and of every device (`torch.manual_seed`).
pub fn manual_seed(seed: u64) {
    runtime().manual_seed(seed);
}

/// Options of [`simulated`]. A `usize` converts into options for that number of devices.
#[derive(Clone, Debug)]
pub struct SimulatedOptions {
    devices: usize,
    visible: Option<String>,
}

impl SimulatedOptions {
    /// Creates options for a number of devices.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        Self { devices, visible: None }
    }

    /// Sets a value of `CUDA_VISIBLE_DEVICES`, which hides devices from the runtime. Default: all devices are visible.
    #[must_use]
    pub fn visible<'a>(mut self, visible: impl Into<Option<&'a str>>) -> Self {
        self.visible = visible.into().map(Into::into);
        self
    }
}

impl From<usize> for SimulatedOptions {
    fn from(devices: usize) -> Self {
        Self::new(devices)
    }
}

/// Creates a runtime of simulated GPUs with default settings. `options` is the number of GPUs, or
/// [`SimulatedOptions`]. The variable `CUDA_VISIBLE_DEVICES` of the process has no effect on the runtime.
///
/// # Errors
/// [`ErrorKind::Driver`](crate::ErrorKind::Driver) if there are more than 64 devices.
#[track_caller]
pub fn simulated(options: impl IntoOptions<SimulatedOptions>) -> Result<Runtime> {
    let SimulatedOptions { devices, visible } = options.into_options();
    let config = RuntimeConfig::default();
    match warpline_cuda_sys_safe::open(Some(&format!("sim:{devices}")), visible.as_deref()) {
        Ok(driver) => Runtime::new(driver, config),
        Err(reason) if reason.is_no_device() => Ok(Runtime::without_cuda(reason, &config)),
        Err(error) => Err(Error::driver("simulated", error)),
    }
}

/// Creates a runtime that is separate from the runtime of the process. `"cuda"` opens the driver of the machine, and
/// `"sim:3"` simulates GPUs. `CUDA_VISIBLE_DEVICES` selects the devices of `"cuda"`, but not simulated devices.
///
/// # Errors
/// [`ErrorKind::Driver`](crate::ErrorKind::Driver) if the driver cannot be loaded or has no device.
/// [`ErrorKind::InvalidVariable`](crate::ErrorKind::InvalidVariable) if an environment variable such as
/// `WARPLINE_LIBCUDA` names a library that cannot be loaded.
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `spec` is not empty, not `"cuda"`, and does not
/// specify simulated GPUs.
#[track_caller]
pub fn open(spec: &str, config: &RuntimeConfig) -> Result<Runtime> {
    let driver = match warpline_cuda_sys_safe::open(Some(spec), None) {
        Ok(driver) => driver,
        Err(DriverError::InvalidArgument { reason, .. }) => {
            return Err(Error::invalid("open", reason));
        }
        Err(error) => return Err(Error::driver("open", error)),
    };
    Runtime::new(driver, config.clone())
}

/// Returns the number of devices without the CUDA driver, if `PYTORCH_NVML_BASED_CUDA_CHECK` asks for it and no runtime
/// is in use yet. Apart from this variable, reads only the settings that choose the devices.
pub(crate) fn count_devices_before_use() -> Option<usize> {
    let unused = || PROCESS.get().is_none() && OVERRIDE.with(|own| own.borrow().is_none());
    let read = |name| std::env::var(name).ok();
    if read("PYTORCH_NVML_BASED_CUDA_CHECK").as_deref() != Some("1") || !unused() {
        return None;
    }
    let (spec, visible) = (read("WARPLINE_DRIVER"), read("CUDA_VISIBLE_DEVICES"));
    warpline_cuda_sys_safe::count_devices(spec.as_deref(), visible.as_deref())
}

/// Allocates all GPU memory of the process with a library (`torch.cuda.memory.change_current_allocator`). The library is
/// called for each tensor, without a cache; [`MemPool`](crate::cuda::MemPool)s and captured graphs cache its memory.
///
/// Call this function before all others of Warpline except [`is_available`](crate::cuda::is_available) and
/// [`device_count`](crate::cuda::device_count) under `PYTORCH_NVML_BASED_CUDA_CHECK`: it creates the runtime of the
/// process. The runtimes of [`open`] have the field [`RuntimeConfig::pluggable_allocator`] instead. To use a library for
/// some tensors only, make a pool ([`MemPool::over`](crate::cuda::MemPool::over)).
///
/// ```no_run
/// use warpline::{cuda, zeros};
///
/// // SAFETY: the functions of this library call `cudaMalloc` and `cudaFree`.
/// let allocator = unsafe { cuda::CudaPluggableAllocator::load("./alloc.so", "my_alloc", "my_free") }?;
/// cuda::change_current_allocator(&allocator)?;
/// let x = zeros([1000], "cuda")?; // in memory of `my_alloc`
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the runtime of the process is already in use.
#[track_caller]
pub fn change_current_allocator(allocator: &CudaPluggableAllocator) -> Result<()> {
    let mut is_first_use = false;
    PROCESS.get_or_init(|| {
        is_first_use = true;
        let pluggable_allocator = Some(allocator.clone());
        process_runtime(RuntimeConfig { pluggable_allocator, ..RuntimeConfig::default() })
    });
    if is_first_use {
        return Ok(());
    }
    let reason = "the runtime of the process is already in use; change the allocator before the first tensor";
    Err(Error::invalid("change_current_allocator", reason))
}

/// Creates the runtime of the process.
fn process_runtime(config: RuntimeConfig) -> Runtime {
    let names = std::env::vars_os().map(|(name, _)| name);
    from_environment(config, |name: &str| std::env::var(name), names)
}

/// Returns a function that reads variables from pairs of names and values.
fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Result<String, VarError> {
    move |name| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_string()).ok_or(VarError::NotPresent)
    }
}

/// Creates a runtime from pairs of names and values in place of the environment, for tests of the settings.
#[track_caller]
pub fn from_variables(variables: &[(&str, &str)]) -> Runtime {
    from_environment(
        RuntimeConfig::default(),
        lookup(variables),
        variables.iter().map(|(name, _)| *name),
    )
}

/// Sets the options of `config` that the environment names, and creates the runtime. `names` yields the names of all
/// variables, and `read` returns a variable's value.
#[track_caller]
fn from_environment(
    mut config: RuntimeConfig,
    read: impl Fn(&str) -> Result<String, VarError>,
    names: impl Iterator<Item = impl AsRef<OsStr>>,
) -> Runtime {
    let opened = match unknown_variable(names) {
        None => open_from_environment(read, &mut config),
        Some((name, reason)) => {
            let value = read(&name).unwrap_or_default();
            Err(DriverError::variable(name, value, reason))
        }
    };
    opened.unwrap_or_else(|reason| Runtime::without_cuda(reason, &config))
}

#[track_caller]
fn open_from_environment(
    read: impl Fn(&str) -> Result<String, VarError>,
    config: &mut RuntimeConfig,
) -> Result<Runtime, DriverError> {
    let value = |name: &'static str| match read(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => {
            let reason = "the value is not UTF-8".into();
            Err(DriverError::variable(name, value.to_string_lossy(), reason))
        }
    };
    let blocking = value("CUDA_LAUNCH_BLOCKING")?;
    config.launch_blocking = match blocking.as_deref().map_or("", str::trim) {
        "1" => true,
        "" | "0" => false,
        other => {
            let reason = "it may be 0, or 1 to wait for each launch".into();
            return Err(DriverError::variable("CUDA_LAUNCH_BLOCKING", other, reason));
        }
    };
    if let Some(workspace) = value("CUBLAS_WORKSPACE_CONFIG")?.filter(|value| !value.is_empty()) {
        let Some(bytes) = cublas_workspace(&workspace) else {
            let reason = "it may be pairs `:SIZE:COUNT` with sizes in KiB, such as `:4096:2:16:8`, or `:0:0` for no \
                          workspace";
            return Err(DriverError::variable("CUBLAS_WORKSPACE_CONFIG", workspace, reason.into()));
        };
        config.cublas_workspace = Some(bytes);
    }
    config.allocator = AllocatorConfig::from_env_with(&read).map_err(|error| match error {
        ConfigError::Variable { variable, value, reason } => {
            DriverError::variable(variable, value, reason.to_string())
        }
        other => DriverError::InvalidArgument { call: "allocator", reason: other.to_string() },
    })?;
    config.compile_cache = match value("WARPLINE_CACHE")? {
        Some(folder) => Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty()),
        None => user_cache_dir(|name| read(name).ok()).map(|caches| caches.join("warpline")),
    };
    config.compile_cache.take_if(|_| warpline_cuda_sys_safe::has_elevated_rights());
    let (spec, visible) = (value("WARPLINE_DRIVER")?, value("CUDA_VISIBLE_DEVICES")?);
    let driver = warpline_cuda_sys_safe::open(spec.as_deref(), visible.as_deref());
    let driver = driver.map_err(|error| match error {
        DriverError::InvalidArgument { reason, .. } => {
            DriverError::variable("WARPLINE_DRIVER", spec.unwrap_or_default(), reason)
        }
        DriverError::DevicesHidden { value, installed: Some(count) }
            if count > 0 && !hides_on_purpose(&value) =>
        {
            let reason = why_hidden(&value, count);
            DriverError::variable("CUDA_VISIBLE_DEVICES", value, reason)
        }
        error => error,
    })?;
    Runtime::new(driver, config.clone()).map_err(|error| {
        let reason = error.driver_error().cloned();
        reason.unwrap_or_else(|| DriverError::InvalidArgument {
            call: "the driver's devices",
            reason: error.to_string(),
        })
    })
}

/// Returns the user's cache folder, by the system's convention. A relative path is ignored, because its
/// meaning depends on the current folder.
fn user_cache_dir(read: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let folder = |name| read(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        Some(folder("HOME")?.join("Library/Caches"))
    } else {
        folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
    }
}

#[cfg(test)]
mod tests {
    use super::from_variables as with;
    use super::*;
    use crate::ErrorKind;

    #[cfg(target_os = "linux")]
    #[test]
    fn compiled_programs_are_kept_in_the_users_cache_folder() {
        let folder = |variables: &[(&str, &str)]| {
            let mut config = RuntimeConfig::default();
            let all = [&[("WARPLINE_DRIVER", "sim:1")], variables].concat();
            open_from_environment(lookup(&all), &mut config).unwrap();
            config.compile_cache
        };
        let home = ("HOME", "/home/me");
        assert_eq!(folder(&[]), None, "no folder is known");
        assert_eq!(folder(&[home]), Some("/home/me/.cache/warpline".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/c")]), Some("/c/warpline".into()));
        let nowhere = ("XDG_CACHE_HOME", "c");
        assert_eq!(folder(&[home, nowhere]), Some("/home/me/.cache/warpline".into()));
        assert_eq!(folder(&[home, ("WARPLINE_CACHE", "here")]), Some("here".into()));
        assert_eq!(folder(&[home, ("WARPLINE_CACHE", "")]), None);
    }

    /// Returns the reason why CUDA is not available.
    fn unavailable_reason(runtime: &Runtime) -> String {
        runtime.devices().unwrap_err().to_string()
    }

    #[test]
    fn variables_are_applied() {
        let conf = ("PYTORCH_ALLOC_CONF", "policy:torch,max_split_size_mb:40");
        let runtime = with(&[("WARPLINE_DRIVER", "sim:2"), conf, ("CUDA_LAUNCH_BLOCKING", "1")]);
        assert_eq!(runtime.device_count(), 2);
        assert!(runtime.launch_blocking());
        let config = runtime.device(1).unwrap().allocator().config();
        assert_eq!(config.max_split_size, Some(40 << 20));
    }

    #[test]
    fn an_invalid_option_names_the_variable_that_was_read() {
        for variable in ["WARPLINE_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
            let reason = unavailable_reason(&with(&[
                ("WARPLINE_DRIVER", "sim:1"),
                (variable, "polisy:torch"),
            ]));
            assert!(reason.contains(variable) && reason.contains("`polisy`"), "{reason}");
            assert!(reason.contains("is `polisy:torch`") && reason.contains("policy,"), "{reason}");
            let named = reason.matches("ALLOC_CONF").count();
            assert_eq!(named, 1, "no other variable is named: {reason}");
        }
    }

    #[test]
    fn s37_the_configured_workspace_is_the_sum_of_its_pairs() {
        let bytes = |config| {
            let runtime =
                with(&[("WARPLINE_DRIVER", "sim:1"), ("CUBLAS_WORKSPACE_CONFIG", config)]);
            runtime.device(0).map(warpline_runtime::CudaDevice::cublas_workspace_bytes)
        };
        // The first two values are also those of PyTorch's tests.
        assert_eq!(bytes("").unwrap(), 32 << 20, "the default of the simulated GPU");
        assert_eq!(bytes(":128:8:64:16:32:32").unwrap(), 3072 << 10);
        assert_eq!(bytes(":4096:2:16:8").unwrap(), 8320 << 10);
        assert_eq!(bytes(":16:8").unwrap(), 128 << 10);
        assert_eq!(bytes(":0:0").unwrap(), 0);
        let most = "18446744073709551615";
        for invalid in
            ["-1", "4096:2", ":4096", ":4096:", ":16:8:", ":16:8:4", ":16:+8", "::", " :16:8", most]
        {
            let error = bytes(invalid).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidVariable), "{invalid}: {error}");
            let text = error.to_string();
            assert!(text.contains("CUBLAS_WORKSPACE_CONFIG is `"), "{text}");
            assert!(text.contains(":4096:2:16:8"), "{text}");
        }
        for too_large in
            [format!(":{most}:1"), format!(":1:{most}"), ":9007199254740992:2048".into()]
        {
            let error = with(&[("CUBLAS_WORKSPACE_CONFIG", too_large.as_str())]);
            assert!(unavailable_reason(&error).contains(&too_large));
        }
    }

    #[test]
    fn an_unknown_variable_is_an_error_of_device_calls() {
        let runtime = with(&[("WARPLINE_DRIVER", "sim:1"), ("WARPLINE_ALOC_CONF", "x:1")]);
        let reason = unavailable_reason(&runtime);
        let start =
            "the environment variable WARPLINE_ALOC_CONF is `x:1`: there is no such variable";
        assert!(reason.starts_with(start), "{reason}");
        assert!(reason.contains("did you mean WARPLINE_ALLOC_CONF?"), "{reason}");
    }

    #[test]
    fn values_that_hide_devices_are_told_from_typing_errors() {
        let asked = |visible| {
            let runtime = with(&[("WARPLINE_DRIVER", "sim:2"), ("CUDA_VISIBLE_DEVICES", visible)]);
            runtime.devices().map(|devices| devices.count())
        };
        for hidden in ["", "-1", " ", "none", "NoDevFiles", "-1,0"] {
            let error = asked(hidden).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error}");
            assert!(!error.to_string().contains("NVIDIA GPU"), "{error}");
        }
        let devices = ["7", "0,0", "+2,0", "GPU-123", "99999999999999999999"];
        for invalid in devices.into_iter().chain(["all", "cuda:1", "gpu-0", "[0]", "MIG-1", ",0"]) {
            let error = asked(invalid).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidVariable), "{error}");
            assert!(error.to_string().contains(&format!("is `{invalid}`")), "{error}");
        }
        assert_eq!(asked("1,7").unwrap(), 1, "the list ends at an invalid index");
    }

    #[test]
    fn the_error_of_a_simulation_without_devices_suggests_no_real_gpu() {
        let error = with(&[("WARPLINE_DRIVER", "sim:0")]).devices().map(|d| d.count()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CudaUnavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("sim:1") && !text.contains("NVIDIA GPU"), "{text}");
    }

    #[test]
    fn a_value_that_is_not_unicode_names_its_variable() {
        for variable in [
            "CUBLAS_WORKSPACE_CONFIG",
            "CUDA_LAUNCH_BLOCKING",
            "CUDA_VISIBLE_DEVICES",
            "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
            "WARPLINE_CACHE",
            "WARPLINE_DRIVER",
        ] {
            let read = |name: &str| match name {
                _ if name == variable => Err(VarError::NotUnicode("\u{fffd}".into())),
                "WARPLINE_DRIVER" => Ok("sim:1".into()),
                _ => Err(VarError::NotPresent),
            };
            let runtime = from_environment(RuntimeConfig::default(), read, [variable].iter());
            let reason = unavailable_reason(&runtime);
            assert!(reason.contains(variable) && reason.contains("UTF-8"), "{reason}");
        }
    }
}
