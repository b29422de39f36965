//! The parent's side of a worker process, which runs programs and may crash.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time without output after which a worker counts as hung.
const OUTPUT_LIMIT: Duration = Duration::from_secs(40);
/// Time for a process to end. The driver may need some time to clean up after a crash.
const EXIT_LIMIT: Duration = Duration::from_secs(3);
/// Number of lines of standard error that are kept.
const ERROR_LINES: usize = 60;

/// A worker's answer about one program.
#[derive(Clone, Debug)]
pub(crate) enum WorkerAnswer {
    Same,
    /// No difference, but the worker has ended.
    Last,
    Diff {
        dirty: bool,
        found: Vec<(String, String)>,
    },
    Hang {
        step: usize,
        subject: String,
    },
    /// The process ended during the program. Contains its exit status and the last step.
    Gone(String),
}

impl WorkerAnswer {
    /// Returns `true` if the worker can run another program.
    pub(crate) fn lives(&self) -> bool {
        matches!(self, Self::Same | Self::Diff { dirty: false, .. })
    }
}

/// A request to run programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramRequest<'a> {
    pub(crate) seed: u64,
    pub(crate) count: u64,
    /// The steps to run. `None`: all steps.
    pub(crate) keep: Option<&'a [usize]>,
    /// Time after which a call counts as waiting.
    pub(crate) patience: Duration,
}

#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    /// The last step that the reference driver has begun.
    at: String,
    /// Seeds of the programs that the worker has run.
    pub(crate) served: Vec<u64>,
}

impl Worker {
    /// Starts a process with the role `role`.
    pub(crate) fn spawn(role: (&str, String), driver: Option<&str>) -> Self {
        for _ in 0..2 {
            match Self::try_spawn(&role, driver) {
                Ok(worker) => return worker,
                Err(why) => eprintln!("a worker cannot open its driver: {why}"),
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        Self::try_spawn(&role, driver)
            .unwrap_or_else(|why| panic!("no worker can open its driver: {why}"))
    }

    fn try_spawn(role: &(&str, String), driver: Option<&str>) -> Result<Self, String> {
        let exe = std::env::current_exe().expect("this program's path");
        let mut command = Command::new(exe);
        if let Some(driver) = driver {
            command.env("WARPLINE_DRIVER", driver);
        }
        let mut child = command
            .args(["program_of_a_worker", "--exact", "--include-ignored", "--nocapture"])
            .env(role.0, &role.1)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process of this program");
        let input = child.stdin.take().expect("piped");
        let (send, lines) = channel();
        let output = child.stdout.take().expect("piped");
        each_line(output, move |line| !line.starts_with('@') || send.send(line).is_ok());
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let (tail, output) = (Arc::clone(&errors), child.stderr.take().expect("piped"));
        each_line(output, move |line| {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.len() == ERROR_LINES {
                // Keep the first lines, which name the error, and drop a line from the middle.
                tail.remove(ERROR_LINES / 2);
            }
            tail.push_back(line);
            true
        });
        let (at, served) = ("the beginning".to_owned(), Vec::new());
        let mut worker = Self { child, input, lines, errors, at, served };
        match worker.lines.recv_timeout(OUTPUT_LIMIT) {
            Ok(line) if line == "@ready" => Ok(worker),
            _ => Err(worker.end()),
        }
    }

    pub(crate) fn ask(&mut self, ask: &ProgramRequest<'_>) {
        let keep = ask.keep.map_or("-".to_owned(), |keep| {
            // The leading comma distinguishes an empty list from no list.
            keep.iter().map(|k| format!(",{k}")).collect::<String>() + ","
        });
        let patience = ask.patience.as_millis();
        // If the worker has ended, reading its answer reports that.
        let _ = writeln!(self.input, "{} {} {keep} {patience}", ask.seed, ask.count);
        let _ = self.input.flush();
    }

    /// Reads the answer about the next program, which has this seed.
    pub(crate) fn receive(&mut self, seed: u64) -> WorkerAnswer {
        self.served.push(seed);
        "the beginning".clone_into(&mut self.at);
        loop {
            let line = match self.lines.recv_timeout(OUTPUT_LIMIT) {
                Ok(line) => line,
                Err(_) => return WorkerAnswer::Gone(self.end()),
            };
            let fields: Vec<&str> = line[1..].split('\t').collect();
            return match fields[..] {
                ["at", step] => {
                    step.clone_into(&mut self.at);
                    continue;
                }
                ["same", _] => WorkerAnswer::Same,
                ["last", _] => WorkerAnswer::Last,
                ["hang", _, step, subject] => WorkerAnswer::Hang {
                    step: step.parse().unwrap_or(0),
                    subject: subject.to_owned(),
                },
                ["diff", _, state, ref rest @ ..] => {
                    let pairs = rest.chunks_exact(2).map(|p| (p[0].to_owned(), p[1].to_owned()));
                    WorkerAnswer::Diff { dirty: state == "dirty", found: pairs.collect() }
                }
                _ => WorkerAnswer::Gone(format!("unknown answer: {line:?}")),
            };
        }
    }

    /// Waits for the process to end. Returns its exit status and last output.
    fn end(&mut self) -> String {
        let until = Instant::now() + EXIT_LIMIT;
        let mut ended = None;
        while ended.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            ended = self.child.try_wait().ok().flatten();
        }
        let how =
            ended.map_or("the process still runs and prints nothing".to_owned(), |s| s.to_string());
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let said: String = errors.iter().map(|line| format!("\n   | {line}")).collect();
        let at = match self.at.parse::<usize>() {
            Ok(usize::MAX) => "cleaning up",
            _ => &self.at,
        };
        let before = self.served.len().saturating_sub(1);
        format!("{how}, at step {at}, after {before} other programs in that process{said}")
    }
}

/// Passes each line of an output to `take`, until the output ends or `take` returns `false`.
fn each_line(
    output: impl Read + Send + 'static,
    mut take: impl FnMut(String) -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if !take(String::from_utf8_lossy(&line).into_owned()) {
                break;
            }
        }
    });
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let until = Instant::now() + EXIT_LIMIT;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
