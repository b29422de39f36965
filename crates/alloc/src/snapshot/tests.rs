//! Snapshots with a trace, and PyTorch's viewer reading them.

use std::io::Write;
use std::panic::Location;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::*;
use crate::trace::{TraceRing, TraceStep};
use crate::{Backtraces, PoolKind, TraceConfig};

#[test]
fn a_devices_name_gives_its_ordinal() {
    let ordinals = ["cuda:3", "the device", "a:b:12", "cuda:-1", "x:99999999999"].map(ordinal);
    assert_eq!(ordinals, [3, 0, 12, 0, 0]);
}

const SEGMENT: u64 = 0x7f00_0000_0000;
const MIB: usize = 1 << 20;

/// Returns the snapshot of a device on which every action has happened at least once.
fn full(backtraces: Backtraces) -> Snapshot {
    let mut ring = TraceRing::new(TraceConfig { backtraces, ..TraceConfig::default() });
    let mut record = |action, offset: usize, size, stream| {
        let address = SEGMENT + offset as u64;
        let site = Some(Location::caller());
        ring.record(TraceStep { action, address, size, stream, site });
    };
    record(TraceAction::SegmentAlloc, 0, 20 * MIB, 3);
    record(TraceAction::Alloc, 0, 5 * MIB - 7, 3);
    record(TraceAction::Alloc, 5 * MIB, 6 * MIB, 3);
    record(TraceAction::Alloc, 11 * MIB, 2 * MIB, 3);
    record(TraceAction::FreeRequested, 5 * MIB, 6 * MIB, 3);
    record(TraceAction::FreeRequested, 11 * MIB, 2 * MIB, 3);
    record(TraceAction::FreeCompleted, 11 * MIB, 2 * MIB, 3);
    record(TraceAction::SegmentAlloc, 40 * MIB, 2 * MIB, 0);
    record(TraceAction::SegmentFree, 40 * MIB, 2 * MIB, 0);
    record(TraceAction::SegmentMap, 60 * MIB, 40 * MIB, 3);
    record(TraceAction::SegmentUnmap, 80 * MIB, 20 * MIB, 3);
    record(TraceAction::Snapshot, 0, 0, 0);
    ring.record(TraceStep {
        action: TraceAction::Oom,
        address: 12_345,
        size: 1 << 40,
        stream: 3,
        site: None,
    });
    ring.annotate("forward", Location::caller());

    let block = |offset: usize, size, requested_size, state| BlockInfo {
        address: SEGMENT + offset as u64,
        size,
        requested_size,
        state,
        frames: Vec::new(),
    };
    let mut fixed = SegmentInfo { address: SEGMENT, stream: 3, ..SegmentInfo::default() };
    fixed.segment_type = PoolKind::Large;
    fixed.push(block(0, 5 * MIB, 5 * MIB - 7, BlockState::Allocated));
    fixed.push(block(5 * MIB, 6 * MIB, 6 * MIB, BlockState::AwaitingFree));
    fixed.push(block(11 * MIB, 9 * MIB, 2 * MIB, BlockState::Free));
    let mut grown = SegmentInfo { is_expandable: true, ..fixed.clone() };
    (grown.address, grown.total_size) = (SEGMENT + 60 * MIB as u64, 0);
    (grown.allocated_size, grown.active_size, grown.requested_size) = (0, 0, 0);
    grown.blocks.clear();
    grown.push(block(60 * MIB, 20 * MIB, 0, BlockState::Free));
    Snapshot::of_device("cuda:1", vec![fixed, grown], ring, AllocatorConfig::default())
}

fn to_value(snapshot: &Snapshot) -> Value {
    serde_json::from_str(&snapshot.to_json().unwrap()).unwrap()
}

