//! Programs on which drivers once differed, and what is right. Each runs on the simulator under
//! several schedules, and on a GPU.

mod captures;
mod memory;
mod releases;
mod spoiled;

use warpline_cuda_sys_safe::open;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::gate::Porter;
use crate::lane::Lane;
use crate::run::{Progress, run};
use crate::step::Step::*;
use crate::step::*;

/// A program, and what each of its steps comes to.
struct Found {
    name: &'static str,
    devices: usize,
    steps: Vec<Step>,
    results: &'static [&'static str],
}

fn all() -> Vec<Found> {
    let mut all = first();
    all.extend(memory::all());
    all.extend(releases::all());
    all.extend(captures::all());
    all.extend(spoiled::all());
    all
}

fn first() -> Vec<Found> {
    vec![
        Found {
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
        Found {
            name: "a host function's panic goes no further",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: true, priority: 0 },
                HostFunction { stream: 9, panics: true },
                HostFunction { stream: 9, panics: false },
                StreamSynchronize { stream: 9 },
            ],
            results: &["ok", "ok", "ok", "ok"],
        },
        Found {
            name: "the default stream waits for blocking streams, and a free for the device",
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
        Found {
            name: "a stream that waits for an event waits for nothing else",
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
        Found {
            name: "a destroyed stream leaves a capture as it is, whatever it still has to do",
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

fn simulated(devices: usize) -> Vec<Lane> {
    let schedules = [Schedule::Lazy, Schedule::Eager, Schedule::Seeded(1), Schedule::Seeded(2)];
    let lane = |schedule| {
        let config = SimConfig { schedule, ..SimConfig::new(devices) };
        Lane::simulated(&format!("{schedule:?}"), config)
    };
    schedules.map(lane).into_iter().collect()
}

fn check(found: &Found, first: Option<Lane>, porter: &Porter) -> Option<Lane> {
    let given = first.is_some();
    let mut lanes: Vec<Lane> = first.into_iter().chain(simulated(found.devices)).collect();
    let ran = run(&found.steps, &mut lanes, porter, &Progress::default());
    assert!(ran.found.is_empty(), "{}: {:#?}", found.name, ran.found);
    assert_eq!(ran.results, found.results, "{}", found.name);
    given.then(|| lanes.swap_remove(0))
}

#[test]
fn found_programs_on_the_simulator() {
    for found in all() {
        check(&found, None, &Porter::idle());
    }
}

fn on_the_driver(devices: usize) {
    let porter = Porter::new();
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let sim = spec
        .as_deref()
        .filter(|s| s.starts_with("sim"))
        .map(|s| SimConfig::from_spec(s).unwrap_or_else(|e| panic!("{e}")).build());
    let driver = match &sim {
        Some(sim) => sim.clone(),
        None => open(spec.as_deref(), None).unwrap_or_else(|e| panic!("{e}")),
    };
    let mut lane = Some(Lane::over("the driver", driver, sim, devices));
    for found in all().iter().filter(|found| found.devices == devices) {
        if let Some(lane) = &mut lane {
            lane.lasting = true;
        }
        lane = check(found, lane, &porter);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_found_programs() {
    on_the_driver(1);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_found_programs() {
    on_the_driver(2);
}
