//! A program on several drivers at once, step by step.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::gate::{Gate, Porter};
use crate::lane::{Lane, Outcome};
use crate::model::{Kind, Model, Origin};
use crate::step::*;

/// One way in which drivers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// What kind of step and what it came to: equal for the same cause, as far as one can tell.
    pub(crate) class: String,
    /// The step and what each driver said.
    pub(crate) text: String,
}

/// Begins the class of a call that only its duration sets apart.
pub(crate) const LATE: &str = "late";

/// What came of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) found: Vec<Difference>,
    /// Whether the first driver is not as it was before.
    pub(crate) dirty: bool,
    /// What each of the program's steps came to on the first driver; `-` where it was left out.
    pub(crate) results: Vec<String>,
}

/// Where a program is, for whoever watches that it goes on.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Counts calls; odd while one is under way.
    pub(crate) calls: AtomicUsize,
    /// The same of programs.
    pub(crate) programs: AtomicUsize,
    pub(crate) step: AtomicUsize,
    pub(crate) lane: AtomicUsize,
    /// Is told each step that the first lane begins.
    pub(crate) tell: Option<fn(usize)>,
}

impl Progress {
    fn begin(&self, step: usize, lane: usize) {
        self.step.store(step, Ordering::Relaxed);
        self.lane.store(lane, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Release);
        if let Some(tell) = self.tell.filter(|_| lane == 0) {
            tell(step);
        }
    }

    fn end(&self) {
        self.calls.fetch_add(1, Ordering::Release);
    }
}

/// Runs `steps` and what brings it to an end on all lanes, and says where they differ from the
/// first, which is clean afterwards unless it is said to be dirty.
pub(crate) fn run(steps: &[Step], lanes: &mut [Lane], porter: &Porter, progress: &Progress) -> Ran {
    let devices = lanes[0].devices;
    let mut run = Run {
        model: Model::new(devices),
        lanes,
        porter,
        progress,
        found: Vec::new(),
        parted: false,
        index: 0,
        results: Vec::new(),
    };
    for step in steps {
        run.step(step);
        if run.parted {
            break;
        }
    }
    let results = std::mem::take(&mut run.results);
    if run.model.lost {
        run.lanes.iter_mut().for_each(Lane::forget);
        return Ran { found: run.found, dirty: true, results };
    }
    if !run.parted {
        run.close();
    }
    let parted = run.parted;
    let mut found = run.found;
    let clean = |(number, lane): (usize, &mut Lane)| {
        progress.begin(usize::MAX, number);
        let refused = lane.clean();
        progress.end();
        refused
    };
    let refused: Vec<Vec<String>> = lanes.iter_mut().enumerate().map(clean).collect();
    let dirty = refused.first().is_none_or(|refused| !refused.is_empty()) || lanes[0].spoiled;
    for (lane, refused) in lanes.iter().zip(refused) {
        // What is refused after the drivers parted follows from that.
        if let Some(first) = refused.first().filter(|_| !parted) {
            let what = first.split(':').next().unwrap_or_default();
            let class = format!("cleaning up on {}: {what}", lane.name);
            found.push(Difference { class, text: format!("{}: {refused:?}", lane.name) });
        }
    }
    Ran { found, dirty, results }
}

