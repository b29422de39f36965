//! Random programs. A program depends only on its seed and the options. During its generation, the
//! program runs on a simulator. The results show which objects are alive.

use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};

use crate::gate::Watchdog;
use crate::model::{MemoryKind, Model};
use crate::picker::StepPicker;
use crate::step::*;
use crate::subject::Subject;

/// Contents of generated programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) devices: usize,
    /// Groups of steps, and of their unusual variants, to leave out.
    pub(crate) without: Vec<String>,
    /// Whether a program ends with a sticky error and calls after it.
    pub(crate) sticky: bool,
}

impl Options {
    pub(crate) fn may(&self, group: &str) -> bool {
        !self.without.iter().any(|w| w == group)
    }
}

/// A random number generator that depends only on its seed.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound.max(1) as u64) as usize
    }

    /// Returns `true` once in `n` calls on average.
    pub(crate) fn rarely(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn of<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())].clone())
    }
}

/// Generates the program of a seed.
pub(crate) fn generate(seed: u64, options: &Options) -> Vec<Step> {
    generate_with(seed, options).into_iter().map(|(step, _)| step).collect()
}

/// Generates the program of a seed, with the results on the generator's simulator.
fn generate_with(seed: u64, options: &Options) -> Vec<(Step, Result<String, String>)> {
    let config = SimConfig { schedule: Schedule::Eager, ..SimConfig::new(options.devices) };
    let mut rng = Rng(seed ^ 0x5eed_0000);
    let length = 4 + rng.below(if options.sticky { 12 } else { 36 });
    let mut generator = Generator {
        pick: StepPicker::new(rng, options.clone()),
        model: Model::new(options.devices),
        subject: Subject::simulated("the generator", config),
        watchdog: Watchdog::idle(),
        steps: Vec::new(),
    };
    generator.prologue();
    let end = generator.steps.len() + length;
    let mut tries = 0;
    while generator.steps.len() < end && tries < 20 * length {
        tries += 1;
        if generator.pick.rng.rarely(24) {
            generator.recipe();
        } else if let Some(step) = generator.pick.any(&generator.model) {
            generator.take(step);
        }
    }
    if options.sticky {
        generator.inject_fault();
    }
    generator.subject.clean();
    generator.steps
}

pub(crate) struct Generator {
    pub(crate) pick: StepPicker,
    pub(crate) model: Model,
    subject: Subject,
    watchdog: Watchdog,
    steps: Vec<(Step, Result<String, String>)>,
}

impl Generator {
    /// Runs and adds a step, if the model admits it.
    pub(crate) fn take(&mut self, step: Step) {
        if !self.pick.options.may(step.group()) {
            return;
        }
        let Some(plan) = self.model.admit(&step) else { return };
        let index = self.steps.len();
        let ask = !self.model.lost
            && (self.model.capturing() || matches!(step, Step::BeginCapture { .. }));
        let outcome = self.subject.run(index, &step, &plan.mask, ask, (&self.watchdog, false));
        let fine = outcome.result.is_ok();
        self.model.update(index, &step, &plan, fine, outcome.waited, &outcome.status);
        self.steps.push((step, outcome.result));
    }

    /// Creates objects for later steps to use.
    fn prologue(&mut self) {
        let devices = self.model.devices;
        for _ in 0..1 + self.pick.rng.below(3) {
            let step = self.pick.stream_create(&self.model);
            self.take(step);
        }
        for _ in 0..1 + self.pick.rng.below(2) {
            let device = self.pick.rng.below(devices);
            let (buf, bytes) = (self.pick.fresh(), self.pick.size());
            self.take(Step::MemAlloc { buf, device, bytes });
        }
        if self.pick.rng.rarely(2) {
            let (buf, bytes) = (self.pick.fresh(), self.pick.size());
            self.take(Step::HostAlloc { buf, device: 0, bytes });
            self.take(Step::HostWrite { buf, value: 0x51 });
        }
        if self.pick.rng.rarely(2) {
            let (buf, bytes) = (self.pick.fresh(), self.pick.size());
            self.take(Step::Pageable { buf, bytes });
        }
        let bufs: Vec<Id> = self.model.bufs.keys().copied().collect();
        for buf in bufs {
            let b = &self.model.bufs[&buf];
            if b.kind == MemoryKind::Alloc {
                let (stream, count) = (b.device as Id, b.bytes / 4);
                let dst = Place::Buf { buf, at: 0 };
                let value = 0x0101_0101 * u32::from(buf as u8);
                self.take(Step::Memset { dst, width: 4, value, count, stream });
            }
        }
    }

