//! Ends a process as its plan says. This is the program of the process.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};
use warpline::data::{DataLoader, Dataset};
use warpline::{Result, Tensor, cuda, ones, with_runtime};

use super::alive::{self, ENDING, Object};
use super::plan::{CODE, Ending, ForkedEnding, PLANNED, Place, Plan, Status};
use crate::group_support::LONG;

/// Exit code of a process that was not ended in time.
const LATE: i32 = 99;

/// A value whose destructor panics.
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("{PLANNED}");
    }
}

/// Runs a plan. Returns if the plan's process returns.
pub(super) fn run(plan: &Plan, spec: &str) {
    let limit = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, limit).expect("no core dumps");
    std::panic::set_hook(Box::new(|info| match info.payload_as_str() {
        Some(PLANNED) => eprintln!("{PLANNED}"),
        Some("panic in a destructor during cleanup") => eprintln!("{info}"),
        _ => eprintln!("{info}\n{}", Backtrace::force_capture()),
    }));
    let descriptors = descriptors();
    let runtime = alive::runtime(plan.own_runtime, spec);
    let live = || {
        let mut alive: Vec<Object> = Vec::new();
        for &(part, owner) in &plan.parts {
            let made = alive::make(part, owner);
            alive.extend(made.unwrap_or_else(|e| panic!("{part:?}: {e}")));
        }
        let panics = matches!(plan.ending, Ending::DropPanics | Ending::PanicsTwice);
        let _panics = panics.then(|| PanicsInDrop);
        at_place(plan, descriptors);
    };
    match &runtime {
        Some(runtime) => with_runtime(runtime, live),
        None => live(),
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn at_place(plan: &Plan, descriptors: usize) {
    let forked = FORKED.get();
    let ran = match plan.place {
        Place::Main => {
            end(plan, descriptors);
            Ok(())
        }
        Place::Thread => {
            let thread_plan = plan.clone();
            let runtime = warpline::runtime();
            let run = move || with_runtime(&runtime, || end(&thread_plan, descriptors));
            let _ = std::thread::spawn(run).join();
            Ok(())
        }
        Place::Capture => in_capture(plan, descriptors),
        Place::Hook => in_hook(plan, descriptors),
        Place::Worker => in_worker(plan, descriptors),
    };
    // A forked child cannot end its parent's capture or backward pass.
    if let Err(error) = ran
        && !(forked || FORKED.get())
    {
        panic!("{error}");
    }
}

fn in_capture(plan: &Plan, descriptors: usize) -> Result<()> {
    let x = ones([10], "cuda")?;
    cuda::graph(|| {
        let y = x.add(1)?;
        end(plan, descriptors);
        y.mul(2)
    })?;
    Ok(())
}

fn in_hook(plan: &Plan, descriptors: usize) -> Result<()> {
    let x = ones([10], "cuda")?.requires_grad_(true)?;
    let y = x.mul(&x)?;
    let plan = plan.clone();
    y.register_hook(move |_| {
        end(&plan, descriptors);
        Ok(None)
    })?;
    y.sum(())?.backward()
}

/// A data set whose fourth sample ends the process.
struct EndsInWorker(Plan, usize);

impl Dataset for EndsInWorker {
    type Sample = Tensor;

    fn len(&self) -> usize {
        8
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        if index == 3 {
            end(&self.0, self.1);
        }
        ones([3], ())
    }
}

fn in_worker(plan: &Plan, descriptors: usize) -> Result<()> {
    let loader = DataLoader::new(EndsInWorker(plan.clone(), descriptors)).num_workers(2);
    for batch in loader.iter()? {
        // The loader returns a worker's panic as an error.
        if batch.is_err() && plan.ending == Ending::Panic {
            return Ok(());
        }
        batch?;
    }
    Ok(())
}

thread_local! {
    /// Whether this is the thread of a forked child.
    static FORKED: Cell<bool> = const { Cell::new(false) };
}

fn end(plan: &Plan, descriptors: usize) {
    // Errors of other threads no longer count from here on.
    ENDING.store(true, Ordering::Relaxed);
    match plan.ending {
        Ending::Return | Ending::DropPanics => {}
        Ending::Exit => exit(CODE),
        Ending::Abort => std::process::abort(),
        Ending::Panic | Ending::PanicsTwice => panic!("{PLANNED}"),
        Ending::Raise(signal) => {
            let signal = Signal::from_named_raw(signal).expect("a signal");
            let start = Instant::now();
            // Rust's handler of SIGSEGV and SIGBUS ignores the first signal that is no fault.
            while start.elapsed() < LONG {
                let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
            }
            exit(LATE);
        }
        Ending::Signalled(..) => {
            let start = Instant::now();
            while start.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(5));
            }
            exit(LATE);
        }
        Ending::Exec => {
            // The new program must inherit no descriptor of this one.
            let script = "test $(ls /proc/self/fd | wc -l) -le $0";
            let error = Command::new("sh").args(["-c", script, &descriptors.to_string()]).exec();
            panic!("exec: {error}");
        }
        Ending::Fork(ending) => fork(plan, ending),
    }
}

/// Forks. Returns in the parent when the child has ended, and in the child if the child returns.
fn fork(plan: &Plan, ending: ForkedEnding) {
    // SAFETY: `fork` has no conditions. The child uses only functions that Warpline allows in a forked child.
    let child = unsafe { libc::fork() };
    let Some(child) = Pid::from_raw(child) else {
        FORKED.set(true);
        // An error would be a stray message.
        let sum = ones([100], ()).and_then(|x| x.add(1)?.sum(())?.item::<f32>());
        assert_eq!(sum.expect("CPU tensors work in a forked child"), 200.0);
        match ending {
            ForkedEnding::Return => return,
            ForkedEnding::Exit => exit(CODE),
            // SAFETY: `_exit` has no conditions; it ends the child at once.
            ForkedEnding::EndNow => unsafe { libc::_exit(CODE) },
            ForkedEnding::Panic => panic!("{PLANNED}"),
        }
    };
    let start = Instant::now();
    let status = loop {
        if let Ok(Some((_, status))) = rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            break status;
        }
        if start.elapsed() > super::LIMIT / 2 {
            let _ = rustix::process::kill_process(child, Signal::KILL);
            panic!("the forked child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let status = match status.exit_status() {
        Some(code) => Status::Code(code),
        None => Status::Signal(status.terminating_signal().unwrap_or_default()),
    };
    assert_eq!(status, plan.status_of_forked(ending), "the end of the forked child");
}
