//! The replay tool: rejected input, completions, and errors that it detects.
#![cfg(feature = "cuda")]

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use warpline_alloc::{Block, CudaBackend};
use warpline_cuda_sys_safe::owned::Stream;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::tool::bytes::Bytes;
use crate::tool::check::Check;
use crate::tool::completion::{Completions, PATIENCE};
use crate::tool::device::{Device, DriverKind};
use crate::tool::policy::Policy;
use crate::tool::report::Report;
use crate::tool::run::{Outcome, Watch, replay};
use crate::tool::timeline::Timeline;
use crate::tool::trace::{Late, Op, Origin, Trace};

const GIB: usize = 1 << 30;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn read(text: &str) -> Trace {
    Trace::read("t.csv", text.as_bytes()).unwrap()
}

#[track_caller]
fn refuses(bytes: &[u8], message: &str) {
    let error = Trace::read("t.csv", bytes).unwrap_err();
    assert_eq!(error.to_string(), message);
}

fn open(trace: &Trace, schedule: Schedule) -> Device {
    Device::open(DriverKind::Sim, GIB, schedule, trace).unwrap()
}

/// Replays a trace once with PyTorch's rules.
fn replayed<W: Watch<CudaBackend>>(
    trace: &Trace,
    schedule: Schedule,
    watch: impl FnOnce(&Device) -> Result<W, String>,
) -> Result<Outcome, String> {
    let device = open(trace, schedule);
    let allocator = device.allocator(Policy::Torch.config().unwrap());
    let mut watch = watch(&device)?;
    replay(&allocator, trace, &device.streams, &mut watch, &mut |_| {})
}

/// Replays a trace once with PyTorch's rules and the trace's completions.
fn honoured(trace: &Trace, patience: Duration) -> Result<Outcome, String> {
    replayed(trace, Schedule::Lazy, |device| Completions::new(&device.driver, trace, patience))
}

#[test]
fn a_trace_becomes_slots_and_streams() {
    let text = "a,5,100,0\r\na,7,0,3\n\nf,5,,\nc,5,,\na,5,200,3\nf,7,,\nf,5,,\nc,5\nc,7,,";
    let trace = read(text);
    let malloc = |slot, stream, bytes| Op::Malloc { slot, stream, bytes };
    let free = |slot| Op::Free { slot };
    let ops = [malloc(0, 0, 100), malloc(1, 1, 0), free(0), malloc(0, 1, 200), free(1), free(0)];
    assert_eq!(trace.ops, ops);
    assert_eq!(trace.origins[3], Origin { line: 6, id: 5 });
    assert_eq!((trace.slots, &trace.streams), (2, &vec![0, 3]));
    assert!(trace.completions);
    // The free of id 7 completes after another free.
    assert_eq!(trace.late, [Late { free: 4, until: 6 }]);
    let zipped = Trace::read("t.csv", &gzip(text.as_bytes())[..]).unwrap();
    assert_eq!(zipped, trace);
}

#[test]
fn a_free_that_never_completes_lasts_to_the_end() {
    let trace = read("a,0,1,0\na,1,1,0\nf,0,,\nf,1,,\nc,1,,\na,2,1,0\n");
    assert_eq!(trace.late, [Late { free: 2, until: 5 }]);
}

#[test]
fn invalid_lines_of_a_trace_are_named() {
    refuses(b"a,0,1,0\nx,0,,\n", "t.csv: line 2: unknown operation `x`: expected `a`, `f` or `c`");
    refuses(b"op,id\n", "t.csv: line 1: unknown operation `op`: expected `a`, `f` or `c`");
    refuses(b"a\n", "t.csv: line 1: `a` lacks an id");
    refuses(b"a,0\n", "t.csv: line 1: `a` lacks a number of bytes");
    refuses(b"a,0,,0\n", "t.csv: line 1: `a` lacks a number of bytes");
    refuses(b"a,0,8\n", "t.csv: line 1: `a` lacks a stream");
    refuses(b"f,,,\n", "t.csv: line 1: `f` lacks an id");
    refuses(b"a,0,8,0,1\n", "t.csv: line 1: `a` has more than 4 fields");
    refuses(b"a,0,8,0\nf,0,8,\n", "t.csv: line 2: `f` has more than 2 fields");
    refuses(b"a,x,8,0\n", "t.csv: line 1: the id `x` is not a whole number from 0");
    refuses(b"a,-1,8,0\n", "t.csv: line 1: the id `-1` is not a whole number from 0");
    refuses(b"a,0,-8,0\n", "t.csv: line 1: the number of bytes `-8` is not a whole number from 0");
    refuses(
        b"a,0,8.5,0\n",
        "t.csv: line 1: the number of bytes `8.5` is not a whole number from 0",
    );
    refuses(b"a,0,8,s\n", "t.csv: line 1: the stream `s` is not a whole number from 0");
}

