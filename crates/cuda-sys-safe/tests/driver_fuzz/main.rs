//! Programs that nobody wrote: random driver calls, legal ones and others, on several drivers at
//! once. Results, error codes, captures' states, what waits for what, and all bytes that order
//! determines must be the same.
//!
//! On the simulator alone, its schedules are compared with one another. `cargo xtask gpu-test --fuzz
//! N` compares it with the real driver. `model.rs` knows which steps are sound and what is
//! determined; `lane.rs` is a driver with its objects; `run.rs` takes drivers through a program side
//! by side; `campaign.rs` runs many in several processes (`process.rs`, `worker.rs`) and shrinks
//! what differs; `report.rs` counts and prints it.
//!
//! # What is not compared
//!
//! - Waits of another device's stream for events for other processes: the driver (580) crashes. And
//!   for such events that were never recorded, which keep a stream busy for a moment.
//! - What a copy reads of page-locked memory where nothing but the default stream's rule puts the
//!   write before it: a few bytes were seen to be read too early.
//! - Whether launches of graphs wait that copy pageable memory, or from host memory to host memory.
//! - Whether destroying streams and executables waits: now and then it does.
//! - What else waits for a copy that touches another device's memory.
//! - Copies between devices on a default stream, which may wait for the other device's as well.
//! - What other devices say before the lost one does.
//! - Whether a call that runs out of memory waits: it takes long, and the less there is the longer.
//! - Whether freeing or unregistering page-locked memory waits, where there are several devices: for devices
//!   other than the one it was allocated on or registered with it mostly does, and now and then not.
//! - Whether a call of the real driver waits that does not wait on the simulator. Only the time that it takes
//!   would tell. Such calls are printed as `late` and do not fail a campaign. The opposite is compared: a call
//!   that returns while the stream is held back has not waited for it.
//! - Pools with memory that is not freed are not destroyed. That is allowed, but the driver (580)
//!   then crashes when another pool is destroyed later.
//! - Graphs of work whose memory was freed are not instantiated: the real driver may crash then.
//! - Memsets of memory that their device has no access to are not captured: the real driver accepts
//!   them, and asks about the access at some later time.
//!
//! # What is done about a difference
//!
//! A difference is mended in the simulator's files of that subject (`src/sim/`), written down in
//! `src/sim/mod.rs`, and its program is added to `found/`.

mod admit;
mod campaign;
mod clean;
mod crash;
mod found;
mod gate;
mod generate;
mod lane;
mod model;
mod order;
mod perform;
mod pick;
mod process;
mod recipes;
mod report;
mod run;
mod settle;
mod step;
mod worker;

use campaign::Campaign;
use generate::Options;
use worker::First;

/// What `cargo xtask gpu-test --fuzz` says, as `name=value` set apart by spaces.
const SETTINGS: &str = "WARPLINE_FUZZ";

fn campaign(first: First, sticky: bool, devices: usize, programs: u64) -> Campaign {
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
    // Simulators have no reason to differ but once; a busy GPU has.
    let strict = campaign.first == First::Simulator;
    assert!(report.print(campaign, strict), "the drivers differ");
    assert!(report.agree > 0, "no program was run");
}

#[test]
fn programs_agree_under_every_schedule() {
    for devices in [1, 2] {
        agree(&campaign(First::Simulator, false, devices, 300));
    }
}

#[test]
fn sticky_programs_agree_under_every_schedule() {
    agree(&campaign(First::Simulator, true, 2, 20));
}

/// Against a driver whose launches and copies all wait, programs differ in just that.
#[test]
fn differences_are_found_and_shrunk() {
    let mut campaign = campaign(First::Driver, false, 1, 400);
    campaign.driver = Some("sim:1,blocking");
    let report = campaign.run();
    assert!(!report.print(&campaign, true), "no difference was found");
    assert!(report.agree > 0);
    let mut kinds = Vec::new();
    for (class, program) in report.shrunk() {
        assert!(class.ends_with("waits / does not wait"), "{class}");
        // Most take four. To launch a graph takes ten: capturing it is most of them.
        assert!((1..=10).contains(&program.len()), "{class}: {program:?}");
        kinds.extend(program.last().map(step::Step::kind));
    }
    for kind in ["Copy", "Launch", "Memset"] {
        assert!(kinds.iter().any(|k| k == kind), "{kinds:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_random_programs() {
    agree(&campaign(First::Driver, false, 1, 300));
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_random_programs() {
    agree(&campaign(First::Driver, false, 2, 300));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sticky_programs() {
    agree(&campaign(First::Driver, true, 1, 8));
}

/// No test of its own: the process that the others start.
#[test]
#[ignore = "the tests here start it"]
fn fuzz_worker() {
    if let Ok(role) = std::env::var(worker::ROLE) {
        worker::serve(&role);
    }
}
