//! Test support: ranks that are threads of one process.
#![allow(dead_code)] // each test binary uses only some items

use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpline::{
    Error, Result, Runtime, RuntimeConfig, SyncPolicy, Tensor, full, open, simulated, with_runtime,
};
use warpline_parallel::distributed::{
    Backend, HashStore, InitOptions, ProcessGroup, ReduceOptions, init_process_group,
};

/// A timeout that a passing test never reaches.
pub(crate) const LONG: Duration = Duration::from_secs(50);

/// Returns a tensor of three equal elements on the rank's device.
pub(crate) fn at(group: &ProcessGroup, value: usize) -> Result<Tensor> {
    full([3], value as f64, group.device())
}

pub(crate) fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_vec()
}

/// Asserts that a group can reduce and synchronize.
pub(crate) fn works(group: &ProcessGroup) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.world_size());
    for async_op in [false, true] {
        let x = at(group, rank + 1)?;
        group.all_reduce(&x, ReduceOptions::new().async_op(async_op))?.wait()?;
        assert_eq!(values(&x)?, [(ranks * (ranks + 1) / 2) as f32; 3]);
    }
    group.barrier()
}

/// Ranks that share a runtime. Each run uses a new store.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    runtime: Runtime,
    ranks: usize,
    timeout: Duration,
    debug: bool,
    /// Whether ranks set [`InitOptions::device`].
    devices: bool,
    backend: Backend,
}

pub(crate) fn number(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

pub(crate) fn gpu_spec() -> String {
    std::env::var("WARPLINE_DRIVER").unwrap_or_else(|_| "cuda".into())
}

/// Runs a test for each number of ranks under the lazy schedule and `WARPLINE_SCHEDULES` (default: 8) seeded schedules.
pub(crate) fn schedules(ranks: &[usize], body: impl Fn(&Ranks)) {
    for &ranks in ranks {
        specs(ranks).iter().for_each(|spec| under(spec, ranks, &body));
    }
}

/// Runs a test under the schedules of [`schedules`], a few at a time. For tests that wait for a timeout.
pub(crate) fn schedules_at_once(ranks: usize, body: impl Fn(&Ranks) + Sync) {
    at_once(6, &specs(ranks), |spec| under(spec, ranks, &body));
}

/// Runs cases that mostly wait. Runs at most `at_most` at a time, so that no rank misses its time limit for lack of a
/// processor, or because many processes open a GPU.
pub(crate) fn at_once<T: Sync>(at_most: usize, cases: &[T], body: impl Fn(&T) + Sync) {
    let (cases, body) = (Mutex::new(cases.iter()), &body);
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..at_most {
            scope.spawn(|| std::iter::from_fn(next).for_each(body));
        }
    });
}

fn specs(ranks: usize) -> Vec<String> {
    let seeds = (0..number("WARPLINE_SCHEDULES", 8)).map(|seed| format!("seed={seed}"));
    let schedules = std::iter::once("lazy".to_string()).chain(seeds);
    schedules.map(|schedule| format!("sim:{ranks},{schedule}")).collect()
}

fn under(spec: &str, ranks: usize, body: impl Fn(&Ranks)) {
    /// Prints the driver's specification, including the seed, if the test fails.
    struct OnPanic(String);
    impl Drop for OnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed in WARPLINE_DRIVER={}", self.0);
            }
        }
    }
    let _named = OnPanic(spec.to_owned());
    body(&Ranks::new(spec, ranks));
}

impl Ranks {
    pub(crate) fn new(spec: &str, ranks: usize) -> Self {
        let runtime =
            open(spec, &RuntimeConfig::default()).unwrap_or_else(|e| panic!("{spec}: {e}"));
        Self::in_runtime(runtime, ranks)
    }

    /// Creates ranks under `SyncPolicy::Manual`, where only the program orders streams.
    pub(crate) fn manual(spec: &str, ranks: usize) -> Self {
        let config = RuntimeConfig { sync_policy: SyncPolicy::Manual, ..RuntimeConfig::default() };
        Self::in_runtime(open(spec, &config).unwrap_or_else(|e| panic!("{spec}: {e}")), ranks)
    }

    pub(crate) fn in_runtime(runtime: Runtime, ranks: usize) -> Self {
        assert!(runtime.device_count() >= ranks, "{ranks} devices are needed");
        let backend = Backend::Nccl;
        Self { runtime, ranks, timeout: LONG, debug: false, devices: true, backend }
    }

    /// Creates ranks on the CPU.
    pub(crate) fn cpu(ranks: usize) -> Self {
        let runtime = simulated(1).unwrap();
        let (timeout, backend) = (LONG, Backend::Cpu);
        Self { runtime, ranks, timeout, debug: false, devices: false, backend }
    }

    pub(crate) fn timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    pub(crate) fn debug(&self) -> Self {
        Self { debug: true, ..self.clone() }
    }

    pub(crate) fn without_devices(&self) -> Self {
        Self { devices: false, ..self.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ranks
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs `body` on each rank. Returns the results in the order of the ranks.
    pub(crate) fn run<R: Send>(&self, body: impl Fn(ProcessGroup) -> Result<R> + Sync) -> Vec<R> {
        let ranks: Vec<_> = (0..self.ranks).collect();
        let results = self.on(&ranks, |options| body(init_process_group(options)?));
        let result = |(rank, result): (usize, Result<R>)| {
            result.unwrap_or_else(|error| panic!("rank {rank}: {error}"))
        };
        results.into_iter().enumerate().map(result).collect()
    }

    /// Forms a group without rank `absent`. Returns the errors of the other ranks.
    pub(crate) fn init_without(&self, absent: usize) -> Vec<Error> {
        let ranks: Vec<_> = (0..self.ranks).filter(|rank| *rank != absent).collect();
        let results = self.on(&ranks, init_process_group);
        results.into_iter().map(|result| result.unwrap_err()).collect()
    }

    fn on<R: Send>(&self, ranks: &[usize], body: impl Fn(InitOptions) -> R + Sync) -> Vec<R> {
        let store = Arc::new(HashStore::new());
        std::thread::scope(|scope| {
            let thread = |&rank: &usize| {
                let options = InitOptions::new(store.clone(), rank, self.ranks)
                    .device(self.devices.then_some(rank))
                    .timeout(self.timeout)
                    .debug(self.debug)
                    .backend(self.backend);
                let body = &body;
                scope.spawn(move || with_runtime(&self.runtime, || body(options)))
            };
            let threads: Vec<_> = ranks.iter().map(thread).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|r| r.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        })
    }
}
