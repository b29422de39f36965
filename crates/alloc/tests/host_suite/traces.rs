//! Recorded workloads, compared with PyTorch's allocator.
#![cfg(feature = "cuda")]

use std::path::Path;

use serde_json::Value;
use warpline_alloc::{CudaBackend, MemoryStats};
use warpline_cuda_sys_safe::sim::Schedule;

use crate::tool::check::Check;
use crate::tool::device::{Device, DriverKind};
use crate::tool::policy::Policy;
use crate::tool::run::{Watch, replay};
use crate::tool::trace::Trace;

const CAPACITY: usize = 141 << 30;

/// Returns the folder of the traces.
fn traces() -> &'static Path {
    Path::new("traces")
}

/// Returns each trace with PyTorch's results in one of its modes.
fn workloads(mode: &str) -> Vec<(Trace, Value)> {
    let text = std::fs::read_to_string(traces().join("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let workload = |(name, modes): (&String, &Value)| {
        let trace = Trace::open(&traces().join(format!("{name}.csv.gz"))).unwrap();
        (trace, modes[mode].clone())
    };
    let all: Vec<_> = reference["traces"].as_object().unwrap().iter().map(workload).collect();
    assert!(!all.is_empty());
    all
}

/// Replays a trace on a new simulated device.
fn replayed<W: Watch<CudaBackend>>(
    trace: &Trace,
    policy: Policy,
    schedule: Schedule,
    watch: impl Fn(&Device) -> W,
    times: usize,
) -> MemoryStats {
    let device = Device::open(DriverKind::Sim, CAPACITY, schedule, trace).unwrap();
    let allocator = device.allocator(policy.config().unwrap());
    for _ in 0..times {
        replay(&allocator, trace, &device.streams, &mut watch(&device), &mut |_| {}).unwrap();
    }
    allocator.memory_stats()
}

/// Compares the statistics of each trace with PyTorch's results in a mode.
fn compare(policy: Policy, mode: &str, compare: impl Fn(&str, &MemoryStats, &Value)) {
    for (trace, reference) in workloads(mode) {
        let stats = replayed(&trace, policy, Schedule::Eager, |_| (), 1);
        let name = &trace.name;
        assert_eq!(trace.ops.len(), reference["events"], "{name}: events");
        let requested = stats.requested_bytes.all.peak;
        assert_eq!(requested, reference["peak_requested"], "{name}: peak requested");
        compare(name, &stats, &reference);
    }
}

#[test]
fn the_torch_policy_matches_pytorch() {
    compare(Policy::Torch, "default", |name, stats, reference| {
        let reserved = stats.reserved_bytes.all.peak;
        assert_eq!(reserved, reference["peak_reserved"], "{name}: peak reserved");
        assert_eq!(stats.num_device_alloc, reference["device_alloc"], "{name}: allocations");
        // Among equal free blocks, the lowest address is taken, and the addresses depend on the
        // driver.
        let allocated = stats.allocated_bytes.all.peak as f64;
        let off = allocated / reference["peak_allocated"].as_f64().unwrap() - 1.0;
        assert!(off.abs() < 0.001, "{name}: peak allocated is off by {off}");
    });
}

#[test]
fn the_torch_expandable_policy_matches_pytorch() {
    compare(Policy::TorchExpandable, "expandable", |name, stats, reference| {
        let reserved = stats.reserved_bytes.all.peak;
        assert_eq!(reserved, reference["peak_reserved"], "{name}: peak reserved");
        let allocated = stats.allocated_bytes.all.peak;
        assert_eq!(allocated, reference["peak_allocated"], "{name}: peak allocated");
    });
}

#[test]
fn default_wastes_little() {
    compare(Policy::Default, "default", |name, stats, _| {
        let [reserved, requested] =
            [stats.reserved_bytes, stats.requested_bytes].map(|stat| stat.all.peak as f64);
        assert!(reserved / requested <= 1.02, "{name}: {}", reserved / requested);
    });
}

/// Fills and verifies all blocks of the shorter traces, `times` times, with an empty cache at first.
fn keeps_bytes(policy: Policy, times: usize) {
    for (trace, _) in workloads("default") {
        if trace.ops.len() < 30_000 {
            let check = |device: &Device| Check::new(device, &trace).unwrap();
            replayed(&trace, policy, Schedule::Seeded(0), check, times);
        }
    }
}

#[test]
fn blocks_keep_their_bytes_under_torch() {
    keeps_bytes(Policy::Torch, 1);
}

#[test]
fn blocks_keep_their_bytes_under_torch_expandable() {
    keeps_bytes(Policy::TorchExpandable, 1);
}

#[test]
fn blocks_keep_their_bytes_under_default() {
    keeps_bytes(Policy::Default, 2);
}

/// A repeated workload reuses its windows and makes no mapping call.
#[test]
fn a_workload_that_recurs_settles() {
    for (trace, _) in workloads("default") {
        if trace.ops.len() < 30_000 {
            let calls = |times| {
                let stats = replayed(&trace, Policy::Default, Schedule::Eager, |_| (), times);
                stats.num_remaps + stats.num_device_alloc
            };
            assert!(calls(1) > 0);
            assert_eq!(calls(6), calls(9), "{}", trace.name);
        }
    }
}
