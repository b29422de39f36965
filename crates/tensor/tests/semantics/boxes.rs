//! Simulated machines ("boxes") whose driver a test can inspect and make fail: executed work,
//! waits, live objects, injected failures.
#![allow(dead_code)] // each test binary uses only a part

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use warpline::{Result, Runtime, RuntimeConfig, SyncPolicy, with_runtime};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig, SimDriver};

/// A runtime with its own simulated driver.
#[derive(Debug)]
pub(crate) struct SimBox {
    pub(crate) sim: Arc<SimDriver>,
    pub(crate) runtime: Runtime,
    pub(crate) devices: usize,
    pub(crate) schedule: Schedule,
}

impl SimBox {
    pub(crate) fn new(config: SimConfig, runtime: &RuntimeConfig) -> Self {
        let schedule = config.schedule;
        let sim = config.build();
        let runtime = Runtime::new(sim.clone(), runtime.clone()).expect("a runtime");
        let devices = runtime.device_count();
        Self { sim, runtime, devices, schedule }
    }

    /// Opens a box that runs work only when something waits for it.
    pub(crate) fn lazy(devices: usize) -> Self {
        Self::with(devices, Schedule::Lazy, SyncPolicy::Auto)
    }

    pub(crate) fn with(devices: usize, schedule: Schedule, sync_policy: SyncPolicy) -> Self {
        let config = RuntimeConfig { sync_policy, ..RuntimeConfig::default() };
        Self::new(SimConfig { schedule, ..SimConfig::new(devices) }, &config)
    }

    /// Runs a test in this box's runtime. A failed test prints the schedule.
    pub(crate) fn enter(&self, body: impl FnOnce() -> Result<()>) {
        struct OnPanic(usize, Schedule);
        impl Drop for OnPanic {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("failed on {} simulated device(s), {:?}", self.0, self.1);
                }
            }
        }
        let _named = OnPanic(self.devices, self.schedule);
        with_runtime(&self.runtime, body).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Returns the number of driver calls of a kind.
    pub(crate) fn count(&self, call: CallKind) -> u64 {
        self.sim.usage().count(call)
    }

    /// Returns the number of times that the host waited for a device.
    pub(crate) fn host_waits(&self) -> u64 {
        self.sim.usage().host_waits
    }
}

/// Returns the laziest schedule, the most eager schedule, and `WARPLINE_SCHEDULES` (default: 8)
/// seeded schedules.
pub(crate) fn schedules() -> Vec<Schedule> {
    let seeds = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    let seeded = (0..seeds).map(Schedule::Seeded);
    [Schedule::Lazy, Schedule::Eager].into_iter().chain(seeded).collect()
}

/// Runs `f` in a thread. Panics if `f` does not return within a minute.
pub(crate) fn within_a_minute(f: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        // The thread returned or panicked; `join` tells which.
        _ => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}
