//! PyTorch's tests of `memory_snapshot`, one test for each, under their names.

use warpline_alloc::{Backtraces, BlockState, Frame, TraceAction, TraceConfig};

use crate::common::{Fake, MIB};

const POLICIES: [&str; 3] = ["policy:torch", "expandable_segments:True", "policy:default"];

/// Returns whether a frame names a line of this file.
fn name_this_file(frames: &[Frame]) -> bool {
    frames.iter().any(|frame| frame.filename.ends_with("ported_snapshot.rs") && frame.line > 0)
}

#[test]
fn memory_snapshot() {
    for policy in POLICIES {
        let fake = Fake::with_pages(1 << 40);
        let allocator = fake.allocator(policy);
        let before = allocator.malloc(1000, &0).unwrap();
        let config = TraceConfig { backtraces: Backtraces::Alloc, ..TraceConfig::default() };
        allocator.record_memory_history(Some(config));
        let block = allocator.malloc(30 * MIB, &0).unwrap();
        let address = block.address();
        let snapshot = allocator.snapshot();
        let blocks: Vec<_> = snapshot.segments.iter().flat_map(|s| &s.blocks).collect();
        let of = |address: u64| blocks.iter().find(|block| block.address == address).unwrap();
        assert_eq!(
            (of(address).state, of(address).requested_size),
            (BlockState::Allocated, 30 * MIB)
        );
        assert!(name_this_file(&of(address).frames), "{policy}: {:?}", of(address).frames);
        assert!(
            of(before.address()).frames.is_empty(),
            "the block was allocated before the recording"
        );

        let mut file = Vec::new();
        snapshot.write_pickle(&mut file).unwrap();
        assert!(!file.is_empty());

        drop(block);
        allocator.empty_cache();
        let snapshot = allocator.snapshot();
        let trace = &snapshot.device_traces[0];
        let at = |action: TraceAction| trace.iter().position(|e| e.action == action);
        let steps = [
            TraceAction::Alloc,
            TraceAction::Snapshot,
            TraceAction::FreeRequested,
            TraceAction::FreeCompleted,
        ];
        let mut places: Vec<_> = steps.map(at).into();
        places.push(at(TraceAction::SegmentFree).or(at(TraceAction::SegmentUnmap)));
        assert!(places.iter().all(Option::is_some), "{policy}: {places:?}");
        assert!(places.is_sorted(), "{policy}: {places:?}");
        assert!(trace.is_sorted_by_key(|entry| entry.time_us));
        let alloc = &trace[places[0].unwrap()];
        assert_eq!((alloc.address, alloc.size, alloc.stream), (address, 30 * MIB, 0));
        assert!(name_this_file(&alloc.frames()), "{policy}");

        allocator.record_memory_history(None);
        let kept = allocator.malloc(30 * MIB, &0).unwrap();
        let after = allocator.snapshot();
        assert_eq!(after.device_traces[0].len(), trace.len(), "nothing is recorded any more");
        let blocks = after.segments.iter().flat_map(|s| &s.blocks);
        let found = blocks.clone().find(|block| block.address == kept.address()).unwrap();
        assert!(found.frames.is_empty(), "{policy}: {:?}", found.frames);
    }
}

/// Tests `enabled="state"`, and a ring that overflows.
#[test]
fn memory_snapshot_max_entries() {
    let fake = Fake::new(1 << 40);
    let allocator = fake.allocator("");
    for max_entries in [0, 10] {
        allocator.record_memory_history(Some(TraceConfig { max_entries, ..Default::default() }));
        let block = allocator.malloc(1000, &0).unwrap();
        for _ in 0..20 {
            drop(allocator.malloc(4000, &0).unwrap());
        }
        let snapshot = allocator.snapshot();
        assert_eq!(snapshot.device_traces[0].len(), max_entries);
        let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let found = blocks.find(|found| found.address == block.address()).unwrap();
        assert!(name_this_file(&found.frames), "the holder of the memory is not known");
    }
}

#[test]
fn memory_snapshot_skip_actions() {
    let every = [
        TraceAction::Alloc,
        TraceAction::FreeRequested,
        TraceAction::FreeCompleted,
        TraceAction::SegmentAlloc,
        TraceAction::SegmentFree,
        TraceAction::Snapshot,
    ];
    for skipped in [vec![], vec![every[1], every[2]], vec![every[0], every[3], every[4]]] {
        let fake = Fake::new(1 << 40);
        let allocator = fake.allocator("");
        let config = TraceConfig { skip_actions: skipped.clone(), ..TraceConfig::default() };
        allocator.record_memory_history(Some(config));
        let kept = allocator.malloc(1000, &0).unwrap();
        drop(allocator.malloc(30 * MIB, &0).unwrap());
        allocator.empty_cache();
        let snapshot = allocator.snapshot();
        for action in every {
            let recorded = snapshot.device_traces[0].iter().any(|entry| entry.action == action);
            assert_eq!(recorded, !skipped.contains(&action), "{action:?} with {skipped:?} skipped");
        }
        let mut blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let found = blocks.find(|found| found.address == kept.address()).unwrap();
        assert!(name_this_file(&found.frames), "the live block has no frames");
    }
}