#[test]
fn ids_in_the_wrong_order_are_named() {
    refuses(b"a,4,8,0\n\na,4,8,0\n", "t.csv: line 3: id 4 is allocated twice");
    refuses(b"a,4,8,0\nf,4,,\nf,4,,\n", "t.csv: line 3: id 4 is freed twice");
    refuses(b"a,4,8,0\nf,4,,\nc,4,,\nf,4,,\n", "t.csv: line 4: id 4 is freed twice");
    refuses(b"a,4,8,0\nf,5,,\n", "t.csv: line 2: id 5 is freed but was never allocated");
    refuses(b"a,4,8,0\nc,4,,\n", "t.csv: line 2: id 4 is completed but no free of it is pending");
}

#[test]
fn text_beyond_the_limits_is_refused() {
    refuses(
        format!("a,0,8,0\na,1,{},0\n", "0".repeat(1 << 20)).as_bytes(),
        "t.csv: line 2: the line is longer than 128 bytes",
    );
    let text = "a,0,8,0\nf,0,,\n\n\n\n";
    assert_eq!(
        Trace::read_at_most(text.len() as u64, "t.csv", text.as_bytes()).unwrap(),
        read(text)
    );
    // A mebibyte of newlines compresses to less than 2000 bytes.
    let bomb = gzip("\n".repeat(1 << 20).as_bytes());
    assert!(bomb.len() < 2000);
    let error = Trace::read_at_most(1 << 16, "t.csv", &bomb[..]).unwrap_err().to_string();
    let reason = "the text goes on after 65536 bytes, more than is read";
    assert_eq!(error, format!("t.csv: line {}: {reason}", (1 << 16) + 1));
}

#[test]
fn files_that_are_damaged_are_named() {
    let text: String = (0..20_000).map(|id| format!("a,{id},{},0\n", id * 7919 % 65_537)).collect();
    let whole = gzip(text.as_bytes());
    let error = Trace::read("t.csv.gz", &whole[..whole.len() / 2]).unwrap_err().to_string();
    let line = error.strip_prefix("t.csv.gz: line ").unwrap();
    let (line, reason) = line.split_once(": ").unwrap();
    assert_eq!(reason, "the gzip stream is cut short");
    assert!((2..20_000).contains(&line.parse::<usize>().unwrap()), "{error}");

    let error = Trace::read("t.csv.gz", &b"a,0,8,0\n"[..]).unwrap_err().to_string();
    assert_eq!(error, "t.csv.gz: line 1: not a gzip stream");
    let mut spoiled = whole;
    spoiled[10..40].fill(0xff);
    let error = Trace::read("t.csv.gz", &spoiled[..]).unwrap_err().to_string();
    assert!(error.starts_with("t.csv.gz: line 1: damaged gzip stream: "), "{error}");
    let error = Trace::read("t.csv", &b"a,0,8,0\n\xff\n"[..]).unwrap_err().to_string();
    assert!(error.starts_with("t.csv: line 2: not text: "), "{error}");
    let error = Trace::open("no/such/t.csv".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("t.csv: cannot be opened: "), "{error}");
}

/// Four blocks of 16 MiB, each freed before the next allocation. Two completions are late.
const LATE: &str = "a,0,16777216,0\nf,0,,\na,1,16777216,0\nf,1,,\na,2,16777216,0\nc,0,,\n\
                    f,2,,\nc,2,,\nc,1,,\na,3,16777216,0\nf,3,,\nc,3,,\n";

#[test]
fn memory_becomes_free_at_its_completion_line() {
    let trace = read(LATE);
    let plain = replayed(&trace, Schedule::Eager, |_| Ok(())).unwrap();
    assert_eq!(plain.end.num_device_alloc, 1);
    let honoured = honoured(&trace, PATIENCE);
    // The third block can reuse neither of the first two. The fourth finds all three free.
    assert_eq!(honoured.unwrap().end.num_device_alloc, 3);
}

#[test]
fn completions_come_in_any_order() {
    // The second block completes before the first. The third allocation reuses the second block,
    // the fourth needs new memory, and the fifth reuses the first block.
    let block = |id: u32| format!("a,{id},16777216,0\n");
    let text = [
        block(0) + "f,0,,\n",
        block(1) + "f,1,,\nc,1,,\n",
        block(2),
        block(3) + "c,0,,\n",
        block(4),
    ];
    let trace = read(&text.concat());
    let honoured = honoured(&trace, PATIENCE);
    assert_eq!(honoured.unwrap().end.num_device_alloc, 3);
}

#[test]
fn a_trace_without_completions_has_none_to_honour() {
    let trace = read("a,0,8,0\nf,0,,\n");
    let error = honoured(&trace, PATIENCE);
    assert_eq!(error.unwrap_err(), "t.csv: has no `c` lines that could be honoured");
}

#[test]
fn a_wait_for_a_completion_that_comes_later_is_an_error() {
    // On a device of 1 GiB, the second block needs the memory of the first.
    let trace = read("a,0,700000000,0\nf,0,,\na,1,700000000,0\nc,0,,\nf,1,,\nc,1,,\n");
    let error = honoured(&trace, Duration::from_millis(20));
    let error = error.unwrap_err();
    assert!(error.starts_with("t.csv: line 3: id 1: the allocator waited for memory"), "{error}");
}

