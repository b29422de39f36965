//! Programs on which drivers once differed, with the right results. Each program runs on the
//! simulator under several schedules, and on a GPU.

mod captures;
mod invalidated;
mod memory;
mod releases;

use warpline_cuda_sys_safe::open;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::gate::Watchdog;
use crate::run::{Progress, run};
use crate::step::Step::*;
use crate::step::*;
use crate::subject::Subject;

/// A program, with the expected result of each step.
struct Regression {
    name: &'static str,
    devices: usize,
    steps: Vec<Step>,
    results: &'static [&'static str],
}

fn all() -> Vec<Regression> {
    let mut all = first();
    all.extend(memory::all());
    all.extend(releases::all());
    all.extend(captures::all());
    all.extend(invalidated::all());
    all
}

fn first() -> Vec<Regression> {
    vec![
        Regression {
            name: "whether the default stream may wait for an event does not depend on whether the \
                   event is done",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: false, priority: 0 },
                EventCreate { event: 15, device: 0, timing: true, interprocess: false },
                EventRecord { event: 15, stream: 9 },
                BeginCapture { stream: 9, mode: Mode::Relaxed },
                EventWait { stream: 0, event: 15 },
            ],
            results: &["ok", "ok", "ok", "ok", "STREAM_CAPTURE_IMPLICIT"],
        },
        Regression {
            name: "a panic of a host function does not reach the driver",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: true, priority: 0 },
                HostFunction { stream: 9, panics: true },
                HostFunction { stream: 9, panics: false },
                StreamSynchronize { stream: 9 },
            ],
            results: &["ok", "ok", "ok", "ok"],
        },
        Regression {
            name: "the default stream waits for blocking streams, and a free waits for the device",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: false, priority: 0 },
                MemAlloc { buf: 10, device: 0, bytes: 64 },
                Gate { stream: 9 },
                HostFunction { stream: 0, panics: false },
                StreamQuery { stream: 0 },
                MemFree { buf: 10, device: 0, at: 0 },
            ],
            results: &["ok", "ok", "ok", "ok", "false", "ok, waited"],
        },
        Regression {
            name: "a wait for an event does not wait for other work",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 10, device: 0, non_blocking: true, priority: 0 },
                StreamCreate { stream: 11, device: 0, non_blocking: false, priority: 0 },
                EventCreate { event: 15, device: 0, timing: false, interprocess: false },
                HostFunction { stream: 0, panics: false },
                EventRecord { event: 15, stream: 10 },
                EventWait { stream: 11, event: 15 },
                StreamSynchronize { stream: 10 },
                StreamQuery { stream: 11 },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "true"],
        },
        Regression {
            name: "destroying a stream that joined a capture does not change the capture, even with pending work",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: false, priority: 0 },
                StreamCreate { stream: 10, device: 0, non_blocking: true, priority: 0 },
                EventCreate { event: 16, device: 0, timing: false, interprocess: false },
                HostFunction { stream: 9, panics: false },
                BeginCapture { stream: 10, mode: Mode::Relaxed },
                EventRecord { event: 16, stream: 10 },
                EventWait { stream: 9, event: 16 },
                StreamDestroy { stream: 9 },
                CaptureStatus { stream: 10 },
                HostFunction { stream: 0, panics: false },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "ok", "ok", "active", "ok"],
        },
    ]
}

fn simulated(devices: usize) -> Vec<Subject> {
    let schedules = [Schedule::Lazy, Schedule::Eager, Schedule::Seeded(1), Schedule::Seeded(2)];
    let subject = |schedule| {
        let config = SimConfig { schedule, ..SimConfig::new(devices) };
        Subject::simulated(&format!("{schedule:?}"), config)
    };
    schedules.map(subject).into_iter().collect()
}

fn check(found: &Regression, first: Option<Subject>, watchdog: &Watchdog) -> Option<Subject> {
    let given = first.is_some();
    let mut subjects: Vec<Subject> = first.into_iter().chain(simulated(found.devices)).collect();
    let ran = run(&found.steps, &mut subjects, watchdog, &Progress::default());
    assert!(ran.found.is_empty(), "{}: {:#?}", found.name, ran.found);
    assert_eq!(ran.results, found.results, "{}", found.name);
    given.then(|| subjects.swap_remove(0))
}

#[test]
fn regressions_have_the_recorded_results_on_the_simulator() {
    for found in all() {
        check(&found, None, &Watchdog::idle());
    }
}

fn on_the_driver(devices: usize) {
    let watchdog = Watchdog::new();
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let sim = spec
        .as_deref()
        .filter(|s| s.starts_with("sim"))
        .map(|s| SimConfig::from_spec(s).unwrap_or_else(|e| panic!("{e}")).build());
    let driver = match &sim {
        Some(sim) => sim.clone(),
        None => open(spec.as_deref(), None).unwrap_or_else(|e| panic!("{e}")),
    };
    let mut subject = Some(Subject::over("the driver", driver, sim, devices));
    for found in all().iter().filter(|found| found.devices == devices) {
        if let Some(subject) = &mut subject {
            subject.reused = true;
        }
        subject = check(found, subject, &watchdog);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_found_programs_behave_as_recorded() {
    on_the_driver(1);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_found_programs_behave_as_recorded() {
    on_the_driver(2);
}
