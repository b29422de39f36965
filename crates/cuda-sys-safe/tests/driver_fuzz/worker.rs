//! A process that runs programs on request.
//!
//! Each line `SEED COUNT KEEP PATIENCE` on standard input requests the programs of `COUNT` seeds
//! from `SEED`. `KEEP` lists the steps to run, or is `-` for all. `PATIENCE` is the time in
//! milliseconds after which a call counts as waiting.
//!
//! The process prints `@ready` when its driver is open. The answer about each program is a line of
//! tab-separated fields: `@same SEED`, `@diff SEED clean|dirty CLASS TEXT ...`, `@last SEED`, or
//! `@hang SEED STEP LANE`, where `LANE` is the index of the driver that hangs. The process ends
//! after `@last`, `@hang` and a dirty `@diff`. `@at STEP` precedes each step on the real driver,
//! because the process may crash in the step.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::open;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::crash;
use crate::gate::Watchdog;
use crate::generate::{Options, generate};
use crate::run::{Difference, ProgramResult, Progress, run};
use crate::subject::Subject;

/// Time limit for one driver call.
const CALL_LIMIT: Duration = Duration::from_secs(6);
/// Time limit for releasing all objects, which waits for a GPU that other processes use, too.
const CLEANUP_LIMIT: Duration = Duration::from_secs(25);

/// Time limits for a program, and for a program that ends with a sticky error.
const PROGRAM_LIMITS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(8)];

/// Environment variable with the role of a worker.
pub(crate) const ROLE: &str = "WARPLINE_FUZZ_WORKER";

/// The reference driver, with which the simulators are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceDriver {
    /// The driver that `WARPLINE_DRIVER` names, or the real driver if the variable is unset.
    Driver,
    /// A simulator under the lazy schedule.
    Simulator,
}

pub(crate) fn role(options: &Options, first: ReferenceDriver) -> String {
    let first = if first == ReferenceDriver::Driver { "driver" } else { "simulator" };
    let sticky = if options.sticky { "sticky" } else { "" };
    format!("{first};{};{sticky};{}", options.devices, options.without.join(","))
}

fn parse(role: &str) -> Option<(Options, ReferenceDriver)> {
    let mut parts = role.split(';');
    let first = if parts.next()? == "driver" {
        ReferenceDriver::Driver
    } else {
        ReferenceDriver::Simulator
    };
    let devices = parts.next()?.parse().ok()?;
    let sticky = parts.next()? == "sticky";
    let without = parts.next()?.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect();
    Some((Options { devices, without, sticky }, first))
}

fn send_line(fields: &[&str]) {
    let clean = |field: &&str| field.replace(['\t', '\n'], " ");
    let line: Vec<String> = fields.iter().map(clean).collect();
    // `print!` would be captured by the test harness.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{}", line.join("\t"));
    let _ = out.flush();
}

/// Runs requested programs until standard input ends.
pub(crate) fn serve(role: &str) {
    let Some((options, first)) = parse(role) else { return };
    // End the line that the test harness has begun.
    let _ = std::io::stdout().write_all(b"\n");
    crash::report();
    let tell = (first == ReferenceDriver::Driver).then_some(tell as fn(usize));
    let progress = Arc::new(Progress { tell, ..Progress::default() });
    let seed = Arc::new(AtomicU64::new(0));
    let longest = PROGRAM_LIMITS[usize::from(options.sticky)];
    watch(Arc::clone(&progress), Arc::clone(&seed), longest);
    let mut watchdog = Watchdog::new();
    let mut reused = match first {
        ReferenceDriver::Driver => Some(reference_subject(options.devices)),
        ReferenceDriver::Simulator => None,
    };
    send_line(&["ready"]);
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
            watchdog.patience = Duration::from_millis(patience);
        }
        for number in start..start + count {
            seed.store(number, Ordering::Relaxed);
            let mut steps = generate(number, &options);
            if let Some(keep) = &keep {
                steps = keep.iter().filter_map(|&k| steps.get(k).cloned()).collect();
            }
            let mut subjects: Vec<Subject> = reused.take().into_iter().collect();
            subjects.extend(simulators(number, options.devices, first));
            progress.programs.fetch_add(1, Ordering::Release);
            let ProgramResult { found, dirty, .. } =
                run(&steps, &mut subjects, &watchdog, &progress);
            progress.programs.fetch_add(1, Ordering::Release);
            if first == ReferenceDriver::Driver {
                reused = Some(subjects.swap_remove(0));
            }
            report(number, &found, dirty && first == ReferenceDriver::Driver);
            if dirty && first == ReferenceDriver::Driver {
                // The process may be in an undefined state, so exit without cleaning up.
                exit_now();
            }
        }
    }
}

