//! Runs many programs in several processes, and investigates the differences.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::generate::{Options, generate};
use crate::process::{ProgramRequest, Worker, WorkerAnswer};
use crate::report::{PROCESS_ENDED, Report, Rerun, SeenDifference};
use crate::step::Step;
use crate::worker::{ROLE, ReferenceDriver, role};

/// Number of programs that a worker runs per request.
const BATCH: u64 = 16;
/// Time after which a call counts as waiting: in the first run, in a run that confirms a
/// difference, and while a program is shrunk.
const PATIENCE: [Duration; 3] =
    [Duration::from_millis(400), Duration::from_secs(2), Duration::from_millis(200)];
/// Time limits for shrinking, in total and per difference. The second pair applies to sticky
/// programs, because each attempt needs a new process.
const SHRINKING: [[Duration; 2]; 2] = [
    [Duration::from_secs(30), Duration::from_secs(2)],
    [Duration::from_secs(10), Duration::from_secs(4)],
];
/// Time limit for shrinking one difference if the campaign overrides the reference driver. That
/// driver is a simulator, which may run on a slow machine.
const SIMULATOR_SHRINKING: Duration = Duration::from_secs(10);

/// Time limit for rerunning the programs that a process ran before it ended.
const HISTORY_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    pub(crate) options: Options,
    pub(crate) first: ReferenceDriver,
    /// Overrides the reference driver that the environment names.
    pub(crate) driver: Option<&'static str>,
    /// Seed of the first program.
    pub(crate) start: u64,
    pub(crate) programs: u64,
    pub(crate) workers: usize,
    /// Time after which no program begins.
    pub(crate) limit: Duration,
}