#[test]
fn a_trace_is_written_as_pytorch_writes_it() {
    let snapshot = full(Backtraces::Off);
    let value = to_value(&snapshot);
    let traces = value["device_traces"].as_array().unwrap();
    assert_eq!((traces.len(), &traces[0]), (2, &json!([])));
    let entries = traces[1].as_array().unwrap();
    let actions: Vec<&Value> = entries.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(
        actions,
        [
            "segment_alloc",
            "alloc",
            "alloc",
            "alloc",
            "free_requested",
            "free_requested",
            "free_completed",
            "segment_alloc",
            "segment_free",
            "segment_map",
            "segment_unmap",
            "snapshot",
            "oom",
            "annotate",
        ]
    );
    let mut alloc = entries[1].clone();
    let frame = &mut alloc["frames"][0];
    assert!(frame["filename"].as_str().unwrap().ends_with("tests.rs"), "{frame}");
    assert!(frame["line"].as_u64().unwrap() > 1, "{frame}");
    *frame = Value::Null;
    assert_eq!(
        alloc,
        json!({
            "action": "alloc", "addr": SEGMENT, "size": 5 * MIB - 7, "stream": 3,
            "time_us": snapshot.device_traces[1][1].time_us, "compile_context": "N/A",
            "user_metadata": "", "frames": [null],
        })
    );
    let oom = entries.iter().find(|entry| entry["action"] == "oom").unwrap();
    assert_eq!((&oom["device_free"], &oom["addr"]), (&json!(12_345), &Value::Null));
    let annotation = &value["external_annotations"][0];
    assert_eq!((&annotation["name"], &annotation["device"]), (&json!("forward"), &json!(1)));
    let segment = &value["segments"][0];
    assert_eq!((&segment["device"], segment["frames"].as_array().unwrap().len()), (&json!(1), 1));
    assert_eq!(segment["blocks"][0]["frames"][0]["name"], "??");
    assert_eq!(segment["blocks"][2]["frames"], json!([]));
}

#[test]
fn traces_of_devices_merge_by_ordinal() {
    let mut all =
        Snapshot::of_device("cuda:0", Vec::new(), TraceRing::default(), AllocatorConfig::default());
    all.merge(full(Backtraces::Off));
    all.merge(full(Backtraces::Off));
    let lengths: Vec<usize> = all.device_traces.iter().map(Vec::len).collect();
    assert_eq!(lengths, [0, 28]);
    assert_eq!((all.segments.len(), all.external_annotations.len()), (4, 2));
    assert!(all.device_traces[1].is_sorted_by_key(|entry| entry.time_us));
}

/// Reads a file with the functions of PyTorch's `_memory_viz.py` if `WARPLINE_MEMORY_VIZ` is the
/// path of this script, otherwise with Python's standard library only.
#[test]
fn pytorchs_viewer_reads_the_file() {
    const SCRIPT: &str = r"
import importlib.util, pickle, sys
data = sys.stdin.buffer.read()
s = pickle.loads(data)
if len(sys.argv) > 1:
    spec = importlib.util.spec_from_file_location('viz', sys.argv[1])
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    lines = lambda text: text
    for page in (viz.trace_plot(s), viz.trace_plot(s, filter_freed=True), viz.segment_plot(s)):
        assert 'snapshot.pickle' in page and 'MemoryViz.js' in page
    s = pickle.loads(data)
    summary = viz.segsum(s)
    assert 'segments: 2' in summary and 'total_reserved: 40.0MiB' in summary, summary
    trace = viz.trace(s)
    assert 'Device 1' in trace and 'OutOfMemoryError' in trace and '1.0TiB requested' in trace, trace
    assert 'cudaMalloc(%d, 20.0MiB)' % s['segments'][0]['address'] in trace, trace
    memory = viz.memory(s, lines)
    assert 'stream_3;active_allocated;' in memory and 'tests.rs:' in memory, memory
    assert 'only_after' in viz.compare(s['segments'][:1], s['segments'], lines)
    assert viz.segments(s, lines).count('\n') >= 4
print(len(s['device_traces'][1]))
";
    if !Command::new("python3").args(["-c", ""]).status().is_ok_and(|status| status.success()) {
        eprintln!("no python3: skipped");
        return;
    }
    for backtraces in [Backtraces::Off, Backtraces::All] {
        let mut child = Command::new("python3")
            .args(["-c", SCRIPT])
            .args(std::env::var_os("WARPLINE_MEMORY_VIZ"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pickle = Vec::new();
        full(backtraces).write_pickle(&mut pickle).unwrap();
        child.stdin.take().unwrap().write_all(&pickle).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("14\n"));
    }
}
