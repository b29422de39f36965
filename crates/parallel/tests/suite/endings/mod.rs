//! Processes that end in the middle of their work. Each test starts its own program many times with a seed. The seed
//! chooses the objects that are alive, and the end: a return, an exit, an abort, a panic, a signal, another program,
//! or the end of a forked child.
//!
//! Checked for each process:
//!
//! - The process ends within [`LIMIT`], with the status of its ending.
//! - Its standard error contains nothing but the messages of planned panics.
//! - It leaves no file in the temporary folder or in `/dev/shm`, and no process.
//!
//! Environment variables: `WARPLINE_ENDINGS` is the number of processes (default: 200), and `WARPLINE_ENDING_SEED` the
//! first seed (default: 0).

mod alive;
mod end;
mod plan;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use warpline::multiprocessing::Channel;

use crate::group_support::{LONG, at_once, gpu_spec, number};
pub(crate) use plan::Numbers;
use plan::{Ending, FAILED, Plan, Status};

/// Time within which a process ends, and later all its processes.
const LIMIT: Duration = Duration::from_secs(40);

/// Environment variable with the seed of a process.
const SEED: &str = "WARPLINE_TEST_ENDING";
/// Environment variable of a peer.
const PEER: &str = "WARPLINE_TEST_ENDING_PEER";

/// Program of the processes that end.
#[test]
#[ignore = "is started by the other tests"]
fn program_of_an_ending() {
    if std::env::var_os(PEER).is_some() {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
        let channel = Channel::new(socket);
        channel.set_timeout(Some(LONG)).unwrap();
        // A peer that crashes leaves this file in the temporary folder.
        let mark = std::env::temp_dir().join(format!("peer-{}", std::process::id()));
        fs::write(&mark, "").unwrap();
        alive::answer(channel);
        return fs::remove_file(&mark).unwrap();
    }
    let Ok(seed) = std::env::var(SEED) else { return };
    let plan = Plan::new(seed.parse().unwrap());
    for signal in plan::SIGNALS {
        // A shell lets its background processes ignore some signals, and their children inherit that.
        // SAFETY: the default action runs no code of this program.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let ran = catch_unwind(|| end::run(&plan, &gpu_spec()));
    // A test runs in a thread of its own, so its return would end only that thread. A return or a panic of `main` is
    // this call.
    exit(if ran.is_ok() { 0 } else { FAILED });
}

fn own_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = crate::full_test_name(module_path!(), "program_of_an_ending");
    command.args([&*name, "--exact", "--ignored", "--nocapture"]);
    command.stdout(Stdio::null());
    command
}

/// A process that ends, and its temporary folder.
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    fn start(seed: u64, plan: &Plan, driver: &str) -> Self {
        let folder = format!("warpline-ending-{}-{seed}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let driver = match driver.strip_prefix("sim") {
            Some(_) => format!("{driver},{}", plan.schedule),
            None => driver.to_owned(),
        };
        let mut program = own_program();
        program.env(SEED, seed.to_string()).env("WARPLINE_DRIVER", driver).env("TMPDIR", &folder);
        program.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        Self { child: program.spawn().unwrap(), folder }
    }

    /// Waits for the end. Returns `None` if the process hangs.
    fn status(&mut self) -> Option<ExitStatus> {
        within(LIMIT, || self.child.try_wait().unwrap())
    }

    /// Returns whether a process of the group remains. Zombies do not count.
    fn lives_on(&self) -> bool {
        let group = Pid::from_child(&self.child);
        if rustix::process::test_kill_process_group(group).is_err() {
            return false;
        }
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let stats = processes.filter_map(|p| fs::read_to_string(p.path().join("stat")).ok());
        let mut groups = stats.filter_map(|stat| {
            // The name, in brackets, may contain spaces.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let (state, group) = (fields.next()?.to_owned(), fields.nth(1)?.to_owned());
            (state != "Z").then_some(group)
        });
        groups.any(|other| other == group.as_raw_nonzero().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Polls until `done` returns a value or the time is over.
fn within<T>(limit: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let value = done();
        if value.is_some() || start.elapsed() > limit {
            return value;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs one process to its end. Returns the first broken promise.
fn check(seed: u64, plan: &Plan, driver: &str) -> Result<(), String> {
    let mut process = Process::start(seed, plan, driver);
    if let Ending::Signalled(signal, after) = plan.ending {
        std::thread::sleep(after);
        let signal = Signal::from_named_raw(signal).expect("a signal");
        let _ = rustix::process::kill_process(Pid::from_child(&process.child), signal);
    }
    let Some(status) = process.status() else { return Err("it hangs".into()) };
    let gone = within(LIMIT, || (!process.lives_on()).then_some(()));
    gone.ok_or("one of its processes lives on")?;
    let mut said = Vec::new();
    process.child.stderr.take().unwrap().read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    let ended = match (status.code(), status.signal()) {
        (Some(code), _) => Status::Code(code),
        (None, signal) => Status::Signal(signal.unwrap_or_default()),
    };
    if ended != plan.status() {
        return Err(format!("it ended with {ended:?} instead of {:?}:\n{said}", plan.status()));
    }
    if let Some(line) = said.lines().find(|line| !line.is_empty() && !plan.says(line)) {
        return Err(format!("a stray message, {line}:\n{said}"));
    }
    let files: Vec<_> = fs::read_dir(&process.folder).unwrap().flatten().collect();
    if !files.is_empty() {
        return Err(format!("it leaves {files:?} in the temporary folder"));
    }
    Ok(())
}

/// Returns the names of the files in shared memory.
fn shared_files() -> BTreeSet<PathBuf> {
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    files.map(|file| file.path()).collect()
}

/// Runs `count` processes, a few at a time.
fn endings(count: usize, driver: &str) {
    let first = number("WARPLINE_ENDING_SEED", 0);
    let count = number("WARPLINE_ENDINGS", count);
    let seeds: Vec<usize> = (first..first + count).collect();
    let (start, shared) = (Instant::now(), shared_files());
    let failures = Mutex::new(Vec::new());
    let parallel = std::thread::available_parallelism().map_or(2, |n| n.get().min(8));
    at_once(parallel, &seeds, |&seed| {
        let plan = Plan::new(seed as u64);
        if let Err(reason) = check(seed as u64, &plan, driver) {
            let failure = format!("ending {seed}: {reason}\n{plan:?}");
            eprintln!("{failure}");
            failures.lock().unwrap().push(failure);
        }
    });
    println!("{count} endings in {:.1} s", start.elapsed().as_secs_f64());
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {count} endings fail:\n{}\nRun one again with WARPLINE_ENDINGS=1 WARPLINE_ENDING_SEED=N",
        failures.len(),
        failures.join("\n\n")
    );
    let left = within(LIMIT, || shared_files().is_subset(&shared).then_some(()));
    left.unwrap_or_else(|| panic!("left: {:?}", shared_files().difference(&shared)));
}

#[test]
fn a_process_that_ends_in_the_middle_leaves_nothing() {
    endings(200, "sim:2");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_process_that_ends_in_the_middle_leaves_nothing() {
    endings(300, &gpu_spec());
}
