//! Programs in which each driver call fails: once, or every time from then on, with each error that the call may
//! return, in a warm runtime and in the first pass of a new one; and pairs of calls.
//!
//! A program must give the right result or an error, without a panic. Afterwards, the same program must give the right
//! result, and no more memory and no more driver objects may be alive than before. After a sticky error, the devices are
//! lost: every program may fail, but CPU tensors must work, and nothing may panic when the program is dropped.
//!
//! `WARPLINE_TEST_FAULTS=all` injects every failure. Without it, only each `STRIDE`th failure is injected.

mod programs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use programs::{PROGRAMS, Program};
use warpline::{Result, Runtime, RuntimeConfig, ones, with_runtime};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver, Usage};
use warpline_cuda_sys_safe::{CudaCode, DriverError};

/// Distance of the injected failures in a run that does not inject all.
const STRIDE: usize = 13;
/// Number of pairs of failures of each program in such a run.
const PAIRS: usize = 40;
/// Limit of the time of one run of a program with a failure.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns the errors that a call may return: its own, and the sticky error of earlier work.
fn codes(call: CallKind) -> impl Iterator<Item = CudaCode> {
    call.errors().iter().copied().chain([CudaCode::ILLEGAL_ADDRESS])
}

/// A new simulator with two devices, and its runtime.
struct World {
    sim: Arc<SimDriver>,
    runtime: Runtime,
}

impl World {
    fn new() -> Self {
        let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(2) }.build();
        let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
        Self { sim, runtime }
    }

    /// Runs a program. Fails if it panics.
    fn run(&self, program: &Program) -> std::result::Result<Result<Vec<f32>>, String> {
        let begin = Instant::now();
        let run = || with_runtime(&self.runtime, program.run);
        let outcome = catch_unwind(AssertUnwindSafe(run)).map_err(|_| "it panics".to_owned())?;
        let time = begin.elapsed();
        if time > LIMIT { Err(format!("it takes {time:?}")) } else { Ok(outcome) }
    }

    /// Waits for all work, and returns the numbers of live objects.
    fn usage(&self) -> std::result::Result<Usage, String> {
        let wait = || (0..2).try_for_each(warpline::cuda::synchronize);
        with_runtime(&self.runtime, wait).map_err(|e| format!("afterwards: {e}"))?;
        Ok(self.sim.usage())
    }

    /// Returns the number of calls of each kind in one run.
    fn calls(&self, program: &Program) -> Vec<(CallKind, usize)> {
        let before = self.sim.usage();
        self.run(program).unwrap().unwrap_or_else(|e| panic!("{}: {e}", program.name));
        let after = self.sim.usage().calls.into_iter();
        after.map(|(call, count)| (call, (count - before.count(call)) as usize)).collect()
    }
}

/// Returns whether as many graphs and modules are alive. The numbers of streams and events grow up to a bound, because
/// they are reused.
fn same_objects(before: &Usage, after: &Usage) -> bool {
    let objects = |usage: &Usage| -> Vec<_> {
        usage.devices.iter().map(|device| (device.graphs, device.modules)).collect()
    };
    objects(before) == objects(after)
}

/// Runs a program with failures in a warm runtime, and checks the state afterwards.
struct Warm {
    name: &'static str,
    world: World,
    expected: Vec<f32>,
    before: Usage,
}

impl Warm {
    fn new(program: &Program) -> Self {
        let world = World::new();
        let results = [(); 3].map(|()| world.run(program).unwrap().unwrap());
        assert!(results.iter().all(|r| *r == results[0]), "{} is not deterministic", program.name);
        let before = world.usage().unwrap();
        all_freed(&world).unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let [expected, ..] = results;
        Self { name: program.name, world, expected, before }
    }

    /// Injects failures into one run of a program.
    fn check(&self, program: &Program, faults: &[Fault]) -> std::result::Result<(), String> {
        faults.iter().for_each(|fault| self.world.sim.inject(*fault));
        let outcome = self.world.run(program);
        self.world.sim.clear_faults();
        if outcome?.is_ok_and(|result| result != self.expected) {
            return Err("another result".into());
        }
        match self.world.run(program)? {
            Ok(result) if result == self.expected => {}
            Ok(_) => return Err("another result afterwards".into()),
            Err(error) => return Err(format!("afterwards: {error}")),
        }
        let after = self.world.usage()?;
        if !same_objects(&self.before, &after) {
            return Err(format!(
                "objects remain: {:?}, not {:?}",
                after.devices, self.before.devices
            ));
        }
        all_freed(&self.world)
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // The last handle of the runtime, so that the drop releases all objects.
        self.world.runtime = Runtime::without_cuda(no_device(), &RuntimeConfig::default());
        let released = released(&self.world.sim);
        assert!(released.is_ok(), "{}: {released:?}", self.name);
    }
}

fn no_device() -> DriverError {
    DriverError::NoDevice { reason: "the test has ended".into() }
}

