//! A process that runs programs, told which through its standard input.
//!
//! A line `SEED COUNT KEEP PATIENCE` asks for the programs of `COUNT` seeds from `SEED`; `KEEP` is
//! `-`, or the steps that are not left out; `PATIENCE`, in milliseconds, is how long a call may take
//! before it counts as waiting. The answer to each is a line of fields set apart by tabs:
//! `@same SEED`, `@diff SEED clean|dirty CLASS TEXT ...`, or `@hang SEED STEP LANE`. Before each
//! step on the real driver, `@at STEP` says so, in case the process does not live to say more.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::open;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::crash;
use crate::gate::Porter;
use crate::generate::{Options, generate};
use crate::lane::Lane;
use crate::run::{Difference, Progress, Ran, run};

/// How long one driver call may take.
const STUCK: Duration = Duration::from_secs(6);
/// The same of clearing up, which waits for a GPU that others use too.
const CLEARING: Duration = Duration::from_secs(25);

/// How long a program may take, and one that ends with a sticky error.
const LONGEST: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(8)];

/// What the worker is told by its environment.
pub(crate) const ROLE: &str = "WARPLINE_FUZZ_WORKER";

/// The first lane: what the simulators are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The driver that `WARPLINE_DRIVER` names: the real one where it is unset.
    Driver,
    /// A simulator under the laziest schedule.
    Simulator,
}

pub(crate) fn role(options: &Options, first: First) -> String {
    let first = if first == First::Driver { "driver" } else { "simulator" };
    let sticky = if options.sticky { "sticky" } else { "" };
    format!("{first};{};{sticky};{}", options.devices, options.without.join(","))
}

fn parse(role: &str) -> Option<(Options, First)> {
    let mut parts = role.split(';');
    let first = if parts.next()? == "driver" { First::Driver } else { First::Simulator };
    let devices = parts.next()?.parse().ok()?;
    let sticky = parts.next()? == "sticky";
    let without = parts.next()?.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    Some((Options { devices, without, sticky }, first))
}

fn say(fields: &[&str]) {
    let clean = |field: &&str| field.replace(['\t', '\n'], " ");
    let line: Vec<String> = fields.iter().map(clean).collect();
    // Not by print!, which a test's output goes through.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{}", line.join("\t"));
    let _ = out.flush();
}

/// Serves until its input ends.
pub(crate) fn serve(role: &str) {
    let Some((options, first)) = parse(role) else { return };
    // What the test harness has printed ends here.
    let _ = std::io::stdout().write_all(b"\n");
    crash::report();
    let tell = (first == First::Driver).then_some(tell as fn(usize));
    let progress = Arc::new(Progress { tell, ..Progress::default() });
    let seed = Arc::new(AtomicU64::new(0));
    let longest = LONGEST[usize::from(options.sticky)];
    watch(Arc::clone(&progress), Arc::clone(&seed), longest);
    let mut porter = Porter::new();
    let mut lasting = match first {
        First::Driver => Some(first_lane(options.devices)),
        First::Simulator => None,
    };
    say(&["ready"]);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
        let (Some(start), Some(count)) = (number(), number()) else { return };
        let keep = words
            .next()
            .filter(|k| *k != "-")
            .map(|k| k.split(',').filter_map(|n| n.parse().ok()).collect::<Vec<usize>>());
        if let Some(patience) = words.next().and_then(|w| w.parse().ok()) {
            porter.patience = Duration::from_millis(patience);
        }
        for number in start..start + count {
            seed.store(number, Ordering::Relaxed);
            let mut steps = generate(number, &options);
            if let Some(keep) = &keep {
                steps = keep.iter().filter_map(|&k| steps.get(k).cloned()).collect();
            }
            let mut lanes: Vec<Lane> = lasting.take().into_iter().collect();
            lanes.extend(simulators(number, options.devices, first));
            progress.programs.fetch_add(1, Ordering::Release);
            let Ran { found, dirty, .. } = run(&steps, &mut lanes, &porter, &progress);
            progress.programs.fetch_add(1, Ordering::Release);
            if first == First::Driver {
                lasting = Some(lanes.swap_remove(0));
            }
            report(number, &found, dirty && first == First::Driver);
            if dirty && first == First::Driver {
                // Nothing of this process can be relied on, its end included.
                leave();
            }
        }
    }
}

fn report(seed: u64, found: &[Difference], dirty: bool) {
    let seed = seed.to_string();
    if found.is_empty() {
        return say(&[if dirty { "last" } else { "same" }, &seed]);
    }
    let mut fields = vec!["diff", &seed, if dirty { "dirty" } else { "clean" }];
    for difference in found {
        fields.extend([&*difference.class, &*difference.text]);
    }
    say(&fields);
}

fn first_lane(devices: usize) -> Lane {
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    if let Some(spec) = spec.as_deref().filter(|s| s.starts_with("sim")) {
        let config = SimConfig::from_spec(spec).unwrap_or_else(|e| panic!("{e}"));
        let sim = config.build();
        let mut lane = Lane::over("sim", sim.clone(), Some(sim), devices);
        lane.lasting = true;
        return lane;
    }
    let driver = open(spec.as_deref(), None).unwrap_or_else(|e| panic!("{e}"));
    let count = driver.device_count();
    assert!(count >= devices, "{devices} GPUs are needed, and {count} visible");
    let mut lane = Lane::over("cuda", driver, None, devices);
    lane.lasting = true;
    lane
}

fn simulators(seed: u64, devices: usize, first: First) -> Vec<Lane> {
    let lane = |name: &str, schedule| {
        Lane::simulated(name, SimConfig { schedule, ..SimConfig::new(devices) })
    };
    let mut lanes =
        vec![lane("sim lazy", Schedule::Lazy), lane("sim seeded", Schedule::Seeded(seed))];
    if first == First::Simulator {
        lanes.push(lane("sim eager", Schedule::Eager));
        lanes.push(lane("sim seeded again", Schedule::Seeded(!seed)));
    }
    lanes
}

fn tell(step: usize) {
    say(&["at", &step.to_string()]);
}

/// Ends the process when a call does not return, or a program does not end.
fn watch(progress: Arc<Progress>, seed: Arc<AtomicU64>, longest: Duration) {
    /// A count that is odd while something is under way, and since when it is what it is.
    struct Under(usize, Instant);
    impl Under {
        fn longer_than(&mut self, count: usize, limit: Duration) -> bool {
            if count != self.0 || count.is_multiple_of(2) {
                *self = Self(count, Instant::now());
            }
            self.1.elapsed() > limit
        }
    }
    std::thread::spawn(move || {
        let (mut call, mut program) = (Under(0, Instant::now()), Under(0, Instant::now()));
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let clearing = progress.step.load(Ordering::Relaxed) == usize::MAX;
            let limit = if clearing { CLEARING } else { STUCK };
            let stuck = call.longer_than(progress.calls.load(Ordering::Acquire), limit);
            if stuck || program.longer_than(progress.programs.load(Ordering::Acquire), longest) {
                let step = progress.step.load(Ordering::Relaxed).to_string();
                let lane = progress.lane.load(Ordering::Relaxed).to_string();
                say(&["hang", &seed.load(Ordering::Relaxed).to_string(), &step, &lane]);
                leave();
            }
        }
    });
}

/// Ends the process without the driver's own clearing up, which may hang.
fn leave() -> ! {
    #[cfg(unix)]
    // SAFETY: ends the process at once.
    unsafe {
        libc::_exit(3)
    }
    #[cfg(not(unix))]
    std::process::abort()
}
