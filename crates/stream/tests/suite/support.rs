//! Shared parts of the tests: devices to run on, and work to enqueue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_cuda_sys_safe::Driver;
use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_stream::{Devices, Error, OpNumber, Stream};

pub(crate) use crate::fake::FakeDriver;

/// Number of schedules of each test.
pub(crate) fn schedules() -> u64 {
    std::env::var("WARPLINE_SCHEDULES").ok().and_then(|s| s.parse().ok()).unwrap_or(8)
}

/// Prints the devices and the schedule of a failed test.
struct FailureContext(String);

impl Drop for FailureContext {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed on {}", self.0);
        }
    }
}

/// Runs a test with one, two and three devices under every schedule, on the simulated driver and on
/// the fake driver. The two share no code.
pub(crate) fn on_simulated(test: impl Fn(&Devices)) {
    for count in 1..=3 {
        for seed in 0..schedules() {
            for driver in simulated(count, seed) {
                let name = driver.name();
                let context = format!("{count} device(s) of {name}, schedule {seed}");
                let _context = FailureContext(context);
                let devices = Devices::new(driver).expect("devices");
                test(&devices);
                devices.iter().for_each(|d| d.synchronize().expect("synchronize"));
            }
        }
    }
}

/// Runs a test on all GPUs of the machine.
pub(crate) fn on_gpus(test: impl Fn(&Devices)) {
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let driver = warpline_cuda_sys_safe::open(spec.as_deref(), None).expect("a driver");
    let devices = Devices::new(driver).expect("devices");
    assert!(devices.count() > 0, "no GPU");
    test(&devices);
}

/// Defines tests with one body that runs on simulated devices and on GPUs.
macro_rules! on_devices {
    ($($(#[$meta:meta])* $name:ident, $gpu:ident, $body:expr;)*) => {$(
        #[test]
        fn $name() {
            $crate::support::on_simulated($body);
        }

        #[test]
        #[ignore = "needs a GPU"]
        fn $gpu() {
            $crate::support::on_gpus($body);
        }
    )*};
}
pub(crate) use on_devices;

/// Creates devices of a fake driver, which counts its calls.
pub(crate) fn counted(devices: usize, seed: u64) -> (Arc<FakeDriver>, Devices) {
    let driver = FakeDriver::new(devices, seed);
    let devices = Devices::new(driver.clone()).expect("devices");
    (driver, devices)
}

/// The token for all work of the tests.
// SAFETY: the enqueued host functions access only memory that they own.
pub(crate) const TOKEN: LaunchToken = unsafe { LaunchToken::new() };

/// Enqueues `f` as one operation.
pub(crate) fn work(stream: &Stream, f: impl FnOnce() + Send + 'static) -> OpNumber {
    let driver = stream.raw().driver();
    let ((), op) = stream
        .submit(TOKEN, |handle| {
            // SAFETY: `handle` is the handle of `stream`, which is alive.
            unsafe { driver.launch_host_func(handle, Box::new(f)) }.map_err(Error::from)
        })
        .expect("launch_host_func");
    op
}

/// Makes `to` wait for an operation of `from` that is not the last, so that each of the next operations of `from` gets
/// an op event.
pub(crate) fn wait_late(to: &Stream, from: &Stream) {
    let early = work(from, || ());
    work(from, || ());
    to.wait_for(from, early).expect("wait_for");
}

/// Counts operations in the order in which they run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunClock(Arc<AtomicU64>);

/// The time at which an operation ran; 0 if it has not run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunProbe(Arc<AtomicU64>);

impl RunClock {
    /// Enqueues an operation that stores the clock's time when it runs. The returned probe reads that time.
    pub(crate) fn probe(&self, stream: &Stream) -> (RunProbe, OpNumber) {
        let (clock, probe) = (self.0.clone(), RunProbe::default());
        let cell = probe.0.clone();
        let op = work(stream, move || {
            // Delays the operation, so that a missing wait is more likely to show on a GPU.
            std::thread::yield_now();
            cell.store(clock.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        });
        (probe, op)
    }
}

impl RunProbe {
    pub(crate) fn time(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn ran(&self) -> bool {
        self.time() > 0
    }

    pub(crate) fn ran_before(&self, other: &RunProbe) -> bool {
        self.ran() && self.time() < other.time()
    }
}

/// Returns the fake driver and the simulated driver with a schedule. Seed 0 is the laziest schedule
/// of the simulated driver.
pub(crate) fn simulated(devices: usize, seed: u64) -> [Arc<dyn Driver>; 2] {
    let schedule = if seed == 0 { Schedule::Lazy } else { Schedule::Seeded(seed) };
    let sim = SimConfig { schedule, ..SimConfig::new(devices) };
    [FakeDriver::new(devices, seed), sim.build()]
}
