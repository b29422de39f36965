//! Many programs in several processes, and what to make of the differences.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::generate::{Options, generate};
use crate::step::Step;
use crate::worker::{First, ROLE, role};

/// How many kinds of differences are looked into.
const CLASSES: usize = 60;
/// Programs that a worker is asked for at once.
const BATCH: u64 = 16;
/// A worker that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(40);

#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    pub(crate) options: Options,
    pub(crate) first: First,
    /// What the first driver is, instead of what the environment says.
    pub(crate) driver: Option<&'static str>,
    /// The first program's seed.
    pub(crate) start: u64,
    pub(crate) programs: u64,
    pub(crate) workers: usize,
}

/// What a worker says of one program.
#[derive(Clone, Debug)]
enum Answer {
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
    Gone,
}

#[derive(Clone, Debug, Default)]
struct Class {
    programs: u64,
    seed: u64,
    text: String,
    note: String,
    program: Vec<Step>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) agree: u64,
    differ: u64,
    classes: BTreeMap<String, Class>,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Campaign {
    pub(crate) fn run(&self) -> Report {
        let next = AtomicU64::new(0);
        let report = Mutex::new(Report::default());
        let batch = if self.options.sticky { 1 } else { BATCH };
        std::thread::scope(|scope| {
            for _ in 0..self.workers.min(self.programs.div_ceil(batch) as usize).max(1) {
                scope.spawn(|| self.work(&next, batch, &report));
            }
        });
        report.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, next: &AtomicU64, batch: u64, report: &Mutex<Report>) {
        let mut worker = None;
        loop {
            let from = next.fetch_add(batch, Ordering::Relaxed);
            if from >= self.programs {
                break;
            }
            let (mut seed, end) =
                (self.start + from, self.start + (from + batch).min(self.programs));
            while seed < end {
                let mut running = worker.take().unwrap_or_else(|| self.spawn());
                running.ask(seed, end - seed, None);
                let mut gone = false;
                while seed < end && !gone {
                    let answer = running.hear();
                    gone = !matches!(answer, Answer::Same | Answer::Diff { dirty: false, .. });
                    for class in self.note(seed, &answer, report) {
                        self.look_into(&class, seed, report);
                    }
                    seed += 1;
                }
                if !gone && !self.options.sticky {
                    worker = Some(running);
                }
            }
        }
    }

    /// Counts an answer; the classes that are new.
    fn note(&self, seed: u64, answer: &Answer, report: &Mutex<Report>) -> Vec<String> {
        let found = self.differences(seed, answer);
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_empty() {
            report.agree += 1;
            return Vec::new();
        }
        report.differ += 1;
        let mut new = Vec::new();
        for (class, text) in found {
            let room = report.classes.len() < CLASSES;
            if !report.classes.contains_key(&class) && room {
                new.push(class.clone());
            }
            let room = room || report.classes.contains_key(&class);
            let name = if room { class } else { "(other kinds)".to_owned() };
            let entry = report.classes.entry(name).or_default();
            if entry.programs == 0 {
                (entry.seed, entry.text) = (seed, text);
            }
            entry.programs += 1;
        }
        new
    }

    /// The differences in an answer: classes and texts.
    fn differences(&self, seed: u64, answer: &Answer) -> Vec<(String, String)> {
        match answer {
            Answer::Same | Answer::Last => Vec::new(),
            Answer::Diff { found, .. } => {
                let mut seen = std::collections::BTreeSet::new();
                found.iter().filter(|(class, _)| seen.insert(class.clone())).cloned().collect()
            }
            Answer::Hang { step, lane } => {
                let steps = generate(seed, &self.options);
                let at = steps.get(*step).map_or("the end".to_owned(), Step::kind);
                vec![(format!("hang in {at}, lane {lane}"), format!("step {step}"))]
            }
            Answer::Gone => vec![("the process ended".to_owned(), String::new())],
        }
    }

    /// Finds out whether a difference comes again, and how little it takes.
    fn look_into(&self, class: &str, seed: u64, report: &Mutex<Report>) {
        let steps = generate(seed, &self.options);
        let all: Vec<usize> = (0..steps.len()).collect();
        let mut worker = None;
        let slow = class.starts_with("hang") || class.starts_with("the process");
        let until = Instant::now() + Duration::from_secs(if slow { 40 } else { 20 });
        let mut again = |keep: &[usize]| {
            let running: &mut Worker = worker.get_or_insert_with(|| self.spawn());
            running.ask(seed, 1, Some(keep));
            let answer = running.hear();
            if !matches!(answer, Answer::Same | Answer::Diff { dirty: false, .. }) {
                worker = None;
            }
            let kept: Vec<Step> = keep.iter().map(|&k| steps[k].clone()).collect();
            let named = match &answer {
                Answer::Hang { step, lane } => {
                    let at = kept.get(*step).map_or("the end".to_owned(), Step::kind);
                    vec![(format!("hang in {at}, lane {lane}"), String::new())]
                }
                other => self.differences(seed, other),
            };
            named.into_iter().find(|(found, _)| found == class).map(|(_, text)| text)
        };
        let mut keep = all.clone();
        let mut text = None;
        let mut note = String::new();
        if again(&all).is_none() || again(&all).is_none() {
            note = "it does not come again each time, so it was not shrunk".to_owned();
        } else {
            let mut size = keep.len().div_ceil(2).max(1);
            while Instant::now() < until {
                let mut smaller = false;
                let mut at = keep.len();
                while at > 0 && Instant::now() < until {
                    at = at.saturating_sub(size);
                    let mut less = keep.clone();
                    less.drain(at..(at + size).min(keep.len()));
                    if let Some(said) = again(&less) {
                        (keep, text, smaller) = (less, Some(said), true);
                    }
                }
                if size == 1 && !smaller {
                    break;
                }
                size = if size > 1 { size / 2 } else { 1 };
            }
        }
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = report.classes.get_mut(class) {
            entry.program = keep.iter().map(|&k| steps[k].clone()).collect();
            entry.note = note;
            if let Some(text) = text.filter(|t| !t.is_empty()) {
                entry.text = text;
            }
        }
    }

    fn spawn(&self) -> Worker {
        let exe = std::env::current_exe().expect("this program's path");
        let mut command = Command::new(exe);
        if let Some(driver) = self.driver {
            command.env("WARPLINE_DRIVER", driver);
        }
        let mut child = command
            .args(["fuzz_worker", "--exact", "--include-ignored", "--nocapture"])
            .env(ROLE, role(&self.options, self.first))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process of this program");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        // Ends with the worker's output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with('@') && send.send(line).is_err() {
                    break;
                }
            }
        });
        let first = lines.recv_timeout(SILENCE);
        assert!(first.is_ok_and(|line| line == "@ready"), "a worker cannot open its driver");
        Worker { child, input, lines }
    }
}

