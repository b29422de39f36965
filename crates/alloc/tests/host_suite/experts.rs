//! Workloads whose block sizes depend on routing and never recur.
#![cfg(feature = "cuda")]

use std::path::Path;

use warpline_alloc::{AllocatorConfig, MemoryStats};
use warpline_cuda_sys_safe::sim::Schedule;

use crate::tool::device::{Device, DriverKind};
use crate::tool::moe::{generate, names};
use crate::tool::run::replay;
use crate::tool::trace::{Op, Trace};

fn trace(name: &str) -> Trace {
    Trace::open(Path::new(name)).unwrap()
}

/// Replays a trace once on a new simulated device.
fn replayed(trace: &Trace, options: &str) -> MemoryStats {
    let device = Device::open(DriverKind::Sim, 141 << 30, Schedule::Eager, trace).unwrap();
    let allocator = device.allocator(AllocatorConfig::parse(options).unwrap());
    replay(&allocator, trace, &device.streams, &mut (), &mut |_| {}).unwrap();
    allocator.memory_stats()
}

fn ratio(stats: &MemoryStats) -> f64 {
    stats.reserved_bytes.all.peak as f64 / stats.requested_bytes.all.peak as f64
}

#[test]
fn a_seed_makes_one_trace_and_another_seed_another() {
    for name in names() {
        let text = |seed: u64| generate(&format!("moe:{name}:{seed}:2")).unwrap();
        assert_eq!(text(7), text(7), "{name}");
        assert_ne!(text(7), text(8), "{name}");
    }
}

#[test]
fn malformed_names_of_traces_are_refused() {
    for (name, message) in [
        ("moe:dense", "there is no shape `dense`; there are coarse, fine, recomputed"),
        ("moe:fine:x", "the seed `x` is not a whole number from 1"),
        ("moe:fine:1:0", "the number of steps `0` is not a whole number from 1"),
        ("moe:fine:1:2:3", "`3` is too much"),
    ] {
        let error = Trace::open(Path::new(name)).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// Checks that the generated traces have new sizes in each step.
#[test]
fn steps_do_not_recur() {
    for name in names() {
        let large = |steps: u64| {
            let trace = trace(&format!("moe:{name}:1:{steps}"));
            let sizes = trace.ops.iter().filter_map(|op| match op {
                Op::Malloc { bytes, .. } if *bytes > 1 << 20 => Some(*bytes),
                _ => None,
            });
            sizes.collect::<std::collections::BTreeSet<_>>().len()
        };
        let [few, many] = [large(2), large(6)];
        assert!(2 * many > 3 * few, "{name}: {few} sizes in two steps, {many} in six");
    }
}

#[test]
fn headroom_saves_mappings() {
    let trace = trace("moe:recomputed:1:12");
    let mapped = |options: &str, most: f64| {
        let stats = replayed(&trace, options);
        assert!(ratio(&stats) <= most, "{options}: {}", ratio(&stats));
        stats.num_remaps
    };
    let [tight, wide] = [mapped("", 1.02), mapped("headroom_percent:5", 1.05)];
    assert!(
        tight > 1000 && wide < 50,
        "{tight} pages were remapped without headroom, {wide} with headroom"
    );
}

#[test]
fn larger_pages_save_mappings() {
    let trace = trace("moe:capacity:1:40");
    let mapped = |options: &str| {
        let stats = replayed(&trace, options);
        assert!(ratio(&stats) <= 1.02, "{options}: {}", ratio(&stats));
        stats.num_remaps
    };
    let [small, large] = [mapped(""), mapped("page_size_mb:32")];
    assert!(
        large > 0 && large < small / 4,
        "{small} small pages and {large} large pages were remapped"
    );
}