    /// Adds a sticky fault, a call that must report the fault, and random steps.
    fn inject_fault(&mut self) {
        if self.model.gate.is_some() {
            self.take(Step::OpenGate);
        }
        let captured: Vec<Id> = self
            .model
            .streams
            .iter()
            .filter(|(_, s)| s.alive && s.capture.is_some())
            .map(|(&id, _)| id)
            .collect();
        for stream in captured {
            let graph = self.pick.fresh();
            self.take(Step::EndCapture { stream, graph });
        }
        for device in 0..self.model.devices {
            self.take(Step::ThreadMode { device, mode: Mode::Relaxed });
            self.take(Step::Synchronize { device });
        }
        let faults =
            [Fault::Nowhere, Fault::Misaligned, Fault::Trap, Fault::Unmapped, Fault::InGraph];
        let how = self.pick.rng.of(&faults).unwrap_or(Fault::Nowhere);
        let streams: Vec<Id> = self
            .model
            .streams
            .iter()
            .filter(|(_, s)| s.alive && (!s.legacy || how != Fault::InGraph))
            .map(|(&id, _)| id)
            .collect();
        let Some(stream) = self.pick.rng.of(&streams) else { return };
        let device = self.model.streams[&stream].device;
        self.take(Step::Fail { stream, how });
        // The failing device must report the fault first, because other devices may not know it
        // yet.
        let waits = [Step::StreamSynchronize { stream }, Step::Synchronize { device }];
        let first = self.pick.rng.of(&waits).unwrap_or(Step::Synchronize { device });
        self.take(first);
        let end = self.steps.len() + 3 + self.pick.rng.below(8);
        let mut tries = 0;
        while self.steps.len() < end && tries < 100 {
            tries += 1;
            if let Some(step) = self.pick.any(&self.model) {
                self.take(step);
            }
        }
        for device in 0..self.model.devices {
            self.take(Step::Ask { device, what: DeviceQuery::Lost });
            self.take(Step::Synchronize { device });
        }
    }
}

#[cfg(test)]
mod coverage {
    use std::collections::BTreeMap;

    use super::*;

    /// Checks that 3000 programs contain all kinds of steps and many refusals. Prints how often
    /// each kind of step was accepted and refused.
    #[test]
    fn programs_contain_steps_of_every_kind() {
        let mut seen: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        let options = Options { devices: 2, ..Options::default() };
        for (step, result) in (0..3000).flat_map(|seed| generate_with(seed, &options)) {
            let result = result.map_or_else(|code| code, |_| "ok".to_owned());
            *seen.entry(step.kind()).or_default().entry(result).or_default() += 1;
        }
        for (kind, results) in &seen {
            println!("{kind}: {results:?}");
        }
        // All kinds except the step that only sticky programs contain.
        assert_eq!(seen.len(), 58, "{:?}", seen.keys());
        let refused = |kind: &str, code: &str| {
            assert!(seen[kind].get(code).is_some_and(|&n| n > 2), "{kind}: {:?}", seen[kind]);
        };
        for kind in seen
            .keys()
            .filter(|kind| !matches!(&***kind, "LaunchRefused" | "IpcMemory" | "IpcEvent"))
        {
            refused(kind, "ok");
        }
        for code in ["UNJOINED", "UNMATCHED", "INVALIDATED"] {
            refused("EndCapture", &format!("STREAM_CAPTURE_{code}"));
        }
        refused("EventWait", "STREAM_CAPTURE_MERGE");
        refused("EventWait", "STREAM_CAPTURE_ISOLATION");
        refused("Copy", "STREAM_CAPTURE_UNSUPPORTED");
        refused("Memset", "STREAM_CAPTURE_IMPLICIT");
        refused("MemFree", "INVALID_VALUE");
        refused("Map", "INVALID_VALUE");
        refused("PeerDisable", "PEER_ACCESS_NOT_ENABLED");
    }
}
