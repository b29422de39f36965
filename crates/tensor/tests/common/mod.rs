//! Runtimes for tests, and access to the golden files.
#![allow(dead_code)] // each test binary uses only a part

pub(crate) mod bad_calls;
pub(crate) mod random;
pub(crate) mod sources;

use std::path::PathBuf;
use std::process::Command;

use warpline::{Device, Result, Runtime, RuntimeConfig, SyncPolicy, with_runtime};

/// A runtime that only one test uses, and a description of its driver.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) devices: usize,
    pub(crate) name: String,
    /// Whether the GPUs are real.
    pub(crate) real: bool,
}

impl World {
    fn open(spec: &str, config: &RuntimeConfig) -> Self {
        let runtime = warpline::open(spec, config).unwrap_or_else(|e| panic!("{spec}: {e}"));
        let devices = runtime.device_count();
        Self { runtime, devices, name: spec.into(), real: spec == "cuda" }
    }

    /// The CPU and all GPUs.
    pub(crate) fn places(&self) -> Vec<Device> {
        let gpus = (0..self.devices).map(Device::cuda);
        std::iter::once(Device::Cpu).chain(gpus).collect()
    }

    fn enter(&self, body: &dyn Fn(&World) -> Result<()>) {
        /// Prints the driver's specification, which includes the seed, if the test panics.
        struct OnPanic<'a>(&'a str);
        impl Drop for OnPanic<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("failed in WARPLINE_DRIVER={}", self.0);
                }
            }
        }
        let _named = OnPanic(&self.name);
        with_runtime(&self.runtime, || body(self)).unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }
}

