//! Runs random programs of driver calls, legal and illegal, on several drivers side by side. All
//! drivers must agree on results, error codes, capture states, waits, and all bytes that the order
//! of operations determines.
//!
//! Without a GPU, the schedules of the simulator are compared with one another. `cargo xtask
//! gpu-test --fuzz N` compares the simulator with the real driver.
//!
//! `model.rs` knows which steps are sound and which results are determined. `subject.rs` is a driver
//! with its objects. `run.rs` runs a program on several drivers. `campaign.rs` runs many programs
//! in several processes (`process.rs`, `worker.rs`) and shrinks those that differ. `report.rs`
//! counts and prints the differences.
//!
//! # Not compared
//!
//! - Waits of another device's stream for interprocess events, because the NVIDIA driver 580
//!   crashes; and waits for interprocess events that were never recorded, which keep a stream busy
//!   for a moment.
//! - Bytes that a copy reads from page-locked memory, if only the rule of the default stream orders
//!   the write before the copy. The driver was seen to read a few bytes too early.
//! - Whether a graph launch waits if the graph copies pageable memory, or copies from host to host.
//! - Whether destroying a stream or an executable graph waits. The driver waits only sometimes.
//! - Other calls that wait for a copy of another device's memory.
//! - Copies between devices on a default stream, which may also wait for the other device.
//! - Results on other devices before the lost device has reported its error.
//! - Whether a call that runs out of memory waits. Its time grows as memory runs short.
//! - Whether freeing or unregistering page-locked memory waits, if there are several devices. For
//!   devices other than its own, the driver usually waits.
//! - Calls that wait on the real driver and not on the simulator. Only their duration shows this,
//!   so they are printed as `late` and do not fail a campaign. The opposite is compared: a call
//!   that returns while the stream is held back has not waited.
//! - Destroying a pool with live memory. This is allowed, but the NVIDIA driver 580 crashes when
//!   another pool is destroyed later.
//! - Instantiating a graph with work on freed memory, because the real driver may crash.
//! - Capturing a memset of memory that the device cannot access. The real driver accepts the memset
//!   and checks the access at an unspecified later time.
//!
//! # Fixing a difference
//!
//! Fix the simulator's module for the subject (`src/sim/`), document the behaviour in
//! `src/sim/mod.rs`, and add the program to `regressions/`.

mod admit;
mod campaign;
mod clean;
mod crash;
mod gate;
mod generate;
mod model;
mod order;
mod perform;
mod picker;
mod process;
mod recipes;
mod regressions;
mod report;
mod run;
mod step;
mod subject;
mod update;
mod worker;

use campaign::Campaign;
use generate::Options;
use worker::ReferenceDriver;

/// Settings from `cargo xtask gpu-test --fuzz`, as `name=value` separated by spaces.
const SETTINGS: &str = "WARPLINE_FUZZ";

fn campaign(first: ReferenceDriver, sticky: bool, devices: usize, programs: u64) -> Campaign {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let mut campaign = Campaign {
        options: Options { devices, without: Vec::new(), sticky },
        first,
        driver: None,
        start: 1,
        programs,
        workers: cores.min(16),
        limit: std::time::Duration::from_secs(540),
    };
    let Ok(text) = std::env::var(SETTINGS) else { return campaign };
    for setting in text.split_whitespace() {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        let number = || value.parse::<u64>().unwrap_or_else(|_| panic!("{setting} in {SETTINGS}"));
        match name {
            "programs" if !sticky => campaign.programs = number(),
            "sticky" if sticky => campaign.programs = number(),
            "seed" => campaign.start = number(),
            "devices" => campaign.options.devices = number() as usize,
            "seconds" => campaign.limit = std::time::Duration::from_secs(number()),
            "workers" => campaign.workers = number() as usize,
            "without" => {
                campaign.options.without = value.split(',').map(str::to_owned).collect();
            }
            "programs" | "sticky" => {}
            _ => panic!("{setting} in {SETTINGS} is not understood"),
        }
    }
    campaign
}

fn agree(campaign: &Campaign) {
    let report = campaign.run();
    // A simulator is deterministic, so even a difference that does not repeat counts. A busy GPU
    // may differ once.
    let strict = campaign.first == ReferenceDriver::Simulator;
    assert!(report.print(campaign, strict), "the drivers differ");
    assert!(report.agree > 0, "no program was run");
}

#[test]
fn programs_agree_under_every_schedule() {
    for devices in [1, 2] {
        agree(&campaign(ReferenceDriver::Simulator, false, devices, 300));
    }
}

#[test]
fn sticky_programs_agree_under_every_schedule() {
    agree(&campaign(ReferenceDriver::Simulator, true, 2, 20));
}

/// If all launches, copies and memsets of a driver wait, programs differ only in their waits.
#[test]
fn differences_are_found_and_shrunk() {
    let mut campaign = campaign(ReferenceDriver::Driver, false, 1, 400);
    campaign.driver = Some("sim:1,blocking");
    let report = campaign.run();
    assert!(!report.print(&campaign, true), "no difference was found");
    assert!(report.agree > 0);
    let mut kinds = Vec::new();
    for (class, program) in report.shrunk() {
        assert!(class.ends_with("waits / does not wait"), "{class}");
        // Most differences need four steps. A graph launch needs ten, mostly for the capture.
        assert!((1..=10).contains(&program.len()), "{class}: {program:?}");
        kinds.extend(program.last().map(step::Step::kind));
    }
    for kind in ["Copy", "Launch", "Memset"] {
        assert!(kinds.iter().any(|k| k == kind), "{kinds:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_random_programs_agree() {
    agree(&campaign(ReferenceDriver::Driver, false, 1, 300));
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_random_programs_agree() {
    agree(&campaign(ReferenceDriver::Driver, false, 2, 300));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sticky_programs_agree() {
    agree(&campaign(ReferenceDriver::Driver, true, 1, 8));
}

/// The entry point of the worker processes that the other tests start.
#[test]
#[ignore = "the tests here start it"]
fn program_of_a_worker() {
    if let Ok(role) = std::env::var(worker::ROLE) {
        worker::serve(&role);
    }
}
