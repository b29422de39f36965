//! Everything the one lock guards.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Arc;
use std::thread::ThreadId;

use super::capture::{Capture, Graph};
use super::collectives::Comm;
use super::events::Event;
use super::faults::Armed;
use super::footprint::FootprintViolation;
use super::graphs::GraphExec;
use super::memory::Memory;
use super::modules::{Function, Module};
use super::pools::Pool;
use super::streams::{Key, Stream};
use super::usage::Overrun;
use super::vmm::Physical;
use super::{CallKind, Schedule, SimConfig};
use crate::system::CAN_MAP_TWICE;
use crate::*;

/// A boxed host function.
pub(super) type HostFn = Box<dyn FnOnce() + Send>;

pub(super) struct State {
    pub(super) config: SimConfig,
    pub(super) devices: Vec<Device>,
    pub(super) memory: Memory,
    pub(super) streams: BTreeMap<Key, Stream>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) modules: BTreeMap<u64, Module>,
    pub(super) functions: BTreeMap<u64, Function>,
    pub(super) physical: BTreeMap<u64, Physical>,
    pub(super) pools: BTreeMap<u64, Pool>,
    pub(super) captures: BTreeMap<u64, Capture>,
    pub(super) capture_modes: BTreeMap<u64, CaptureMode>,
    pub(super) graphs: BTreeMap<u64, (usize, Arc<Graph>)>,
    pub(super) graph_execs: BTreeMap<u64, GraphExec>,
    pub(super) comms: BTreeMap<u64, Comm>,
    pub(super) faults: Vec<Armed>,
    pub(super) calls: BTreeMap<CallKind, u64>,
    pub(super) host_waits: u64,
    /// Nodes that replays have looked at.
    pub(super) graph_steps: usize,
    pub(super) violations: Vec<FootprintViolation>,
    pub(super) overruns: Vec<Overrun>,
    /// Host functions that will never run, to be dropped outside the lock.
    pub(super) trash: Vec<HostFn>,
    /// Whether some thread runs a host function, outside the lock. Nothing else runs meanwhile.
    pub(super) host_fn_running: bool,
    /// Whether a thread runs what comes before writes of words.
    pub(super) writes_values: bool,
    /// Virtual microseconds of the host.
    pub(super) host_clock: f64,
    pub(super) sequence: u64,
    next_id: u64,
    rng: u64,
}

/// One visible device.
pub(super) struct Device {
    pub(super) properties: DeviceProperties,
    /// Its index in the box, before `CUDA_VISIBLE_DEVICES`.
    pub(super) physical: usize,
    /// Bytes in use, rounded as the driver does.
    pub(super) used: usize,
    /// Whether its primary context exists.
    pub(super) context: bool,
    /// What poisoned it.
    pub(super) lost: Option<Arc<CudaError>>,
    /// Whether a call has already answered with that error.
    pub(super) surfaced: bool,
    /// Devices whose memory its kernels may address.
    pub(super) peers: BTreeSet<usize>,
}

/// What an operation is and where it was asked for, for error reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) call: CallKind,
    pub(super) op: &'static str,
    pub(super) location: Option<&'static Location<'static>>,
}

impl Label {
    pub(super) fn of(call: CallKind) -> Self {
        Self { call, op: call.name(), location: None }
    }
}

/// An error of a call, as the subject files make them.
pub(super) fn error(call: CallKind, code: CudaCode, device: usize, why: &str) -> DriverError {
    let error = DriverError::cuda(call.name(), code, Some(device));
    if why.is_empty() { error } else { error.with_detail(|| why.to_owned()) }
}