struct Run<'a> {
    model: Model,
    lanes: &'a mut [Lane],
    porter: &'a Porter,
    progress: &'a Progress,
    found: Vec<Difference>,
    /// Whether the drivers are in different states from here on.
    parted: bool,
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
        let held = matches!(self.lanes[0].gate, Some(Gate::Real(_)));
        let mut outcomes = Vec::new();
        let mut waits = false;
        // The first lane last: whether the others wait says how patient to be with it.
        for (number, lane) in self.lanes.iter_mut().enumerate().rev() {
            self.progress.begin(index, number);
            let outcome = lane.run(index, step, &plan.mask, ask, (self.porter, waits));
            self.progress.end();
            waits |= outcome.waited;
            outcomes.push(outcome);
        }
        outcomes.reverse();
        let waits_elsewhere = outcomes.iter().skip(1).any(|o| o.waited);
        let first = outcomes[0].clone();
        let apart =
            |o: &Outcome| o.result.is_ok() != first.result.is_ok() || o.status != first.status;
        self.parted |= outcomes.iter().any(apart);
        for (number, other) in outcomes.iter().enumerate().skip(1) {
            if *other != first {
                let late = held && !waits_elsewhere;
                self.differ(step, (number, late), &first, other);
                break;
            }
        }
        let waited = outcomes.iter().any(|o| o.waited);
        if waited && !outcomes.iter().all(|o| o.waited) {
            for lane in self.lanes.iter_mut() {
                if let Some(gate) = lane.gate.take() {
                    gate.open();
                }
            }
        }
        let fine = first.result.is_ok();
        let said = first.result.clone().unwrap_or_else(|code| code);
        self.results.push(said + if first.waited { ", waited" } else { "" });
        self.model.settle(index, step, &plan, fine, waited, &first.status);
    }

    /// Notes how a lane differs from the first. `late`: the first did not return in time, although no other lane
    /// waited.
    fn differ(
        &mut self,
        step: &Step,
        (lane, late): (usize, bool),
        first: &Outcome,
        other: &Outcome,
    ) {
        let names = (self.lanes[0].name.clone(), self.lanes[lane].name.clone());
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
            format!("{LATE}: {}", self.about(step))
        } else if status && what.len() == 1 {
            format!("{}: captures", self.about(step))
        } else {
            let what: Vec<_> =
                what.iter().filter(|w| !w.starts_with("captures")).cloned().collect();
            format!("{}: {}", self.about(step), what.join(", "))
        };
        let mut text = format!("{step:?}: {}", what.join(", "));
        if let Some(at) = first.bytes.iter().zip(&other.bytes).position(|(a, b)| a != b) {
            text += &format!(" from byte {at}: {} / {}", first.bytes[at], other.bytes[at]);
        }
        text += &format!(" ({} / {})", names.0, names.1);
        self.found.push(Difference { class, text });
    }

    /// What a step is, as far as it may matter to the driver.
    fn about(&self, step: &Step) -> String {
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

    /// Brings the program to its end, reads all memory, and looks at what ran in which order.
    fn close(&mut self) {
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
        if self.parted || !captured(&self.model).is_empty() {
            return;
        }
        for device in 0..self.model.devices {
            self.step(&Step::ThreadMode { device, mode: Mode::Global });
            self.step(&Step::Synchronize { device });
        }
        for (place, bytes, device) in self.readable() {
            if self.parted {
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

    /// All device memory whose content can be copied out.
    fn readable(&self) -> Vec<(Place, usize, usize)> {
        let m = &self.model;
        let mut all = Vec::new();
        for (&buf, b) in m.bufs.iter().filter(|(_, b)| b.alive) {
            if matches!(b.kind, Kind::Alloc | Kind::Pool) && b.bytes <= 1 << 16 {
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

    /// Every host function ran once, after those that come before it.
    fn order(&mut self) {
        for lane in self.lanes.iter() {
            let heard = lane.heard.lock().expect("nobody panics with it").clone();
            let place = |step| heard.iter().position(|&h| h == step);
            let mut wrong = None;
            for f in &self.model.host_fns {
                if heard.iter().filter(|&&h| h == f.step).count() != 1 {
                    wrong = Some(format!("step {} did not run once: {heard:?}", f.step));
                }
                for other in &self.model.host_fns {
                    let before = other.step != f.step && f.clock.has(other.op);
                    if before && place(other.step) > place(f.step) {
                        wrong = Some(format!("step {} ran before {}", f.step, other.step));
                    }
                }
            }
            if let Some(text) = wrong {
                let class = format!("order of host functions on {}", lane.name);
                self.found.push(Difference { class, text });
            }
        }
    }
}
