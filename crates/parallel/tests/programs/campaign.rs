//! Runs many programs in child processes, so that the program of a crash or hang is known, and
//! shrinks a program that fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::generate::{self, Step};
use crate::run::{Coverage, check};
use crate::{ops, print};

/// Time after which a program counts as hanging. Programs normally take milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// Reads a number from the environment.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// Variable with the work of a child process: the first seed, the number of seeds, and their
/// distance.
const RANGE: &str = "WARPLINE_PROGRAMS_CHILD";
/// Variable with the steps to keep. Without it, all steps run.
const KEEP: &str = "WARPLINE_PROGRAMS_KEEP";
/// Variable that makes the programs run on this machine's GPUs instead of simulated ones.
const ON_GPUS: &str = "WARPLINE_TEST_ON_GPUS";
/// Variable with the folder to which the child writes its results.
const FOLDER: &str = "WARPLINE_PROGRAMS_FOLDER";

fn keep(program: Vec<Step>, kept: &[usize]) -> Vec<Step> {
    program.into_iter().filter(|step| kept.contains(&step.id)).collect()
}

fn numbers(text: &str) -> Vec<usize> {
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

/// Runs the programs of a child process.
pub(crate) fn work() {
    let range = std::env::var(RANGE).expect("`random_programs` starts this process");
    let folder = PathBuf::from(std::env::var(FOLDER).expect("the parent's folder"));
    let [first, count, stride] = numbers(&range)[..] else { panic!("{RANGE}={range}") };
    let kept = std::env::var(KEEP).ok().map(|text| numbers(&text));
    let on_gpus = std::env::var_os(ON_GPUS).is_some();
    let mut coverage = Coverage::new();
    for seed in (0..count).map(|k| (first + k * stride) as u64) {
        write(&folder.join("seed"), &seed.to_string());
        let mut program = generate::program(seed);
        if let Some(kept) = &kept {
            program = keep(program, kept);
        }
        if let Err(reason) = check(&program, seed, &mut coverage, on_gpus) {
            write(&folder.join("reason"), &reason);
            std::process::exit(3);
        }
    }
    let lines = coverage.iter().map(|((row, kind), count)| format!("{row} {kind} {count}\n"));
    write(&folder.join("coverage"), &lines.collect::<String>());
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// A child process, and the folder of its results.
struct Worker {
    child: Child,
    folder: PathBuf,
    /// The seed at the last poll, and the time when it was first seen.
    seed: (u64, Instant),
}

/// The end of a child process.
enum End {
    Done,
    /// The seed that failed, and the reason.
    Failed(u64, String),
}

impl Worker {
    fn start(name: &str, seeds: [u64; 3], kept: Option<&[usize]>) -> Self {
        let folder =
            std::env::temp_dir().join(format!("warpline-programs-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "worker", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(RANGE, seeds.map(|n| n.to_string()).join(",")).env(FOLDER, &folder);
        if let Some(kept) = kept {
            let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
            command.env(KEEP, kept.join(","));
        }
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().expect("a child process");
        Self { child, folder, seed: (seeds[0], Instant::now()) }
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    /// Returns how the child has ended. `None` if it is still running. Kills a child that hangs.
    fn poll(&mut self) -> Option<End> {
        let seed = self.text("seed").parse().unwrap_or(self.seed.0);
        if seed != self.seed.0 {
            self.seed = (seed, Instant::now());
        }
        match self.child.try_wait().expect("a child") {
            None if self.seed.1.elapsed() > LIMIT => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Some(End::Failed(seed, format!("took longer than {LIMIT:?}")))
            }
            None => None,
            Some(status) if status.success() => Some(End::Done),
            Some(status) => {
                let reason = self.text("reason");
                let log = self.text("log");
                let last: Vec<&str> = log.lines().rev().take(6).collect();
                let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
                let reason = if reason.is_empty() { format!("{status}\n{last}") } else { reason };
                Some(End::Failed(seed, reason))
            }
        }
    }

    fn wait(&mut self) -> End {
        loop {
            if let Some(end) = self.poll() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs `count` programs, beginning with the seed `first`. If a program fails, panics with the
/// shrunk program as Rust code.
pub(crate) fn campaign(first: u64, count: u64) -> BTreeMap<String, u64> {
    let start = Instant::now();
    let parallel = std::thread::available_parallelism().map_or(2, |n| n.get()) as u64;
    // Seeds are dealt to the workers in turn, so a failing seed tells how many programs ran before
    // it.
    let mut workers: Vec<Worker> = (0..parallel.min(count))
        .map(|k| {
            let seeds = [first + k, (count - k).div_ceil(parallel), parallel];
            Worker::start(&format!("from-{}", first + k), seeds, None)
        })
        .collect();
    let mut coverage = BTreeMap::new();
    while !workers.is_empty() {
        let mut k = 0;
        while k < workers.len() {
            match workers[k].poll() {
                None => k += 1,
                Some(End::Done) => {
                    for line in workers.remove(k).text("coverage").lines() {
                        let mut parts = line.split(' ');
                        let row = parts.next().and_then(|row| row.parse::<usize>().ok());
                        let kind = parts.next().unwrap_or_default();
                        let count: u64 = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
                        let name = ops::table()[row.expect("a row")].name;
                        *coverage.entry(format!("{name}\t{kind}")).or_default() += count;
                    }
                }
                Some(End::Failed(seed, reason)) => {
                    drop(workers);
                    fail(seed, &reason);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{count} programs in {seconds:.1} s, {:.0} per second", count as f64 / seconds);
    coverage
}

/// Shrinks the program of a seed, and panics with the remaining steps.
fn fail(seed: u64, reason: &str) -> ! {
    let program = generate::program(seed);
    let mut kept: Vec<usize> = program.iter().map(|step| step.id).collect();
    let mut reason = reason.to_owned();
    let fails = |kept: &[usize], reason: &mut String| match Worker::start(
        "shrink",
        [seed, 1, 1],
        Some(kept),
    )
    .wait()
    {
        End::Done => false,
        End::Failed(_, why) => {
            *reason = why;
            true
        }
    };
    // A failure that depends on the order of threads may not be repeatable.
    if fails(&kept, &mut reason) {
        let mut size = kept.len() / 2;
        while size > 0 {
            let mut from = 0;
            while from < kept.len() {
                let mut fewer = kept.clone();
                fewer.drain(from..(from + size).min(kept.len()));
                if fails(&fewer, &mut reason) { kept = fewer } else { from += size }
            }
            size /= 2;
        }
    } else {
        reason += "\n(it did not fail again)";
    }
    let program = keep(program, &kept);
    panic!(
        "program {seed} fails: {reason}\nRun it again with WARPLINE_PROGRAMS=1 WARPLINE_PROGRAM_SEED={seed}\n\n{}",
        print::source(&program, seed, &reason)
    );
}