impl State {
    pub(super) fn new(config: SimConfig) -> Self {
        let count = config.devices.min(super::config::MAX_DEVICES);
        let boxed: Vec<_> = (0..count).map(|index| properties(&config, index)).collect();
        let visible = match &config.visible {
            Some(text) => super::visible::visible(text, &boxed),
            None => (0..count).collect(),
        };
        let devices: Vec<_> = visible.iter().map(|&i| Device::new(&boxed[i], i)).collect();
        let streams = (0..devices.len()).map(|d| (Stream::legacy_key(d), Stream::legacy(d)));
        let rng = match config.schedule {
            Schedule::Seeded(seed) => seed,
            _ => 0,
        };
        Self {
            streams: streams.collect(),
            memory: Memory::new(devices.len(), config.redzones),
            config,
            devices,
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            physical: BTreeMap::new(),
            pools: BTreeMap::new(),
            captures: BTreeMap::new(),
            capture_modes: BTreeMap::new(),
            graphs: BTreeMap::new(),
            graph_execs: BTreeMap::new(),
            comms: BTreeMap::new(),
            faults: Vec::new(),
            calls: BTreeMap::new(),
            host_waits: 0,
            graph_steps: 0,
            violations: Vec::new(),
            overruns: Vec::new(),
            trash: Vec::new(),
            host_fn_running: false,
            writes_values: false,
            host_clock: 0.0,
            sequence: 0,
            next_id: 0x1000,
            rng,
        }
    }

    /// A number that no handle had before.
    pub(super) fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// A pseudo-random number below `bound`, which is at least 1.
    pub(super) fn random(&mut self, bound: usize) -> usize {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.rng;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }

    pub(super) fn reseed(&mut self, schedule: Schedule) {
        if let Schedule::Seeded(seed) = schedule {
            self.rng = seed;
        }
        self.config.schedule = schedule;
    }

    /// Takes `bytes` of the device's memory.
    pub(super) fn charge(&mut self, call: CallKind, device: usize, bytes: usize) -> Result<()> {
        let free = self.config.capacity - self.devices[device].used;
        if bytes > free {
            let why = format!("{bytes} bytes were asked for, {free} are free");
            return Err(error(call, CudaCode::OUT_OF_MEMORY, device, &why));
        }
        self.devices[device].used += bytes;
        Ok(())
    }

    /// Poisons a device and, as on hardware, all others of the process unless they are kept
    /// apart: their queues are emptied and every later call on them fails.
    pub(super) fn lose(&mut self, device: usize, cause: CudaError) {
        let cause = Arc::new(cause);
        let isolated = self.config.isolate_faults;
        let gone =
            |state: &Self, d: usize| (d == device || !isolated) && state.devices[d].lost.is_none();
        let all: Vec<usize> = (0..self.devices.len()).filter(|&d| gone(self, d)).collect();
        for &device in &all {
            self.devices[device].lost = Some(Arc::clone(&cause));
        }
        self.forget_captures(|_, of| all.contains(&of));
        self.kill_ranks(&all);
        let keys: Vec<_> = self.streams.keys().copied().collect();
        for key in keys {
            if all.contains(&self.streams[&key].device) {
                self.abandon(key);
            }
        }
    }

    /// The error of a lost device: at first the error itself, later that the device is lost. All
    /// devices that went with it are then known to be lost.
    pub(super) fn surface(&mut self, call: CallKind, device: usize) -> Result<()> {
        let Some(cause) = self.devices[device].lost.clone() else { return Ok(()) };
        if self.devices[device].surfaced {
            return Err(DriverError::DeviceLost { device, cause });
        }
        self.surfaced(device);
        let mut why = format!("raised by earlier work: {}", cause.call);
        if let Some(detail) = &cause.detail {
            why = format!("{why}, {detail}");
        }
        if let Some(location) = cause.location {
            why = format!("{why}, launched at {location}");
        }
        Err(error(call, cause.code, device, &why))
    }

    /// Notes that a call has answered with a device's error.
    pub(super) fn surfaced(&mut self, device: usize) {
        let isolated = self.config.isolate_faults;
        for (index, state) in self.devices.iter_mut().enumerate() {
            state.surfaced |= state.lost.is_some() && (index == device || !isolated);
        }
    }
}

impl Device {
    fn new(properties: &DeviceProperties, physical: usize) -> Self {
        Self {
            properties: properties.clone(),
            physical,
            used: 0,
            context: false,
            lost: None,
            surfaced: false,
            peers: BTreeSet::new(),
        }
    }
}

fn properties(config: &SimConfig, index: usize) -> DeviceProperties {
    let own = super::h200(index);
    DeviceProperties {
        uuid: own.uuid,
        pci: own.pci,
        total_memory: config.capacity,
        virtual_memory_management: config.properties.virtual_memory_management && CAN_MAP_TWICE,
        ..config.properties.clone()
    }
}

/// A number for a thread, since `ThreadId` has no order.
pub(super) fn thread_number() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let id: ThreadId = std::thread::current().id();
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