fn number(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// Returns the numbers of simulated devices to test with: from `needs` to 3, or only the number in
/// `WARPLINE_SIM_DEVICES`.
fn device_counts(needs: usize) -> Vec<usize> {
    let only = number("WARPLINE_SIM_DEVICES", 0);
    (needs.max(1)..=3).filter(|n| only == 0 || *n == only).collect()
}

/// Runs a test on simulated machines with `needs` to three devices.
pub(crate) fn worlds(needs: usize, body: impl Fn(&World) -> Result<()>) {
    worlds_with(needs, &RuntimeConfig::default(), body);
}

/// Like [`worlds`], with these settings.
pub(crate) fn worlds_with(
    needs: usize,
    config: &RuntimeConfig,
    body: impl Fn(&World) -> Result<()>,
) {
    for devices in device_counts(needs) {
        World::open(&format!("sim:{devices}"), config).enter(&body);
    }
}

/// Like [`worlds`], with this policy: runs a test under the laziest schedule and under
/// `WARPLINE_SCHEDULES` (default: 8) seeded schedules.
pub(crate) fn schedules(needs: usize, policy: SyncPolicy, body: impl Fn(&World) -> Result<()>) {
    let config = RuntimeConfig { sync_policy: policy, ..RuntimeConfig::default() };
    schedules_with(needs, &config, body);
}

/// Like [`schedules`], with these settings.
pub(crate) fn schedules_with(
    needs: usize,
    config: &RuntimeConfig,
    body: impl Fn(&World) -> Result<()>,
) {
    for devices in device_counts(needs) {
        World::open(&format!("sim:{devices},lazy"), config).enter(&body);
        for seed in 0..number("WARPLINE_SCHEDULES", 8) {
            World::open(&format!("sim:{devices},seed={seed}"), config).enter(&body);
        }
    }
}

/// Runs a test on `needs` devices, under the laziest schedule and `WARPLINE_SCHEDULES` seeded
/// schedules, but at least 64. For faults that occur only under few schedules.
pub(crate) fn schedules64(needs: usize, body: impl Fn(&World) -> Result<()>) {
    let config = RuntimeConfig::default();
    World::open(&format!("sim:{needs},lazy"), &config).enter(&body);
    for seed in 0..number("WARPLINE_SCHEDULES", 64).max(64) {
        World::open(&format!("sim:{needs},seed={seed}"), &config).enter(&body);
    }
}

/// Returns settings under which the allocator reserves and reuses memory exactly like PyTorch's.
pub(crate) fn torch_config() -> RuntimeConfig {
    let allocator = warpline::cuda::AllocatorConfig::parse("policy:torch").expect("options");
    RuntimeConfig { allocator, ..RuntimeConfig::default() }
}

/// Returns the driver for [`gpu`]: the specification in `WARPLINE_DRIVER`, by default the real
/// driver.
pub(crate) fn gpu_spec() -> String {
    std::env::var("WARPLINE_DRIVER").unwrap_or_else(|_| "cuda".into())
}

/// Runs a test on the devices of the driver [`gpu_spec`], with the allocator options of the
/// environment.
pub(crate) fn gpu(needs: usize, policy: SyncPolicy, body: impl Fn(&World) -> Result<()>) {
    let read = |name: &str| std::env::var(name);
    let allocator = warpline::cuda::AllocatorConfig::from_env_with(read).expect("options");
    let config = RuntimeConfig { sync_policy: policy, allocator, ..RuntimeConfig::default() };
    gpu_with(needs, &config, body);
}

/// Like [`gpu`], with these settings.
pub(crate) fn gpu_with(needs: usize, config: &RuntimeConfig, body: impl Fn(&World) -> Result<()>) {
    let world = World::open(&gpu_spec(), config);
    assert!(world.devices >= needs, "{needs} GPUs are needed, {} found", world.devices);
    world.enter(&body);
}

/// Runs a test on a machine without CUDA.
pub(crate) fn cpu(body: impl Fn(&World) -> Result<()>) {
    let reason =
        warpline_cuda_sys_safe::DriverError::NoDevice { reason: "hidden by a test".into() };
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    World { runtime, devices: 0, name: "cpu".into(), real: false }.enter(&body);
}

/// Returns the number of GPUs that a test's name declares: 1 for `gpu_…`, N for `gpuN_…`.
pub(crate) const fn declared(name: &str) -> usize {
    match name.as_bytes()[3] {
        b'_' => 1,
        digit => (digit - b'0') as usize,
    }
}

/// Declares tests. Each test has a version on simulated devices and a version on real GPUs.
#[macro_export]
macro_rules! rows {
    ($($runner:ident($needs:expr) $sim:ident $gpu:ident => $body:expr;)*) => {$(
        #[test]
        fn $sim() {
            $crate::rows!(@ $runner $needs, $body);
        }

        const _: () = assert!(
            $crate::common::declared(stringify!($gpu)) >= $needs,
            "a GPU test needs more GPUs than its name declares"
        );

        #[test]
        #[ignore = "needs a GPU"]
        fn $gpu() {
            $crate::rows!(@gpu $runner $needs, $body);
        }
    )*};
    (@ worlds $needs:expr, $body:expr) => { $crate::common::worlds($needs, $body) };
    (@ schedules $needs:expr, $body:expr) => {
        $crate::common::schedules($needs, warpline::SyncPolicy::Auto, $body)
    };
    (@ schedules64 $needs:expr, $body:expr) => { $crate::common::schedules64($needs, $body) };
    (@ manual $needs:expr, $body:expr) => {
        $crate::common::schedules($needs, warpline::SyncPolicy::Manual, $body)
    };
    (@ torch $needs:expr, $body:expr) => {
        $crate::common::schedules_with($needs, &$crate::common::torch_config(), $body)
    };
    (@gpu torch $needs:expr, $body:expr) => {
        $crate::common::gpu_with($needs, &$crate::common::torch_config(), $body)
    };
    (@gpu manual $needs:expr, $body:expr) => {
        $crate::common::gpu($needs, warpline::SyncPolicy::Manual, $body)
    };
    (@gpu $runner:ident $needs:expr, $body:expr) => {
        $crate::common::gpu($needs, warpline::SyncPolicy::Auto, $body)
    };
}

/// Returns a command that runs one test of this program in another process and shows its output. `module` is the
/// `module_path!` of the test's module.
pub(crate) fn own_test(module: &str, test: &str) -> Command {
    let module = module.split_once("::").map_or("", |(_, module)| module);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]);
    command
}

/// Returns the folder of the golden files: `WARPLINE_GOLDENS`, by default the committed folder.
pub(crate) fn goldens() -> PathBuf {
    if let Some(path) = std::env::var_os("WARPLINE_GOLDENS") {
        return path.into();
    }
    committed_goldens()
}

/// Returns the folder of the committed golden files.
pub(crate) fn committed_goldens() -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    let root = root.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    root.join("tests/goldens")
}

/// Reads a golden JSON file. Returns `None` if the folder in `WARPLINE_GOLDENS` lacks the file.
pub(crate) fn golden_json(name: &str) -> Option<serde_json::Value> {
    let path = goldens().join(name);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(_) if std::env::var_os("WARPLINE_GOLDENS").is_some() => return None,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}
