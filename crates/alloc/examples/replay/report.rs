//! The figures of a trace.

use std::fmt;

use serde::Serialize;
use warpline_alloc::MemoryStats;

use super::policy::Policy;
use super::run::Outcome;
use super::trace::Trace;

/// Figures of a trace's replays. Sizes are in bytes. `warm_ns_per_event` and `remaps_warm` are of
/// the later replays; all other figures are of the first replay, which starts with an empty cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The file's name.
    pub trace: String,
    /// Policy of the allocator.
    pub policy: Policy,
    /// Number of `a` and `f` lines.
    pub events: usize,
    /// Peak of the bytes that live blocks requested.
    pub peak_requested: i64,
    /// Peak of the bytes that live blocks occupied.
    pub peak_allocated: i64,
    /// Peak of the bytes that the allocator reserved from the driver.
    pub peak_reserved: i64,
    /// Number of allocations by the driver.
    pub device_alloc: i64,
    /// `device_alloc` after the first quarter of the events.
    pub device_alloc_late: i64,
    /// Number of allocations that were returned to the driver.
    pub device_free: i64,
    /// Nanoseconds per event.
    pub cold_ns_per_event: f64,
    /// Nanoseconds per event after the first quarter of the events.
    pub late_ns_per_event: f64,
    /// Nanoseconds per event of the later replays, which find the cache full: the median of these
    /// replays.
    pub warm_ns_per_event: f64,
    /// Number of pages that were mapped again elsewhere.
    pub remaps: i64,
    /// `remaps` after the first quarter of the events.
    pub remaps_late: i64,
    /// `remaps` of the last warm replay.
    pub remaps_warm: i64,
    /// Milliseconds in mapping calls.
    pub map_ms: f64,
    /// `map_ms` after the first quarter of the events.
    pub map_ms_late: f64,
    /// `peak_reserved` ÷ `peak_requested`.
    pub reserved_per_requested: f64,
}

impl Report {
    /// Combines the first replay with the warm replays.
    #[must_use]
    pub fn new(trace: &Trace, policy: Policy, cold: &Outcome, warm: &[Outcome]) -> Self {
        let stats = &cold.end;
        let per_event =
            |outcome: &Outcome| outcome.time.as_nanos() as f64 / trace.ops.len().max(1) as f64;
        let map_ms = |stats: &MemoryStats| stats.mapping_time.as_secs_f64() * 1e3;
        let peak_requested = stats.requested_bytes.all.peak;
        let peak_reserved = stats.reserved_bytes.all.peak;
        Self {
            trace: trace.name.clone(),
            policy,
            events: trace.ops.len(),
            peak_requested,
            peak_allocated: stats.allocated_bytes.all.peak,
            peak_reserved,
            device_alloc: stats.num_device_alloc,
            device_alloc_late: stats.num_device_alloc - cold.quarter.num_device_alloc,
            device_free: stats.num_device_free,
            cold_ns_per_event: per_event(cold),
            late_ns_per_event: cold.late.as_nanos() as f64
                / (trace.ops.len() - trace.ops.len() / 4).max(1) as f64,
            warm_ns_per_event: median(warm.iter().map(per_event).collect()),
            remaps: stats.num_remaps,
            remaps_late: stats.num_remaps - cold.quarter.num_remaps,
            remaps_warm: match warm {
                [.., before, last] => last.end.num_remaps - before.end.num_remaps,
                _ => 0,
            },
            map_ms: map_ms(stats),
            map_ms_late: map_ms(stats) - map_ms(&cold.quarter),
            reserved_per_requested: peak_reserved as f64 / peak_requested.max(1) as f64,
        }
    }
}

/// Returns the median of the values. 0 if there are none.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: i64| format!("{:.1} MiB ({bytes} bytes)", bytes as f64 / 1_048_576.0);
        writeln!(f, "{}", self.trace)?;
        for (name, value) in [
            ("events", self.events.to_string()),
            ("peak requested", mib(self.peak_requested)),
            ("peak allocated", mib(self.peak_allocated)),
            ("peak reserved", mib(self.peak_reserved)),
            ("reserved ÷ requested", format!("{:.4}", self.reserved_per_requested)),
            ("driver allocations", self.device_alloc.to_string()),
            ("driver frees", self.device_free.to_string()),
            ("remaps", self.remaps.to_string()),
            (
                "mapping time",
                format!(
                    "{:.3} ms, {:.3} ms after the first quarter",
                    self.map_ms, self.map_ms_late
                ),
            ),
            ("per event, cold", format!("{:.1} ns", self.cold_ns_per_event)),
            ("per event, warm", format!("{:.1} ns", self.warm_ns_per_event)),
        ] {
            writeln!(f, "  {name:<22}{value}")?;
        }
        Ok(())
    }
}