#[test]
fn blocks_that_keep_their_bytes_pass_the_check() {
    // Small, large and split blocks on two streams. Some blocks outlive the trace.
    let sizes = [1usize, 512, 70_000, 1 << 20, (5 << 20) + 12, 24 << 20];
    let mut text = String::new();
    for id in 0..200 {
        text += &format!("a,{id},{},{}\n", sizes[id * 7 % 6], id % 2);
        if id >= 5 {
            text += &format!("f,{},,\n", id - 5);
        }
    }
    let trace = read(&text);
    let outcome = replayed(&trace, Schedule::Seeded(3), |device| Check::new(device, &trace));
    assert_eq!(outcome.unwrap().end.allocation.all.current, 5);
}

/// Overwrites four bytes of the first block right after its allocation.
struct Spoil(Bytes, Stream, usize);

impl Watch<CudaBackend> for Spoil {
    fn allocated(&mut self, at: usize, _: u32, block: &Block<CudaBackend>) -> Result<(), String> {
        if at == 0 {
            let Self(bytes, stream, offset) = self;
            bytes.fill(block, *offset, 4, 0, stream).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

#[test]
fn a_byte_that_changed_is_named() {
    let trace = read("a,9,16777216,0\na,3,100,0\nf,9,,\n");
    for offset in [0, (2 << 20) - 4, 6 << 20, (16 << 20) - 4] {
        let device = open(&trace, Schedule::Seeded(1));
        let spoil =
            Spoil(Bytes::new(&device.driver, 1).unwrap(), device.streams[0].clone(), offset);
        let mut watch = (Check::new(&device, &trace).unwrap(), spoil);
        let allocator = device.allocator(Policy::Torch.config().unwrap());
        let error = replay(&allocator, &trace, &device.streams, &mut watch, &mut |_| {});
        let error = error.unwrap_err();
        let named = format!("t.csv: line 1: id 9: byte {offset} of its block holds 0x00 instead ");
        assert!(error.starts_with(&named), "{error}");
    }
}

#[test]
fn running_out_of_memory_names_the_line() {
    let trace = read("a,0,8,0\na,1,2000000000,0\n");
    let error = replayed(&trace, Schedule::Eager, |_| Ok(())).unwrap_err();
    assert!(error.starts_with("t.csv: line 2: id 1: cuda:0 out of memory."), "{error}");
}

#[test]
fn a_timeline_has_a_line_per_event() {
    let trace = read("a,0,100,0\na,1,600,0\nf,0,,\n");
    let path = std::env::temp_dir().join(format!("timeline-{}.csv", std::process::id()));
    replayed(&trace, Schedule::Eager, |_| Ok(Timeline::create(&path).unwrap())).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        text,
        "event,requested,allocated,reserved\n0,100,512,2097152\n1,700,1536,2097152\n\
         2,600,1024,2097152\n"
    );
}

#[test]
fn a_report_holds_the_first_replay_and_the_median_of_the_others() {
    let trace = read("a,0,100,0\nf,0,,\na,1,16777216,0\nf,1,,\n");
    let mut outcome = replayed(&trace, Schedule::Eager, |_| Ok(())).unwrap();
    let mut after = |nanoseconds| {
        outcome.time = Duration::from_nanos(nanoseconds);
        outcome
    };
    let report = Report::new(&trace, Policy::Torch, &after(4000), &[400, 800, 1200].map(after));
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    for (key, value) in [
        ("trace", "t.csv".into()),
        ("policy", "torch".into()),
        ("events", 4.into()),
        ("peak_requested", 16_777_216.into()),
        ("peak_allocated", 16_777_216.into()),
        ("peak_reserved", (18 << 20).into()),
        ("device_alloc", 2.into()),
        ("cold_ns_per_event", 1000.0.into()),
        ("warm_ns_per_event", 200.0.into()),
        ("reserved_per_requested", 1.125.into()),
    ] {
        let expected: serde_json::Value = value;
        assert_eq!(json[key], expected, "{key}");
    }
    assert!(report.to_string().contains("reserved ÷ requested  1.1250"), "{report}");
}

#[test]
fn a_wait_for_many_completions_takes_no_longer_than_for_one() {
    let ids = 0..100;
    let text = [
        ids.clone().map(|id| format!("a,{id},7000000,0\n")).collect::<String>(),
        ids.clone().map(|id| format!("f,{id},,\n")).collect(),
        String::from("a,100,700000000,0\n"),
        ids.map(|id| format!("c,{id},,\na,{},8,0\n", 200 + id)).collect(),
    ];
    let trace = read(&text.concat());
    // One wait after another for all completions would take 50 seconds.
    let patience = Duration::from_millis(500);
    let start = Instant::now();
    let error = honoured(&trace, patience);
    assert!(error.unwrap_err().contains("the allocator waited for memory"));
    assert!(start.elapsed() < 40 * patience, "{:?}", start.elapsed());
}
