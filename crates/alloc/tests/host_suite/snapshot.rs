//! Snapshots as values and as files.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use warpline_alloc::{BlockState, CachingAllocator, Snapshot, TraceConfig};

use crate::common::{Fake, MIB};

/// Creates a small segment with a live block, and a large segment with three blocks: live, pending
/// on stream 1, free.
fn used(fake: &Fake) -> (CachingAllocator<Fake>, [warpline_alloc::Block<Fake>; 2]) {
    let allocator = fake.allocator("max_split_size_mb:200,roundup_power2_divisions:4");
    let small = allocator.malloc(1000, &0).unwrap();
    let large = allocator.malloc(5 * MIB - 100, &7).unwrap();
    let shared = allocator.malloc(6 * MIB, &7).unwrap();
    shared.record_stream(&1);
    fake.launch(1);
    drop(shared);
    (allocator, [small, large])
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn json_has_pytorchs_keys_and_the_allocators_facts() {
    let fake = Fake::new(1 << 40);
    let (allocator, blocks) = used(&fake);
    let snapshot = allocator.snapshot();
    assert_eq!(snapshot.segments, allocator.segments());
    let value: Value = serde_json::from_str(&snapshot.to_json().unwrap()).unwrap();
    assert_eq!(
        keys(&value),
        ["segments", "device_traces", "allocator_settings", "external_annotations"].into()
    );
    let [small, large] = &value["segments"].as_array().unwrap()[..] else { panic!("{value}") };
    assert_eq!(
        keys(small),
        BTreeSet::from([
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "requested_size",
            "stream",
            "segment_type",
            "segment_pool_id",
            "is_expandable",
            "frames",
            "blocks",
        ])
    );
    let address = blocks[1].address();
    let block = |address: u64, size: usize, requested_size: usize, state: &str| {
        json!({
            "address": address, "size": size, "requested_size": requested_size, "state": state,
            "frames": [],
        })
    };
    let (first, second) = (blocks[1].size(), 6 * MIB);
    assert_eq!(
        *large,
        json!({
            "device": 0, "address": address, "total_size": 20 * MIB,
            "allocated_size": first, "active_size": first + second,
            "requested_size": 5 * MIB - 100 + second, "stream": 7, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": false, "frames": [],
            "blocks": [
                block(address, first, 5 * MIB - 100, "active_allocated"),
                block(address + first as u64, second, second, "active_awaiting_free"),
                block(address + (first + second) as u64, 20 * MIB - first - second, 0, "inactive"),
            ],
        })
    );
    let settings = &value["allocator_settings"];
    assert_eq!(settings["max_split_size"], 200 * MIB);
    assert_eq!(settings["garbage_collection_threshold"], 0.0);
    assert_eq!(settings["roundup_power2_divisions"]["32768"], 4);
    assert_eq!(value["device_traces"], json!([[]]));
}

#[test]
fn writing_json_gives_the_same_text() {
    let (allocator, _blocks) = used(&Fake::new(1 << 40));
    let snapshot = allocator.snapshot();
    let mut written = Vec::new();
    snapshot.write_json(&mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), snapshot.to_json().unwrap());
}

#[test]
fn the_pickle_and_the_json_hold_the_same() {
    let (allocator, _blocks) = used(&Fake::new(1 << 40));
    let snapshot = allocator.snapshot();
    let mut pickle = Vec::new();
    snapshot.write_pickle(&mut pickle).unwrap();
    let mut loaded: Value =
        serde_pickle::from_slice(&pickle, serde_pickle::DeOptions::new()).unwrap();
    let state = &mut loaded["segments"][1]["blocks"][1]["state"];
    // PyTorch's files name this state differently from its documentation.
    assert_eq!(*state, "active_pending_free");
    *state = BlockState::AwaitingFree.name().into();
    assert_eq!(loaded, serde_json::from_str::<Value>(&snapshot.to_json().unwrap()).unwrap());
}

#[test]
fn a_writer_that_fails_is_an_error() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let snapshot = Snapshot::default();
    for result in [snapshot.write_pickle(Full), snapshot.write_json(Full)] {
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    }
}

#[test]
fn several_devices_share_a_file() {
    let fake = Fake::new(1 << 40);
    let (first, _a) = used(&fake);
    let (second, _b) = used(&fake);
    let mut all = second.snapshot();
    for segment in &mut all.segments {
        segment.device = 1;
    }
    all.merge(first.snapshot());
    let devices: Vec<usize> = all.segments.iter().map(|segment| segment.device).collect();
    assert_eq!(devices, [0, 0, 1, 1]);
    assert!(all.segments[..2].is_sorted_by_key(|segment| segment.address));
}

/// Loads the file in Python without other modules, and checks that it uses only the opcodes that
/// the viewer's page reads.
#[test]
fn python_loads_the_pickle() {
    const SCRIPT: &str = r"
import pickle, pickletools, sys
data = sys.stdin.buffer.read()
READ = '''APPEND APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST LONG1 LONG_BINGET
MARK PROTO SETITEMS STOP TUPLE2 NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE
TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM'''.split()
for op, arg, at in pickletools.genops(data):
    assert op.name in READ, op.name
    assert op.name != 'LONG1' or -2**63 <= arg < 2**63, arg
s = pickle.loads(data)
total = sum(b['size'] for g in s['segments'] for b in g['blocks'])
assert total == sum(g['total_size'] for g in s['segments'])
print(total, type(s['segments'][0]['segment_pool_id']).__name__, s['segments'][1]['stream'])
";
    let python = Command::new("python3").args(["-c", ""]).output();
    if !python.is_ok_and(|output| output.status.success()) {
        eprintln!("no python3: skipped");
        return;
    }
    let fake = Fake::new(1 << 40);
    let (allocator, _blocks) = used(&fake);
    let mut snapshot = allocator.snapshot();
    snapshot.segments[1].stream = u64::MAX;
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    snapshot.write_pickle(child.stdin.take().unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let expected = format!("{} tuple -1\n", 22 * MIB);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn unusual_texts_are_written_unchanged() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    allocator.record_memory_history(Some(TraceConfig::default()));
    let text = "\0\"\\\n\u{7f}\u{2028}😀'";
    allocator.annotate(text);
    allocator.set_memory_metadata(text);
    drop(allocator.malloc(512, &7).unwrap());
    let snapshot = allocator.snapshot();
    let mut json = Vec::new();
    snapshot.write_json(&mut json).unwrap();
    let value: Value = serde_json::from_slice(&json).unwrap();
    let entries = value["device_traces"][0].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["user_metadata"] == text), "{entries:?}");
    let mut pickle = Vec::new();
    snapshot.write_pickle(&mut pickle).unwrap();
    let read: Value = serde_pickle::from_slice(&pickle, Default::default()).unwrap();
    assert_eq!(read["device_traces"], value["device_traces"]);
}