impl Worker {
    fn ask(&mut self, seed: u64, count: u64, keep: Option<&[usize]>) {
        let keep = keep.map_or("-".to_owned(), |keep| {
            // A leading comma: no step at all is a list too.
            keep.iter().map(|k| format!(",{k}")).collect::<String>() + ","
        });
        // Where it has ended, the answer says so.
        let _ = writeln!(self.input, "{seed} {count} {keep}");
        let _ = self.input.flush();
    }

    fn hear(&mut self) -> Answer {
        let Ok(line) = self.lines.recv_timeout(SILENCE) else { return Answer::Gone };
        let fields: Vec<&str> = line[1..].split('\t').collect();
        match fields[..] {
            ["same", _] => Answer::Same,
            ["last", _] => Answer::Last,
            ["hang", _, step, lane] => {
                Answer::Hang { step: step.parse().unwrap_or(0), lane: lane.to_owned() }
            }
            ["diff", _, state, ref rest @ ..] => {
                let pairs = rest.chunks_exact(2).map(|p| (p[0].to_owned(), p[1].to_owned()));
                Answer::Diff { dirty: state == "dirty", found: pairs.collect() }
            }
            _ => Answer::Gone,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Report {
    /// The programs that were shrunk, by what differs in them.
    pub(crate) fn shrunk(&self) -> impl Iterator<Item = (&str, &[Step])> {
        self.classes.iter().map(|(class, found)| (&**class, &*found.program))
    }

    /// Prints the differences, and whether there were none.
    pub(crate) fn print(&self, campaign: &Campaign) -> bool {
        for (class, found) in &self.classes {
            println!("\n== {class}");
            println!("   in {} programs, first in that of seed {}", found.programs, found.seed);
            println!("   {}", found.text);
            if !found.note.is_empty() {
                println!("   {}", found.note);
            }
            for step in &found.program {
                println!("    {step:?},");
            }
        }
        let kind = if campaign.options.sticky { "sticky programs" } else { "programs" };
        println!(
            "\n{} {kind} agree on {} device(s) (seed {}), {} differences",
            self.agree, campaign.options.devices, campaign.start, self.differ
        );
        self.differ == 0
    }
}
