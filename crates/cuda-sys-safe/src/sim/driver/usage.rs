//! Counts of live objects and of calls, for tests of leaks and of needless waits.

use std::collections::BTreeMap;

use super::session::SimDriver;
use crate::sim::state::memory::{Overrun, RegionKind};
use crate::sim::state::violation::FootprintViolation;
use crate::sim::{CallKind, Schedule};

/// Numbers of live objects of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Allocations by `cuMemAlloc`.
    pub allocations: usize,
    /// Requested size of the allocations by `cuMemAlloc`, in bytes.
    pub allocated_bytes: usize,
    /// All used memory of the device, in bytes.
    pub used_bytes: usize,
    /// Streams, without the default stream.
    pub streams: usize,
    /// Enqueued operations that have not run.
    pub pending: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Address reservations.
    pub reservations: usize,
    /// Mappings in reservations.
    pub mappings: usize,
    /// Physical memory handles.
    pub physical: usize,
    /// Pools.
    pub pools: usize,
    /// Allocations from pools.
    pub pool_allocations: usize,
    /// Graphs, including executable graphs.
    pub graphs: usize,
}

/// Numbers of live objects of a set of simulated devices, and of calls by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Numbers of each visible device.
    pub devices: Vec<DeviceUsage>,
    /// Page-locked host allocations.
    pub host_allocations: usize,
    /// Size of the page-locked host allocations, in bytes.
    pub host_bytes: usize,
    /// Registered ranges of host memory.
    pub host_registrations: usize,
    /// Number of calls that wait on the host for work, whether or not the work was already done.
    pub host_waits: u64,
    /// Number of calls by kind. Kinds that were never called are absent.
    pub calls: BTreeMap<CallKind, u64>,
}

impl Usage {
    /// Returns the number of calls of a kind.
    #[must_use]
    pub fn count(&self, call: CallKind) -> u64 {
        self.calls.get(&call).copied().unwrap_or(0)
    }

    /// Returns `true` if no object is alive: no memory, no handle, no mapping.
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
    /// Counts live objects and calls.
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
                RegionKind::Alloc { .. } => {
                    usage.allocations += 1;
                    usage.allocated_bytes += region.bytes;
                }
                RegionKind::Pool { .. } => usage.pool_allocations += 1,
                RegionKind::Reservation(mappings) => {
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

    /// Returns the allocations with an overwritten redzone: those found when they were freed, and
    /// those that are alive.
    #[must_use]
    pub fn overruns(&self) -> Vec<Overrun> {
        let state = self.lock();
        if !state.config.redzones {
            return Vec::new();
        }
        let alive = state.memory.regions.values().filter_map(|region| region.overrun());
        state.overruns.iter().copied().chain(alive).collect()
    }

    /// Returns the launches that violated their footprints. Needs
    /// [`SimConfig::check_footprints`](crate::sim::SimConfig::check_footprints).
    #[must_use]
    pub fn violations(&self) -> Vec<FootprintViolation> {
        self.lock().violations.clone()
    }

    /// Returns the number of enqueued operations that have not run, on all devices.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().streams.values().map(|s| (s.enqueued - s.done) as usize).sum()
    }

    /// Returns the virtual time at which a device was last busy, in milliseconds.
    #[must_use]
    pub fn virtual_time(&self, device: usize) -> f64 {
        let state = self.lock();
        let of_device = state.streams.values().filter(|s| s.device == device);
        of_device.map(|s| s.clock).fold(0.0, f64::max) / 1000.0
    }

    /// Changes the order in which work runs, from now on.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.lock().reseed(schedule);
    }

    /// Turns the check of footprints on or off, for kernels that run from now on.
    pub fn set_check_footprints(&self, on: bool) {
        self.lock().config.check_footprints = on;
    }
}
