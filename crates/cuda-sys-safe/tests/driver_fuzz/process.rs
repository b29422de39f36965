//! The other end of a worker: a process that is asked for programs and may die of them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A worker that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(40);
/// How long a process may take to end. A GPU's driver may need some time to clear up after one.
const ENDING: Duration = Duration::from_secs(3);
/// Of what it writes on standard error, how many lines are kept.
const TAIL: usize = 60;

/// What a worker says of one program.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Same,
    /// The same, and the worker has ended.
    Last,
    Diff {
        dirty: bool,
        found: Vec<(String, String)>,
    },
    Hang {
        step: usize,
        lane: String,
    },
    /// The process ended in the middle: how, and where.
    Gone(String),
}

impl Answer {
    /// Whether the worker can be asked again.
    pub(crate) fn lives(&self) -> bool {
        matches!(self, Self::Same | Self::Diff { dirty: false, .. })
    }
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) seed: u64,
    pub(crate) count: u64,
    /// The steps that are not left out; all, if none are named.
    pub(crate) keep: Option<&'a [usize]>,
    /// How long a call may take before it counts as waiting.
    pub(crate) patience: Duration,
}

#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    /// The step that the first driver has begun last.
    at: String,
    /// The programs that it has run.
    pub(crate) served: Vec<u64>,
}

impl Worker {
    /// Starts a process that serves `role`.
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
            .args(["fuzz_worker", "--exact", "--include-ignored", "--nocapture"])
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
            if tail.len() == TAIL {
                // The first lines say what it is about.
                tail.remove(TAIL / 2);
            }
            tail.push_back(line);
            true
        });
        let (at, served) = ("the beginning".to_owned(), Vec::new());
        let mut worker = Self { child, input, lines, errors, at, served };
        match worker.lines.recv_timeout(SILENCE) {
            Ok(line) if line == "@ready" => Ok(worker),
            _ => Err(worker.end()),
        }
    }

    pub(crate) fn ask(&mut self, ask: &Ask<'_>) {
        let keep = ask.keep.map_or("-".to_owned(), |keep| {
            // A leading comma: no step at all is a list too.
            keep.iter().map(|k| format!(",{k}")).collect::<String>() + ","
        });
        let patience = ask.patience.as_millis();
        // Where it has ended, the answer says so.
        let _ = writeln!(self.input, "{} {} {keep} {patience}", ask.seed, ask.count);
        let _ = self.input.flush();
    }

    /// What it says of the next program, which is that of `seed`.
    pub(crate) fn hear(&mut self, seed: u64) -> Answer {
        self.served.push(seed);
        "the beginning".clone_into(&mut self.at);
        loop {
            let line = match self.lines.recv_timeout(SILENCE) {
                Ok(line) => line,
                Err(_) => return Answer::Gone(self.end()),
            };
            let fields: Vec<&str> = line[1..].split('\t').collect();
            return match fields[..] {
                ["at", step] => {
                    step.clone_into(&mut self.at);
                    continue;
                }
                ["same", _] => Answer::Same,
                ["last", _] => Answer::Last,
                ["hang", _, step, lane] => {
                    Answer::Hang { step: step.parse().unwrap_or(0), lane: lane.to_owned() }
                }
                ["diff", _, state, ref rest @ ..] => {
                    let pairs = rest.chunks_exact(2).map(|p| (p[0].to_owned(), p[1].to_owned()));
                    Answer::Diff { dirty: state == "dirty", found: pairs.collect() }
                }
                _ => Answer::Gone(format!("it said {line:?}")),
            };
        }
    }

    /// How the process ended, and what it said last.
    fn end(&mut self) -> String {
        let until = Instant::now() + ENDING;
        let mut ended = None;
        while ended.is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            ended = self.child.try_wait().ok().flatten();
        }
        let how = ended.map_or("it still runs and says nothing".to_owned(), |s| s.to_string());
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

/// Hands on the lines of an output until it ends or nobody wants them.
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
        let until = Instant::now() + ENDING;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
