//! The state of a set of simulated devices, which one lock guards.
//!
//! Most modules define plain data and do not use [`SimState`]. `addresses`, `capture_rules`, `loss`
//! and `queues` change the state and keep its invariants. No module here uses the executor or the
//! driver's calls.

mod addresses;
pub(super) mod capture;
mod capture_rules;
pub(super) mod faults;
pub(super) mod graph;
pub(super) mod hold;
pub(super) mod launch;
mod loss;
pub(super) mod memory;
pub(super) mod modules;
pub(super) mod pools;
mod queues;
pub(super) mod streams;
pub(super) mod violation;
pub(super) mod vmm;
pub(super) mod word;
pub(super) mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::capture::CaptureState;
use self::faults::Faults;
use self::graph::{BodyNodes, GraphExecState, GraphNodes};
use self::memory::{MemoryState, Overrun};
use self::modules::{FunctionState, ModuleState};
use self::pools::PoolState;
use self::streams::{EventState, StreamState};
use self::violation::FootprintViolation;
use self::vmm::PhysicalState;
use self::work::{CommRecord, HostFn, StreamKey};
use super::backing::SharedFile;
use super::config::MAX_DEVICES;
use super::{CallKind, Schedule, SimConfig, h200};
use crate::system::CAN_MAP_TWICE;
use crate::visible::{uuid_text, visible};
use crate::*;

pub(crate) struct SimState {
    pub(crate) config: SimConfig,
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) memory: MemoryState,
    pub(crate) streams: BTreeMap<StreamKey, StreamState>,
    pub(crate) events: BTreeMap<u64, EventState>,
    pub(crate) modules: BTreeMap<u64, ModuleState>,
    pub(crate) functions: BTreeMap<u64, FunctionState>,
    pub(crate) physical: BTreeMap<u64, PhysicalState>,
    /// The files of physical memory that other processes may share, by the memory's number.
    pub(crate) shared_files: BTreeMap<u64, Arc<SharedFile>>,
    pub(crate) pools: BTreeMap<u64, PoolState>,
    pub(crate) captures: BTreeMap<u64, CaptureState>,
    pub(crate) capture_modes: BTreeMap<u64, CaptureMode>,
    pub(crate) graphs: BTreeMap<u64, (usize, Arc<GraphNodes>)>,
    pub(crate) graph_execs: BTreeMap<u64, GraphExecState>,
    /// The capture in which each condition was created, by handle. Conditions of nodes have no entry.
    pub(crate) conditions: BTreeMap<u64, u64>,
    /// The device and the nodes of bodies whose capture has not begun, by handle.
    pub(crate) bodies: BTreeMap<u64, (usize, BodyNodes)>,
    pub(crate) comms: BTreeMap<u64, CommRecord>,
    pub(crate) faults: Faults,
    pub(crate) calls: BTreeMap<CallKind, u64>,
    pub(crate) host_waits: u64,
    /// Number of nodes and edges that replays have visited.
    pub(crate) graph_steps: usize,
    pub(crate) violations: Vec<FootprintViolation>,
    pub(crate) overruns: Vec<Overrun>,
    /// Host functions that will never run, to be dropped outside the lock.
    pub(crate) cancelled_fns: Vec<HostFn>,
    /// Whether a thread is running a host function, outside the lock. No other operation runs
    /// meanwhile.
    pub(crate) host_fn_running: bool,
    /// Whether the background thread of `driver/values.rs` is running. It runs queued value writes,
    /// for which other processes may wait.
    pub(crate) writes_values: bool,
    /// Virtual time of each host thread, in microseconds, by the thread's number.
    host_clocks: BTreeMap<u64, f64>,
    pub(crate) sequence: u64,
    next_id: u64,
    rng: u64,
}

/// A visible device.
pub(crate) struct DeviceState {
    pub(crate) properties: DeviceProperties,
    /// Index that the device would have without `CUDA_VISIBLE_DEVICES`.
    pub(crate) physical: usize,
    /// Memory in use in bytes, rounded as the driver does.
    pub(crate) used: usize,
    /// Whether the primary context exists.
    pub(crate) context: bool,
    /// The sticky error that lost the device.
    pub(crate) lost: Option<Arc<CudaError>>,
    /// Whether a call has already returned that error.
    pub(crate) loss_reported: bool,
    /// Devices whose memory the device's kernels may access.
    pub(crate) peers: BTreeSet<usize>,
}