fn report(seed: u64, found: &[Difference], dirty: bool) {
    let seed = seed.to_string();
    if found.is_empty() {
        return send_line(&[if dirty { "last" } else { "same" }, &seed]);
    }
    let mut fields = vec!["diff", &seed, if dirty { "dirty" } else { "clean" }];
    for difference in found {
        fields.extend([&*difference.class, &*difference.text]);
    }
    send_line(&fields);
}

fn reference_subject(devices: usize) -> Subject {
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    if let Some(spec) = spec.as_deref().filter(|s| s.starts_with("sim")) {
        let config = SimConfig::from_spec(spec).unwrap_or_else(|e| panic!("{e}"));
        let sim = config.build();
        let mut subject = Subject::over("sim", sim.clone(), Some(sim), devices);
        subject.reused = true;
        return subject;
    }
    let driver = open(spec.as_deref(), None).unwrap_or_else(|e| panic!("{e}"));
    let count = driver.device_count();
    assert!(count >= devices, "{devices} GPUs are needed, and {count} visible");
    let mut subject = Subject::over("cuda", driver, None, devices);
    subject.reused = true;
    subject
}

fn simulators(seed: u64, devices: usize, first: ReferenceDriver) -> Vec<Subject> {
    let subject = |name: &str, schedule| {
        Subject::simulated(name, SimConfig { schedule, ..SimConfig::new(devices) })
    };
    let mut subjects =
        vec![subject("sim lazy", Schedule::Lazy), subject("sim seeded", Schedule::Seeded(seed))];
    if first == ReferenceDriver::Simulator {
        subjects.push(subject("sim eager", Schedule::Eager));
        subjects.push(subject("sim seeded again", Schedule::Seeded(!seed)));
    }
    subjects
}

fn tell(step: usize) {
    send_line(&["at", &step.to_string()]);
}

/// Ends the process if a call or a program exceeds its time limit.
fn watch(progress: Arc<Progress>, seed: Arc<AtomicU64>, longest: Duration) {
    /// A count that is odd while something is running, and the time of the count's last change.
    struct Stopwatch(usize, Instant);
    impl Stopwatch {
        fn longer_than(&mut self, count: usize, limit: Duration) -> bool {
            if count != self.0 || count.is_multiple_of(2) {
                *self = Self(count, Instant::now());
            }
            self.1.elapsed() > limit
        }
    }
    std::thread::spawn(move || {
        let (mut call, mut program) = (Stopwatch(0, Instant::now()), Stopwatch(0, Instant::now()));
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let clearing = progress.step.load(Ordering::Relaxed) == usize::MAX;
            let limit = if clearing { CLEANUP_LIMIT } else { CALL_LIMIT };
            let stuck = call.longer_than(progress.calls.load(Ordering::Acquire), limit);
            if stuck || program.longer_than(progress.programs.load(Ordering::Acquire), longest) {
                let step = progress.step.load(Ordering::Relaxed).to_string();
                let subject = progress.subject.load(Ordering::Relaxed).to_string();
                send_line(&["hang", &seed.load(Ordering::Relaxed).to_string(), &step, &subject]);
                exit_now();
            }
        }
    });
}

/// Ends the process without the driver's exit handlers, which may hang.
fn exit_now() -> ! {
    #[cfg(unix)]
    // SAFETY: `_exit` ends the process at once.
    unsafe {
        libc::_exit(3)
    }
    #[cfg(not(unix))]
    std::process::abort()
}
