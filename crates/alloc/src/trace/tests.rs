//! The ring of entries, and starting and stopping the trace.

use super::*;
use crate::BlockInfo;

#[track_caller]
fn step(action: TraceAction, address: u64) -> TraceStep {
    TraceStep { action, address, size: 8, stream: 1, site: Some(Location::caller()) }
}

fn ring(max_entries: usize, backtraces: Backtraces) -> TraceRing {
    TraceRing::new(TraceConfig { max_entries, backtraces, ..TraceConfig::default() })
}

fn addresses(ring: &TraceRing) -> Vec<u64> {
    ring.entries.iter().map(|entry| entry.address).collect()
}

/// Returns a segment at address 0 with blocks of the given addresses and states.
fn segment(blocks: &[(u64, BlockState)]) -> Vec<SegmentInfo> {
    let blocks = blocks.iter().map(|(address, state)| BlockInfo {
        address: *address,
        state: *state,
        ..BlockInfo::default()
    });
    vec![SegmentInfo { blocks: blocks.collect(), ..SegmentInfo::default() }]
}

#[test]
fn the_oldest_entries_are_dropped_first() {
    let mut ring = ring(3, Backtraces::Off);
    for address in 0..2 {
        ring.record(step(TraceAction::Alloc, address));
    }
    assert_eq!(addresses(&ring), [0, 1]);
    for address in 2..8 {
        ring.record(step(TraceAction::Alloc, address));
    }
    assert_eq!(addresses(&ring), [5, 6, 7]);
    let times: Vec<u64> = ring.entries.iter().map(|entry| entry.time_us).collect();
    assert!(times.is_sorted() && times[0] > 1_600_000_000_000_000, "{times:?}");
}

#[test]
fn an_entry_names_the_line_of_the_call() {
    let mut ring = ring(9, Backtraces::Off);
    let line = line!() + 1;
    ring.record(step(TraceAction::Alloc, 0));
    let [frame] = &ring.entries[0].frames()[..] else { panic!("{:?}", ring.entries) };
    assert_eq!((frame.filename.as_str(), frame.line), (file!(), line));
    assert!(ring.entries[0].backtrace.is_none());
}

#[test]
fn backtraces_are_captured_only_for_the_configured_actions() {
    let captured = |backtraces| {
        let mut ring = ring(9, backtraces);
        for action in [TraceAction::Alloc, TraceAction::SegmentMap, TraceAction::FreeRequested] {
            ring.record(step(action, 0));
        }
        ring.entries.iter().map(|entry| entry.backtrace.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(captured(Backtraces::Off), [false; 3]);
    assert_eq!(captured(Backtraces::Alloc), [true, true, false]);
    assert_eq!(captured(Backtraces::All), [true; 3]);
}

#[test]
fn live_blocks_keep_their_origin_when_the_ring_has_wrapped() {
    for max_entries in [0, 1] {
        let mut ring = ring(max_entries, Backtraces::Off);
        ring.record(step(TraceAction::SegmentAlloc, 0));
        ring.record(step(TraceAction::Alloc, 0));
        ring.record(step(TraceAction::Alloc, 512));
        ring.record(step(TraceAction::FreeRequested, 512));
        ring.record(step(TraceAction::Alloc, 1024));
        ring.record(step(TraceAction::FreeRequested, 1024));
        ring.record(step(TraceAction::FreeCompleted, 1024));
        assert_eq!(ring.entries.len(), max_entries);
        let mut segments = segment(&[
            (0, BlockState::Allocated),
            (512, BlockState::AwaitingFree),
            (1024, BlockState::Free),
            (2048, BlockState::Allocated),
        ]);
        ring.add_origins(&mut segments);
        let named: Vec<usize> = segments[0].blocks.iter().map(|b| b.frames.len()).collect();
        assert_eq!(named, [1, 1, 0, 0]);
        assert_eq!(segments[0].frames.len(), 1);
    }
}

#[test]
fn skipped_actions_add_no_entry_but_keep_the_origin() {
    let skip_actions = vec![TraceAction::Alloc, TraceAction::FreeCompleted];
    let mut ring = TraceRing::new(TraceConfig { skip_actions, ..TraceConfig::default() });
    for action in [TraceAction::Alloc, TraceAction::FreeRequested, TraceAction::FreeCompleted] {
        ring.record(step(action, 0));
        ring.record(step(TraceAction::Alloc, 512));
    }
    let actions: Vec<TraceAction> = ring.entries.iter().map(|entry| entry.action).collect();
    assert_eq!(actions, [TraceAction::FreeRequested]);
    assert_eq!(ring.blocks.keys().collect::<Vec<_>>(), [&512]);
}

#[test]
fn freed_blocks_are_forgotten() {
    let mut ring = ring(0, Backtraces::Off);
    ring.record(step(TraceAction::SegmentMap, 0));
    ring.record(step(TraceAction::Alloc, 0));
    ring.record(step(TraceAction::FreeCompleted, 0));
    ring.record(step(TraceAction::SegmentUnmap, 0));
    assert!(ring.blocks.is_empty() && ring.segments.is_empty());
}

#[test]
fn annotations_and_metadata_are_recorded() {
    let mut ring = ring(9, Backtraces::Off);
    ring.record(step(TraceAction::Alloc, 1));
    ring.set_metadata("step 7");
    ring.record(step(TraceAction::Alloc, 2));
    ring.annotate("forward", Location::caller());
    ring.record(step(TraceAction::Alloc, 3));
    let entries = ring.entries;
    let texts: Vec<&str> = entries.iter().map(|entry| &*entry.user_metadata).collect();
    assert_eq!(texts, ["", "step 7", "forward", "step 7"]);
    assert_eq!(entries[2].action, TraceAction::Annotate);
}

#[test]
fn a_tracer_records_only_while_it_is_on() {
    let tracer = Tracer::default();
    tracer.record(|| unreachable!("off"));
    tracer.start(TraceConfig::default());
    tracer.record(|| step(TraceAction::Alloc, 1));
    tracer.stop();
    tracer.record(|| unreachable!("off"));
    assert_eq!(addresses(&tracer.ring()), [1]);
    tracer.start(TraceConfig::default());
    assert_eq!(addresses(&tracer.ring()).len(), 0);
}

#[test]
fn a_copy_does_not_change_with_its_tracer() {
    let tracer = Tracer::default();
    tracer.start(TraceConfig::default());
    tracer.record(|| step(TraceAction::Alloc, 1));
    let copy = tracer.copy();
    tracer.record(|| step(TraceAction::FreeCompleted, 1));
    assert_eq!((addresses(&copy), copy.blocks.len()), (vec![1], 1));
    assert_eq!(copy.into_entries().len(), 1);
}

#[test]
fn threads_record_whole_entries() {
    let tracer = Tracer::default();
    tracer.start(TraceConfig { max_entries: 100, ..TraceConfig::default() });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tracer = &tracer;
            scope.spawn(move || {
                for i in 0..50 {
                    tracer.record(|| step(TraceAction::Alloc, thread * 1000 + i));
                }
            });
        }
    });
    let addresses = addresses(&tracer.ring());
    assert_eq!(addresses.len(), 100);
    for thread in 0..4 {
        let own = addresses.iter().filter(|address| *address / 1000 == thread);
        assert!(own.is_sorted(), "each thread's steps keep their order");
    }
}