impl Campaign {
    pub(crate) fn run(&self) -> Report {
        let next = AtomicU64::new(0);
        let report = Mutex::new(Report::default());
        let shrinking = Mutex::new(SHRINKING[usize::from(self.options.sticky)][0]);
        let batch = if self.options.sticky { 1 } else { BATCH };
        let began = Instant::now();
        let (done, over) = channel::<()>();
        std::thread::scope(|scope| {
            for _ in 0..self.workers.min(self.programs.div_ceil(batch) as usize).max(1) {
                let (done, next, report) = (done.clone(), &next, (&report, &shrinking));
                scope.spawn(move || {
                    let _done = done;
                    self.work(next, batch, report, began);
                });
            }
            drop(done);
            // The channel disconnects when all workers have dropped their senders.
            while over.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
                let report = report.lock().unwrap_or_else(PoisonError::into_inner);
                // Written to standard error directly, because the test harness would hold back the
                // output.
                let _ = writeln!(std::io::stderr(), "{}", report.progress(self, began));
            }
        });
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.took = began.elapsed();
        report
    }

    fn work(
        &self,
        next: &AtomicU64,
        batch: u64,
        (report, shrinking): (&Mutex<Report>, &Mutex<Duration>),
        began: Instant,
    ) {
        let mut worker = None;
        while began.elapsed() < self.limit {
            let from = next.fetch_add(batch, Ordering::Relaxed);
            if from >= self.programs {
                break;
            }
            let (mut seed, end) =
                (self.start + from, self.start + (from + batch).min(self.programs));
            while seed < end && began.elapsed() < self.limit {
                let mut running = worker.take().unwrap_or_else(|| self.spawn());
                let (count, patience) = (end - seed, PATIENCE[0]);
                running.ask(&ProgramRequest { seed, count, keep: None, patience });
                let mut lives = true;
                while seed < end && lives {
                    let answer = running.receive(seed);
                    lives = answer.lives();
                    let found = self.differences(seed, &answer, None);
                    let seen =
                        report.lock().unwrap_or_else(PoisonError::into_inner).note(seed, found);
                    for class in seen {
                        self.investigate(&class, seed, &running.served, report, shrinking);
                    }
                    seed += 1;
                }
                if lives && !self.options.sticky {
                    worker = Some(running);
                }
            }
        }
    }

    /// Returns the class and the text of each difference in an answer.
    fn differences(
        &self,
        seed: u64,
        answer: &WorkerAnswer,
        keep: Option<&[usize]>,
    ) -> Vec<SeenDifference> {
        let named = |step: usize| {
            let steps = generate(seed, &self.options);
            let step = keep.map_or(Some(step), |keep| keep.get(step).copied());
            let step = step.and_then(|step| steps.get(step));
            step.map_or("the end".to_owned(), Step::kind)
        };
        match answer {
            WorkerAnswer::Same | WorkerAnswer::Last => Vec::new(),
            WorkerAnswer::Diff { found, .. } => {
                let mut seen = BTreeSet::new();
                found.iter().filter(|(class, _)| seen.insert(class.clone())).cloned().collect()
            }
            WorkerAnswer::Hang { step, subject } => {
                vec![(format!("hang in {}, lane {subject}", named(*step)), format!("step {step}"))]
            }
            WorkerAnswer::Gone(how) => vec![(PROCESS_ENDED.to_owned(), how.clone())],
        }
    }

    /// Checks whether a difference repeats, and shrinks the program.
    fn investigate(
        &self,
        class: &str,
        seed: u64,
        served: &[u64],
        report: &Mutex<Report>,
        shrinking: &Mutex<Duration>,
    ) {
        let steps = generate(seed, &self.options);
        let all: Vec<usize> = (0..steps.len()).collect();
        let mut worker = None;
        let mut again = |keep: &[usize], patience: Duration| {
            let running: &mut Worker = worker.get_or_insert_with(|| self.spawn());
            running.ask(&ProgramRequest { seed, count: 1, keep: Some(keep), patience });
            let answer = running.receive(seed);
            let found = self.differences(seed, &answer, Some(keep));
            if let WorkerAnswer::Gone(_) = answer
                && class != PROCESS_ENDED
            {
                report.lock().unwrap_or_else(PoisonError::into_inner).gone(seed, &found);
            }
            if !answer.lives() || self.options.sticky {
                worker = None;
            }
            found.into_iter().find(|(found, _)| found == class).map(|(_, text)| text)
        };
        let repeats = again(&all, PATIENCE[1]).is_some() && again(&all, PATIENCE[1]).is_some();
        let mut text = None;
        let mut keep = all;
        let mut note = String::new();
        if repeats {
            let began = Instant::now();
            let left = || shrinking.lock().unwrap_or_else(PoisonError::into_inner);
            let each = match self.driver {
                Some(_) => SIMULATOR_SHRINKING,
                None => SHRINKING[usize::from(self.options.sticky)][1],
            };
            let limit = each.min(*left());
            let fits = |less: &[usize]| again(less, PATIENCE[2]);
            (keep, text) = shrink(keep, began + limit, fits);
            let mut left = left();
            *left = left.saturating_sub(began.elapsed());
            drop(left);
            if keep.len() < steps.len() && again(&keep, PATIENCE[1]).is_none() {
                note = "the shrunk program does not differ in each run".to_owned();
            }
        } else if class == PROCESS_ENDED {
            note = self.rerun_history(served);
        }
        let program = keep.iter().map(|&k| steps[k].clone()).collect();
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.update(class, Rerun { repeats, text, note, program });
    }

    /// Checks whether a process ends again if it runs the same programs in the same order.
    fn rerun_history(&self, served: &[u64]) -> String {
        let until = Instant::now() + HISTORY_LIMIT;
        let mut worker = self.spawn();
        for (number, &seed) in served.iter().enumerate() {
            if Instant::now() > until {
                return format!(
                    "neither the program alone nor {number} earlier ones end a process"
                );
            }
            worker.ask(&ProgramRequest { seed, count: 1, keep: None, patience: PATIENCE[0] });
            let answer = worker.receive(seed);
            if let WorkerAnswer::Gone(how) = &answer {
                let all = &served[..=number];
                return format!("the program alone does not end a process, but {all:?} do: {how}");
            }
            if !answer.lives() {
                worker = self.spawn();
            }
        }
        let last = &served[served.len().saturating_sub(40)..];
        format!("neither the program alone nor the programs {last:?} end a process")
    }

    fn spawn(&self) -> Worker {
        Worker::spawn((ROLE, role(&self.options, self.first)), self.driver)
    }
}

/// Removes steps that a difference does not need. Returns the remaining steps and the text of the
/// last run that differed.
fn shrink(
    mut keep: Vec<usize>,
    until: Instant,
    mut again: impl FnMut(&[usize]) -> Option<String>,
) -> (Vec<usize>, Option<String>) {
    let mut text = None;
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
    (keep, text)
}
