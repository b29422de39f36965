//! The runtime that functions without an explicit one use. The only file that reads the
//! environment.
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPLINE_DRIVER` | `cuda` (or unset): the machine's driver; `sim:N` and options: N simulated GPUs |
//! | `CUDA_VISIBLE_DEVICES` | which devices there are, and their order |
//! | `CUDA_LAUNCH_BLOCKING` | `1`: each launch is waited for and reports its own failure |
//! | `PYTORCH_CUDA_ALLOC_CONF` and others | [`warpline_alloc::AllocatorConfig::from_env_with`] |

use std::cell::RefCell;
use std::sync::OnceLock;

use warpline_alloc::AllocatorConfig;
use warpline_cuda_sys_safe::DriverError;

use crate::{Error, Result, Runtime, RuntimeConfig};

/// Made on first use and never destroyed: tensors in statics and threads may outlive `main`.
static PROCESS: OnceLock<Runtime> = OnceLock::new();

thread_local! {
    static OVERRIDE: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// The runtime in use: the innermost [`with_runtime`]'s, else the process's own, which is made
/// from the environment on first use.
#[must_use]
pub fn runtime() -> Runtime {
    // Where the thread is being torn down there is no override any more.
    let own = OVERRIDE.try_with(|own| own.borrow().clone()).ok().flatten();
    own.unwrap_or_else(|| PROCESS.get_or_init(from_environment).clone())
}

/// Runs `f` with another runtime in this thread: an isolated world of devices and caches.
/// Threads that `f` starts do not inherit it; they call `with_runtime` themselves.
///
/// The former one is back afterwards, after a panic too.
pub fn with_runtime<R>(runtime: &Runtime, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Runtime>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let former = self.0.take();
            let _ = OVERRIDE.try_with(|own| own.replace(former));
        }
    }
    let former = OVERRIDE.try_with(|own| own.replace(Some(runtime.clone()))).ok().flatten();
    let _restore = Restore(former);
    f()
}

/// Seeds the generators of the CPU and of every device (`torch.manual_seed`).
pub fn manual_seed(seed: u64) {
    runtime().manual_seed(seed);
}

/// A runtime of `devices` simulated GPUs with default settings. `CUDA_VISIBLE_DEVICES` has no
/// effect on it.
///
/// # Errors
/// None with a number of devices that fits a machine.
pub fn simulated(devices: usize) -> Result<Runtime> {
    simulated_with(devices, None)
}

/// A runtime of simulated GPUs of which `CUDA_VISIBLE_DEVICES` shows `visible`.
///
/// # Errors
/// As [`simulated`].
pub fn simulated_with(devices: usize, visible: Option<&str>) -> Result<Runtime> {
    let driver = warpline_cuda_sys_safe::open(Some(&format!("sim:{devices}")), visible);
    Runtime::new(driver.map_err(|e| Error::driver("simulated", e))?, RuntimeConfig::default())
}

/// A runtime of its own: over the machine's driver for `"cuda"`, over simulated GPUs for `"sim:3"`
/// and the like. `CUDA_VISIBLE_DEVICES` decides over the devices of the former.
///
/// # Errors
/// [`Error::Driver`] when the driver cannot be had, or `spec` means nothing.
pub fn open(spec: &str, config: &RuntimeConfig) -> Result<Runtime> {
    let driver = warpline_cuda_sys_safe::open(Some(spec), None);
    let driver = driver.map_err(|e| Error::driver("open", e))?;
    Runtime::new(driver, config.clone())
}

fn from_environment() -> Runtime {
    let variable = |name: &str| std::env::var(name).ok();
    let mut config = RuntimeConfig {
        launch_blocking: variable("CUDA_LAUNCH_BLOCKING").is_some_and(|v| v.trim() == "1"),
        ..RuntimeConfig::default()
    };
    let made = AllocatorConfig::from_env_with(variable)
        .map_err(|e| refused("PYTORCH_CUDA_ALLOC_CONF", e.to_string()))
        .and_then(|allocator| {
            config.allocator = allocator;
            let visible = variable("CUDA_VISIBLE_DEVICES");
            let spec = variable("WARPLINE_DRIVER");
            warpline_cuda_sys_safe::open(spec.as_deref(), visible.as_deref())
        });
    match made {
        Err(reason) => Runtime::without_cuda(reason, &config),
        Ok(driver) => Runtime::new(driver, config.clone()).unwrap_or_else(|error| {
            let reason = error.driver_error().cloned();
            let reason = reason.unwrap_or_else(|| refused("WARPLINE_DRIVER", error.to_string()));
            Runtime::without_cuda(reason, &config)
        }),
    }
}

fn refused(call: &'static str, reason: String) -> DriverError {
    DriverError::InvalidArgument { call, reason }
}