/// Waits until no tensor's memory is in use. The threads of a process group may end later than the group.
fn all_freed(world: &World) -> std::result::Result<(), String> {
    let bytes = || [0, 1].map(|device| warpline::cuda::memory_allocated(device).unwrap());
    let is_freed = || with_runtime(&world.runtime, bytes) == [0, 0];
    within_limit(is_freed).map_err(|()| "memory remains in use".into())
}

/// Waits until a dropped runtime has released all objects.
fn released(sim: &SimDriver) -> std::result::Result<(), String> {
    within_limit(|| sim.usage().all_released())
        .map_err(|()| format!("objects remain: {:?}", sim.usage()))
}

/// Waits until a condition holds. Fails after [`LIMIT`].
fn within_limit(is_met: impl Fn() -> bool) -> std::result::Result<(), ()> {
    let begin = Instant::now();
    while !is_met() {
        if begin.elapsed() > LIMIT {
            return Err(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Injects failures into the first run of a program in a new runtime, then drops the runtime.
fn check_cold(program: &Program, fault: Fault) -> std::result::Result<(), String> {
    let world = World::new();
    world.sim.inject(fault);
    let outcome = world.run(program);
    world.sim.clear_faults();
    outcome?.ok();
    if !fault.code.is_sticky() {
        world.run(program)?.map_err(|error| format!("afterwards: {error}"))?;
    }
    let on_the_cpu = with_runtime(&world.runtime, || ones([2], ())?.add(1)?.to_vec::<f32>());
    if on_the_cpu.map_err(|e| format!("afterwards, on the CPU: {e}"))? != [2.0; 2] {
        return Err("afterwards, 1 + 1 on the CPU is not 2".into());
    }
    let World { sim, runtime } = world;
    catch_unwind(AssertUnwindSafe(|| drop(runtime))).map_err(|_| "its drop panics".to_owned())?;
    if fault.code.is_sticky() { Ok(()) } else { released(&sim) }
}

/// Returns each `stride`th failure of the listed calls.
fn faults(calls: &[(CallKind, usize)], stride: usize) -> impl Iterator<Item = Fault> {
    let all = calls.iter().flat_map(|&(call, count)| {
        let each = codes(call).flat_map(move |code| {
            let fault = move |n| Fault::new(call, code).after(n);
            (0..count).flat_map(move |n| [fault(n), fault(n).times(usize::MAX)])
        });
        each.collect::<Vec<_>>()
    });
    all.collect::<Vec<_>>().into_iter().step_by(stride)
}

fn stride() -> usize {
    if std::env::var("WARPLINE_TEST_FAULTS").is_ok_and(|all| all == "all") { 1 } else { STRIDE }
}

/// Runs `check` for each program, several at a time. Fails with all messages.
fn for_each_program(check: impl Fn(&Program, &mut Vec<String>) -> usize + Sync) {
    let failures = std::sync::Mutex::new((0, Vec::new()));
    crate::group_support::at_once(2, PROGRAMS, |program| {
        let mut own = Vec::new();
        let count = check(program, &mut own);
        let mut failures = failures.lock().unwrap();
        failures.0 += count;
        failures.1.extend(own.into_iter().map(|text| format!("{}: {text}", program.name)));
    });
    let (count, failures) = failures.into_inner().unwrap();
    println!("{count} failures injected");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 10 * PROGRAMS.len(), "only {count} failures were injected");
}

#[test]
fn each_driver_call_of_a_warm_program_may_fail() {
    for_each_program(|program, failures| {
        let mut warm = Warm::new(program);
        let calls = warm.world.calls(program);
        let mut count = 0;
        for fault in faults(&calls, stride()).filter(|fault| !fault.code.is_sticky()) {
            count += 1;
            if let Err(reason) = warm.check(program, &[fault]) {
                failures.push(format!("{fault:?}: {reason}"));
                warm = Warm::new(program);
            }
        }
        count
    });
}

#[test]
fn each_driver_call_of_the_first_pass_of_a_program_may_fail() {
    for_each_program(|program, failures| {
        let calls = World::new().calls(program);
        let mut count = 0;
        for fault in faults(&calls, 3 * stride()) {
            count += 1;
            if let Err(reason) = check_cold(program, fault) {
                failures.push(format!("{fault:?}: {reason}"));
            }
        }
        count
    });
}

#[test]
fn pairs_of_driver_calls_may_fail() {
    for_each_program(|program, failures| {
        let mut warm = Warm::new(program);
        let calls = warm.world.calls(program);
        let single: Vec<Fault> =
            faults(&calls, 1).filter(|f| !f.code.is_sticky() && f.times == 1).collect();
        let mut count = 0;
        // A step without a common factor with the number of failures visits pairs of all distances.
        let all = single.len() * single.len();
        let step = (all * stride() / (PAIRS * STRIDE)).max(1) | 1;
        let pairs = (0..all).step_by(step);
        for pair in pairs {
            let pair = [single[pair / single.len()], single[pair % single.len()]];
            count += 1;
            if let Err(reason) = warm.check(program, &pair) {
                failures.push(format!("{pair:?}: {reason}"));
                warm = Warm::new(program);
            }
        }
        count
    });
}
