//! Runtimes for tests.

use std::sync::Arc;

use warpline::{Runtime, RuntimeConfig, SyncPolicy, Tensor, with_runtime};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig, SimDriver};

pub(crate) type TestResult = anyhow::Result<()>;

/// A runtime with a simulated driver that the test can inspect.
pub(crate) struct SimBox {
    pub(crate) sim: Arc<SimDriver>,
    pub(crate) runtime: Runtime,
}

impl SimBox {
    pub(crate) fn new(devices: usize, schedule: Schedule, sync_policy: SyncPolicy) -> Self {
        let capacity = 8 << 30; // the simulator reserves addresses for the whole capacity
        let sim = SimConfig { schedule, capacity, ..SimConfig::new(devices) }.build();
        let config = RuntimeConfig { sync_policy, ..RuntimeConfig::default() };
        let runtime = Runtime::new(sim.clone(), config).expect("a runtime");
        Self { sim, runtime }
    }

    pub(crate) fn lazy(devices: usize) -> Self {
        Self::new(devices, Schedule::Lazy, SyncPolicy::Auto)
    }

    /// Runs `body` with this runtime.
    pub(crate) fn enter(&self, body: impl FnOnce() -> TestResult) {
        with_runtime(&self.runtime, body).unwrap_or_else(|e| panic!("{e:?}"));
    }

    /// Returns the number of enqueued copies.
    pub(crate) fn copies(&self) -> u64 {
        self.sim.usage().count(CallKind::MemcpyAsync)
    }

    /// Returns the number of host waits for a device.
    pub(crate) fn host_waits(&self) -> u64 {
        self.sim.usage().host_waits
    }
}

fn schedules() -> impl Iterator<Item = Schedule> {
    let seeds = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    [Schedule::Lazy, Schedule::Eager].into_iter().chain((0..seeds).map(Schedule::Seeded))
}

/// Runs a test for each number of simulated devices under many schedules. A failure prints both.
pub(crate) fn on_sim(
    devices: impl IntoIterator<Item = usize>,
    policy: SyncPolicy,
    body: impl Fn(usize) -> TestResult,
) {
    struct OnPanic(usize, Schedule);
    impl Drop for OnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed on {} simulated devices, {:?}", self.0, self.1);
            }
        }
    }
    for devices in devices {
        for schedule in schedules() {
            let _named = OnPanic(devices, schedule);
            SimBox::new(devices, schedule, policy).enter(|| body(devices));
        }
    }
}

/// Runs a test on the machine's GPUs, or with the driver of `WARPLINE_DRIVER`.
pub(crate) fn on_gpu(needs: usize, policy: SyncPolicy, body: impl Fn(usize) -> TestResult) {
    let spec = std::env::var("WARPLINE_DRIVER").unwrap_or_else(|_| "cuda".into());
    let config = RuntimeConfig { sync_policy: policy, ..RuntimeConfig::default() };
    let runtime = warpline::open(&spec, &config).unwrap_or_else(|e| panic!("{spec}: {e}"));
    let found = runtime.device_count();
    assert!(found >= needs, "{needs} GPUs are needed, {found} found");
    with_runtime(&runtime, || body(found.min(8))).unwrap_or_else(|e| panic!("{e:?}"));
}

pub(crate) fn values(tensor: &Tensor) -> anyhow::Result<Vec<f32>> {
    Ok(tensor.to_vec::<f32>()?)
}

/// Declares each test twice: for simulated devices, and for two or more GPUs.
#[macro_export]
macro_rules! on_both {
    ($($policy:ident($devices:expr) $sim:ident $gpu:ident => $body:expr;)*) => {$(
        #[test]
        fn $sim() {
            $crate::data_parallel::world::on_sim($devices, warpline::SyncPolicy::$policy, $body);
        }

        #[test]
        #[ignore = "needs two GPUs"]
        fn $gpu() {
            $crate::data_parallel::world::on_gpu(2, warpline::SyncPolicy::$policy, $body);
        }
    )*};
}
