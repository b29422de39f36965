//! What is alive and what was called, for tests that nothing leaks and nothing waits in vain.

use std::collections::BTreeMap;

use super::session::SimDriver;
use crate::sim::state::memory::{Kind, Overrun};
use crate::sim::state::violation::FootprintViolation;
use crate::sim::{CallKind, Schedule};

/// What is alive on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// `cuMemAlloc` allocations.
    pub allocations: usize,
    /// Their bytes, as asked for.
    pub allocated_bytes: usize,
    /// Bytes of the device's memory in use by anything.
    pub used_bytes: usize,
    /// Streams that were created.
    pub streams: usize,
    /// Operations that have not run.
    pub pending: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Address reservations.
    pub reservations: usize,
    /// Mappings in them.
    pub mappings: usize,
    /// Physical memory.
    pub physical: usize,
    /// Pools.
    pub pools: usize,
    /// Allocations from pools.
    pub pool_allocations: usize,
    /// Graphs, instantiated ones included.
    pub graphs: usize,
}

/// What is alive in a simulated box, and how often each kind of call was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Per visible device.
    pub devices: Vec<DeviceUsage>,
    /// Page-locked host allocations.
    pub host_allocations: usize,
    /// Their bytes.
    pub host_bytes: usize,
    /// Registered ranges of host memory.
    pub host_registrations: usize,
    /// Times a call made the host wait for work, or would have, had it not been done.
    pub host_waits: u64,
    /// Calls by kind. Kinds that were never called are absent.
    pub calls: BTreeMap<CallKind, u64>,
}

impl Usage {
    /// How often a kind of call was made.
    #[must_use]
    pub fn count(&self, call: CallKind) -> u64 {
        self.calls.get(&call).copied().unwrap_or(0)
    }

    /// Whether nothing is alive: no memory, no handle, no mapping.
    #[must_use]
    pub fn all_released(&self) -> bool {
        self.host_allocations == 0
            && self.host_registrations == 0
            && self
                .devices
                .iter()
                .all(|d| *d == DeviceUsage { pending: d.pending, ..DeviceUsage::default() })
    }
}

impl SimDriver {
    /// What is alive and what was called.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.lock();
        let mut devices: Vec<DeviceUsage> = state
            .devices
            .iter()
            .map(|d| DeviceUsage { used_bytes: d.used, ..DeviceUsage::default() })
            .collect();
        for region in state.memory.regions.values() {
            let usage = &mut devices[region.device];
            match &region.kind {
                Kind::Alloc { .. } => {
                    usage.allocations += 1;
                    usage.allocated_bytes += region.bytes;
                }
                Kind::Pool { .. } => usage.pool_allocations += 1,
                Kind::Reservation(mappings) => {
                    usage.reservations += 1;
                    usage.mappings += mappings.len();
                }
            }
        }
        for stream in state.streams.values() {
            let usage = &mut devices[stream.device];
            usage.streams += usize::from(!stream.legacy && !stream.destroyed);
            usage.pending += (stream.enqueued - stream.done) as usize;
        }
        state.events.values().for_each(|e| devices[e.device].events += 1);
        state.modules.values().for_each(|m| devices[m.device].modules += 1);
        state.physical.values().for_each(|p| devices[p.device].physical += 1);
        state.pools.values().for_each(|p| devices[p.device].pools += 1);
        state.graphs.values().for_each(|(device, _)| devices[*device].graphs += 1);
        state.graph_execs.values().for_each(|e| devices[e.device].graphs += 1);
        let (owned, registered): (Vec<_>, Vec<_>) =
            state.memory.host.values().partition(|range| range.owned.is_some());
        Usage {
            devices,
            host_allocations: owned.len(),
            host_bytes: owned.iter().map(|range| range.bytes).sum(),
            host_registrations: registered.len(),
            host_waits: state.host_waits,
            calls: state.calls.clone(),
        }
    }

    /// Allocations around which something was overwritten: those found when they were freed,
    /// and those alive now.
    #[must_use]
    pub fn overruns(&self) -> Vec<Overrun> {
        let state = self.lock();
        if !state.config.redzones {
            return Vec::new();
        }
        let alive = state.memory.regions.values().filter_map(|region| region.overrun());
        state.overruns.iter().copied().chain(alive).collect()
    }

    /// Launches that did not keep to their footprints; see
    /// [`SimConfig::check_footprints`](crate::sim::SimConfig::check_footprints).
    #[must_use]
    pub fn violations(&self) -> Vec<FootprintViolation> {
        self.lock().violations.clone()
    }

    /// Operations that have not run, on all devices.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().streams.values().map(|s| (s.enqueued - s.done) as usize).sum()
    }

    /// Milliseconds of virtual time at which a device was last busy.
    #[must_use]
    pub fn virtual_time(&self, device: usize) -> f64 {
        let state = self.lock();
        let of_device = state.streams.values().filter(|s| s.device == device);
        of_device.map(|s| s.clock).fold(0.0, f64::max) / 1000.0
    }

    /// Changes when work runs from now on.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.lock().reseed(schedule);
    }

    /// Turns the check of footprints on or off; it holds for kernels that run from now on.
    pub fn set_check_footprints(&self, on: bool) {
        self.lock().config.check_footprints = on;
    }
}
