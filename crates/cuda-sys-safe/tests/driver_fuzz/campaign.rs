//! Many programs in several processes, and what to make of the differences.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::generate::{Options, generate};
use crate::process::{Answer, Ask, Worker};
use crate::report::{Again, GONE, Report, Seen};
use crate::step::Step;
use crate::worker::{First, ROLE, role};

/// Programs that a worker is asked for at once.
const BATCH: u64 = 16;
/// How long a call may take before it counts as waiting: at first, to be sure of it, and while a
/// program is made smaller.
const PATIENCE: [Duration; 3] =
    [Duration::from_millis(400), Duration::from_secs(2), Duration::from_millis(200)];
/// How long may be spent on making programs smaller, in all and of each difference; and where a
/// process is needed for every try.
const SHRINKING: [[Duration; 2]; 2] = [
    [Duration::from_secs(30), Duration::from_secs(2)],
    [Duration::from_secs(10), Duration::from_secs(4)],
];
/// The same of each difference from a simulator, which may run on a slow machine.
const UNHURRIED: Duration = Duration::from_secs(10);

/// How long the programs that a process ran before it ended are run again.
const HISTORY: Duration = Duration::from_secs(10);

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
    /// No program is begun after so long.
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
            // Ends when all have dropped their ends.
            while over.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout) {
                let report = report.lock().unwrap_or_else(PoisonError::into_inner);
                // Not what a test's output goes through: it is to be seen now.
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
                running.ask(&Ask { seed, count, keep: None, patience });
                let mut lives = true;
                while seed < end && lives {
                    let answer = running.hear(seed);
                    lives = answer.lives();
                    let found = self.differences(seed, &answer, None);
                    let seen =
                        report.lock().unwrap_or_else(PoisonError::into_inner).note(seed, found);
                    for class in seen {
                        self.look_into(&class, seed, &running.served, report, shrinking);
                    }
                    seed += 1;
                }
                if lives && !self.options.sticky {
                    worker = Some(running);
                }
            }
        }
    }

    /// The differences in an answer: classes and texts.
    fn differences(&self, seed: u64, answer: &Answer, keep: Option<&[usize]>) -> Vec<Seen> {
        let named = |step: usize| {
            let steps = generate(seed, &self.options);
            let step = keep.map_or(Some(step), |keep| keep.get(step).copied());
            let step = step.and_then(|step| steps.get(step));
            step.map_or("the end".to_owned(), Step::kind)
        };
        match answer {
            Answer::Same | Answer::Last => Vec::new(),
            Answer::Diff { found, .. } => {
                let mut seen = BTreeSet::new();
                found.iter().filter(|(class, _)| seen.insert(class.clone())).cloned().collect()
            }
            Answer::Hang { step, lane } => {
                vec![(format!("hang in {}, lane {lane}", named(*step)), format!("step {step}"))]
            }
            Answer::Gone(how) => vec![(GONE.to_owned(), how.clone())],
        }
    }

    /// Finds out whether a difference comes again, and how little it takes.
    fn look_into(
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
            running.ask(&Ask { seed, count: 1, keep: Some(keep), patience });
            let answer = running.hear(seed);
            let found = self.differences(seed, &answer, Some(keep));
            if let Answer::Gone(_) = answer
                && class != GONE
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
                Some(_) => UNHURRIED,
                None => SHRINKING[usize::from(self.options.sticky)][1],
            };
            let limit = each.min(*left());
            let fits = |less: &[usize]| again(less, PATIENCE[2]);
            (keep, text) = shrink(keep, began + limit, fits);
            let mut left = left();
            *left = left.saturating_sub(began.elapsed());
            drop(left);
            if keep.len() < steps.len() && again(&keep, PATIENCE[1]).is_none() {
                note = "what it was shrunk to does not differ each time".to_owned();
            }
        } else if class == GONE {
            note = self.once_more(served);
        }
        let program = keep.iter().map(|&k| steps[k].clone()).collect();
        let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
        report.settle(class, Again { repeats, text, note, program });
    }

    /// Whether a process ends again that runs the same programs one after another.
    fn once_more(&self, served: &[u64]) -> String {
        let until = Instant::now() + HISTORY;
        let mut worker = self.spawn();
        for (number, &seed) in served.iter().enumerate() {
            if Instant::now() > until {
                return format!("alone it ends well; {number} programs before it do too");
            }
            worker.ask(&Ask { seed, count: 1, keep: None, patience: PATIENCE[0] });
            let answer = worker.hear(seed);
            if let Answer::Gone(how) = &answer {
                let all = &served[..=number];
                return format!("alone it ends well; again in a process that runs {all:?}: {how}");
            }
            if !answer.lives() {
                worker = self.spawn();
            }
        }
        let last = &served[served.len().saturating_sub(40)..];
        format!("alone it ends well, and after the programs that came before it: {last:?}")
    }

    fn spawn(&self) -> Worker {
        Worker::spawn((ROLE, role(&self.options, self.first)), self.driver)
    }
}

/// Leaves out what a difference does not need. What it said last.
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