/// Returns the number of this thread, which is unique in the process.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

/// Creates an error of a call.
pub(crate) fn error(call: CallKind, code: CudaCode, device: usize, why: &str) -> DriverError {
    let error = DriverError::cuda(call.name(), code, Some(device));
    if why.is_empty() { error } else { error.with_detail(|| why.to_owned()) }
}

impl SimState {
    pub(crate) fn new(config: SimConfig) -> Self {
        let count = config.devices.min(MAX_DEVICES);
        let boxed: Vec<_> = (0..count).map(|index| properties(&config, index)).collect();
        let visible = match &config.visible {
            Some(text) => {
                let uuids: Vec<_> = boxed.iter().map(|device| uuid_text(&device.uuid)).collect();
                visible(text, &uuids)
            }
            None => (0..count).collect(),
        };
        let devices: Vec<_> = visible.iter().map(|&i| DeviceState::new(&boxed[i], i)).collect();
        let streams =
            (0..devices.len()).map(|d| (StreamState::legacy_key(d), StreamState::legacy(d)));
        let rng = match config.schedule {
            Schedule::Seeded(seed) => seed,
            _ => 0,
        };
        Self {
            streams: streams.collect(),
            memory: MemoryState::new(devices.len(), config.redzones),
            faults: Faults::new(&config.faults),
            config,
            devices,
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            physical: BTreeMap::new(),
            shared_files: BTreeMap::new(),
            pools: BTreeMap::new(),
            captures: BTreeMap::new(),
            capture_modes: BTreeMap::new(),
            graphs: BTreeMap::new(),
            graph_execs: BTreeMap::new(),
            conditions: BTreeMap::new(),
            bodies: BTreeMap::new(),
            comms: BTreeMap::new(),
            calls: BTreeMap::new(),
            host_waits: 0,
            graph_steps: 0,
            violations: Vec::new(),
            overruns: Vec::new(),
            cancelled_fns: Vec::new(),
            host_fn_running: false,
            writes_values: false,
            host_clocks: BTreeMap::new(),
            sequence: 0,
            next_id: 0x1000,
            rng,
        }
    }

    /// Returns a value that no handle has had before.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the virtual time of this host thread, in microseconds.
    pub(crate) fn host_clock(&mut self) -> &mut f64 {
        self.host_clocks.entry(thread_number()).or_default()
    }

    /// Returns a pseudo-random number below `bound`, which is at least 1.
    pub(crate) fn random(&mut self, bound: usize) -> usize {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.rng;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }

    pub(crate) fn reseed(&mut self, schedule: Schedule) {
        if let Schedule::Seeded(seed) = schedule {
            self.rng = seed;
        }
        self.config.schedule = schedule;
    }

    /// Takes `bytes` bytes of the device's memory.
    pub(crate) fn charge(&mut self, call: CallKind, device: usize, bytes: usize) -> Result<()> {
        let free = self.config.capacity - self.devices[device].used;
        if bytes > free {
            let why = format!("{bytes} bytes were asked for, {free} are free");
            return Err(error(call, CudaCode::OUT_OF_MEMORY, device, &why));
        }
        self.devices[device].used += bytes;
        Ok(())
    }
}

impl DeviceState {
    fn new(properties: &DeviceProperties, physical: usize) -> Self {
        Self {
            properties: properties.clone(),
            physical,
            used: 0,
            context: false,
            lost: None,
            loss_reported: false,
            peers: BTreeSet::new(),
        }
    }
}

fn properties(config: &SimConfig, index: usize) -> DeviceProperties {
    let own = h200(index);
    DeviceProperties {
        uuid: own.uuid,
        pci: own.pci,
        total_memory: config.capacity,
        virtual_memory_management: config.properties.virtual_memory_management && CAN_MAP_TWICE,
        ..config.properties.clone()
    }
}
