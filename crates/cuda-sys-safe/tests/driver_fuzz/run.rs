//! Runs a program on several drivers, step by step.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::gate::{Gate, Watchdog};
use crate::model::{MemoryKind, Model, Origin};
use crate::step::*;
use crate::subject::{Outcome, Subject};

/// A difference between two drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Kind of step and of difference. Differences with the same cause should have the same class.
    pub(crate) class: String,
    /// The step, and the result of each driver.
    pub(crate) text: String,
}

/// Prefix of the class of a call that differs only in its duration.
pub(crate) const LATE: &str = "late";

/// The result of running a program.
#[derive(Debug)]
pub(crate) struct ProgramResult {
    pub(crate) found: Vec<Difference>,
    /// Whether the reference driver is in a different state than before the program.
    pub(crate) dirty: bool,
    /// Result of each step on the reference driver, or `-` for a step that was left out.
    pub(crate) results: Vec<String>,
}

/// The current position, for the thread that detects hangs.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Count of call begins and ends; odd during a call.
    pub(crate) calls: AtomicUsize,
    /// Count of program begins and ends; odd during a program.
    pub(crate) programs: AtomicUsize,
    pub(crate) step: AtomicUsize,
    pub(crate) subject: AtomicUsize,
    /// Called when the reference driver begins a step.
    pub(crate) tell: Option<fn(usize)>,
}

impl Progress {
    fn begin(&self, step: usize, subject: usize) {
        self.step.store(step, Ordering::Relaxed);
        self.subject.store(subject, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Release);
        if let Some(tell) = self.tell.filter(|_| subject == 0) {
            tell(step);
        }
    }

    fn end(&self) {
        self.calls.fetch_add(1, Ordering::Release);
    }
}

/// Runs `steps` on all drivers, completes the program, and returns the differences from the
/// reference driver, `subjects[0]`. Afterwards the reference driver has no objects, unless the
/// result is `dirty`.
pub(crate) fn run(
    steps: &[Step],
    subjects: &mut [Subject],
    watchdog: &Watchdog,
    progress: &Progress,
) -> ProgramResult {
    let devices = subjects[0].devices;
    let mut run = Run {
        model: Model::new(devices),
        subjects,
        watchdog,
        progress,
        found: Vec::new(),
        diverged: false,
        index: 0,
        results: Vec::new(),
    };
    for step in steps {
        run.step(step);
        if run.diverged {
            break;
        }
    }
    let results = std::mem::take(&mut run.results);
    if run.model.lost {
        run.subjects.iter_mut().for_each(Subject::forget);
        return ProgramResult { found: run.found, dirty: true, results };
    }
    if !run.diverged {
        run.complete();
    }
    let diverged = run.diverged;
    let mut found = run.found;
    let clean = |(number, subject): (usize, &mut Subject)| {
        progress.begin(usize::MAX, number);
        let refused = subject.clean();
        progress.end();
        refused
    };
    let refused: Vec<Vec<String>> = subjects.iter_mut().enumerate().map(clean).collect();
    let dirty =
        refused.first().is_none_or(|refused| !refused.is_empty()) || subjects[0].undefined_state;
    for (subject, refused) in subjects.iter().zip(refused) {
        // Refusals after the drivers have diverged are consequences of an earlier difference.
        if let Some(first) = refused.first().filter(|_| !diverged) {
            let what = first.split(':').next().unwrap_or_default();
            let class = format!("cleaning up on {}: {what}", subject.name);
            found.push(Difference { class, text: format!("{}: {refused:?}", subject.name) });
        }
    }
    ProgramResult { found, dirty, results }
}

struct Run<'a> {
    model: Model,
    subjects: &'a mut [Subject],
    watchdog: &'a Watchdog,
    progress: &'a Progress,
    found: Vec<Difference>,
    /// Whether the drivers are in different states.
    diverged: bool,
    index: usize,
    results: Vec<String>,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) {
        let index = self.index;
        self.index += 1;
        let left_out = self.model.lost && matches!(step, Step::HostRead { .. });
        let Some(plan) = self.model.admit(step).filter(|_| !left_out) else {
            self.results.push("-".to_owned());
            return;
        };
        let ask = !self.model.lost
            && (self.model.capturing() || matches!(step, Step::BeginCapture { .. }));
        let held = matches!(self.subjects[0].gate, Some(Gate::Real(_)));
        let mut outcomes = Vec::new();
        let mut waits = false;
        // The reference driver runs last, because its time limit depends on whether the others
        // wait.
        for (number, subject) in self.subjects.iter_mut().enumerate().rev() {
            self.progress.begin(index, number);
            let outcome = subject.run(index, step, &plan.mask, ask, (self.watchdog, waits));
            self.progress.end();
            waits |= outcome.waited;
            outcomes.push(outcome);
        }
        outcomes.reverse();
        let waits_elsewhere = outcomes.iter().skip(1).any(|o| o.waited);
        let first = outcomes[0].clone();
        let apart =
            |o: &Outcome| o.result.is_ok() != first.result.is_ok() || o.status != first.status;
        self.diverged |= outcomes.iter().any(apart);
        for (number, other) in outcomes.iter().enumerate().skip(1) {
            if *other != first {
                let late = held && !waits_elsewhere;
                self.differ(step, (number, late), &first, other);
                break;
            }
        }
        let waited = outcomes.iter().any(|o| o.waited);
        if waited && !outcomes.iter().all(|o| o.waited) {
            for subject in self.subjects.iter_mut() {
                if let Some(gate) = subject.gate.take() {
                    gate.open();
                }
            }
        }
        let fine = first.result.is_ok();
        let said = first.result.clone().unwrap_or_else(|code| code);
        self.results.push(said + if first.waited { ", waited" } else { "" });
        self.model.update(index, step, &plan, fine, waited, &first.status);
    }

    /// Records a difference between a driver and the reference driver. `late` means that the
    /// reference driver did not return in time, but no other driver waited.
    fn differ(
        &mut self,
        step: &Step,
        (subject, late): (usize, bool),
        first: &Outcome,
        other: &Outcome,
    ) {
        let names = (self.subjects[0].name.clone(), self.subjects[subject].name.clone());
        let short = |o: &Outcome| match &o.result {
            Ok(value) => value.clone(),
            Err(code) => code.clone(),
        };
        let mut what = vec![];
        if first.result != other.result {
            what.push(format!("{} / {}", short(first), short(other)));
        }
        if first.waited != other.waited {
            let yes = |o: &Outcome| if o.waited { "waits" } else { "does not wait" };
            what.push(format!("{} / {}", yes(first), yes(other)));
        }
        if first.status != other.status {
            what.push(format!("captures {} / {}", first.status, other.status));
        }
        if first.bytes != other.bytes {
            what.push("bytes".to_owned());
        }
        let status = first.status != other.status;
        let class = if late && what == ["waits / does not wait"] {
            format!("{LATE}: {}", self.describe(step))
        } else if status && what.len() == 1 {
            format!("{}: captures", self.describe(step))
        } else {
            let what: Vec<_> =
                what.iter().filter(|w| !w.starts_with("captures")).cloned().collect();
            format!("{}: {}", self.describe(step), what.join(", "))
        };
        let mut text = format!("{step:?}: {}", what.join(", "));
        if let Some(at) = first.bytes.iter().zip(&other.bytes).position(|(a, b)| a != b) {
            text += &format!(" from byte {at}: {} / {}", first.bytes[at], other.bytes[at]);
        }
        text += &format!(" ({} / {})", names.0, names.1);
        self.found.push(Difference { class, text });
    }

    /// Describes a step by the properties that may matter to a driver.
    fn describe(&self, step: &Step) -> String {
        let m = &self.model;
        let mut about = step.kind();
        if let Step::Copy { dst, src, by, .. } = *step {
            let kind = |place| {
                m.find(place, 1).map_or("nothing".to_owned(), |r| match r.origin {
                    Origin::Buf(_) => format!("{:?}", r.kind),
                    Origin::Mapping(..) => "mapped".to_owned(),
                })
            };
            about += &format!(" from {} to {}", kind(src), kind(dst));
            if let By::Device(_) = by {
                about += ", synchronous";
            }
        }
        if let Some(s) = step.stream().and_then(|id| m.stream(id)) {
            about += match s {
                s if s.capture.is_some() => ", captured",
                s if s.legacy => ", default stream",
                s if s.non_blocking => "",
                _ => ", blocking stream",
            };
        }
        if m.capturing()
            && step.stream().is_none_or(|id| m.stream(id).is_none_or(|s| s.capture.is_none()))
        {
            about += ", while capturing";
        }
        if m.lost { about + ", lost" } else { about }
    }

    /// Completes the program: ends captures, reads all memory, and checks the order of host
    /// functions.
    fn complete(&mut self) {
        let mut next: Id = 30_000;
        if self.model.gate.is_some() {
            self.step(&Step::OpenGate);
        }
        let captured = |m: &Model| -> Vec<Id> {
            let all = m.streams.iter().filter(|(_, s)| s.alive && s.capture.is_some());
            all.map(|(&id, _)| id).collect()
        };
        for stream in captured(&self.model) {
            next += 1;
            self.step(&Step::EndCapture { stream, graph: next });
        }
        if self.diverged || !captured(&self.model).is_empty() {
            return;
        }
        for device in 0..self.model.devices {
            self.step(&Step::ThreadMode { device, mode: Mode::Global });
            self.step(&Step::Synchronize { device });
        }
        for (place, bytes, device) in self.readable() {
            if self.diverged {
                return;
            }
            next += 1;
            let buf = next;
            self.step(&Step::Pageable { buf, bytes });
            let dst = Place::Buf { buf, at: 0 };
            self.step(&Step::Copy { dst, src: place, bytes, by: By::Device(device) });
            self.step(&Step::HostRead { buf });
        }
        let hosts: Vec<Id> = self.model.bufs.keys().copied().filter(|&id| id < 30_000).collect();
        for buf in hosts {
            self.step(&Step::HostRead { buf });
        }
        self.order();
    }

    /// Returns all device memory whose content can be copied to the host.
    fn readable(&self) -> Vec<(Place, usize, usize)> {
        let m = &self.model;
        let mut all = Vec::new();
        for (&buf, b) in m.bufs.iter().filter(|(_, b)| b.alive) {
            if matches!(b.kind, MemoryKind::Alloc | MemoryKind::Pool) && b.bytes <= 1 << 16 {
                all.push((Place::Buf { buf, at: 0 }, b.bytes, b.device));
            }
        }
        for (&range, r) in m.ranges.iter().filter(|(_, r)| r.alive) {
            for (&page, mapping) in &r.mappings {
                let device = m.physical[&mapping.memory].device;
                all.push((Place::Page { range, page, at: 0 }, crate::order::TRACKED, device));
            }
        }
        all
    }

    /// Checks that every host function ran once, and after all host functions before it.
    fn order(&mut self) {
        for subject in self.subjects.iter() {
            let host_fn_log = subject.host_fn_log.lock().expect("no panic under the lock").clone();
            let place = |step| host_fn_log.iter().position(|&h| h == step);
            let mut wrong = None;
            for f in &self.model.host_fns {
                if host_fn_log.iter().filter(|&&h| h == f.step).count() != 1 {
                    wrong = Some(format!("step {} did not run once: {host_fn_log:?}", f.step));
                }
                for other in &self.model.host_fns {
                    let before = other.step != f.step && f.clock.has(other.op);
                    if before && place(other.step) > place(f.step) {
                        wrong = Some(format!("step {} ran before {}", f.step, other.step));
                    }
                }
            }
            if let Some(text) = wrong {
                let class = format!("order of host functions on {}", subject.name);
                self.found.push(Difference { class, text });
            }
        }
    }
}
