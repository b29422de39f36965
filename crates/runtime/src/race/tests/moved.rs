//! Tests of accesses to memory that the allocator maps at other addresses afterwards.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use smallvec::smallvec;
use warpline_cuda_sys_safe::Access::{self, Read, Write};

use super::cases::{run, runtime, streams, view, whole};
use crate::race::Touch;
use crate::{Layout, RaceReport, Runtime, Storage};

/// Size of a page of the default policy, in bytes.
const PAGE: usize = 4 << 20;

fn remaps(runtime: &Runtime) -> i64 {
    runtime.device(0).unwrap().allocator().memory_stats().num_remaps
}

#[test]
fn early_reuse_of_moved_memory_is_found() {
    for waits in [false, true] {
        let runtime = runtime(RaceReport::Collect);
        let [a, b] = streams(&runtime);
        let block = |pages: usize| Storage::device(&runtime, pages * PAGE, &a).unwrap();
        let mut blocks: Vec<_> = (0..64).map(|_| Some(block(1))).collect();
        for each in blocks.iter_mut().step_by(2) {
            let storage = each.take().unwrap();
            run(&b, "neg", &[whole(&storage, Read)]).unwrap();
        }
        if waits {
            a.wait_stream(&b).unwrap();
        }
        let large = block(32);
        let moved = remaps(&runtime) as usize;
        assert!(moved > 16, "{moved} pages were moved");
        run(&a, "fill_", &[whole(&large, Write)]).unwrap();
        let races = runtime.take_races();
        assert_eq!(races.len(), if waits { 0 } else { moved });
        assert!(races.iter().all(|race| (race.first.op, race.certain) == ("neg", true)));
        assert!(races.iter().all(|race| race.bytes.end - race.bytes.start == PAGE as u64));
        assert!(races.iter().all(|race| race.to_string().contains("given out again too early")));
    }
}

/// A part of the memory of a strided access may be moved.
#[test]
fn strided_accesses_are_followed_in_part() {
    let runtime = runtime(RaceReport::Collect);
    let [a, b] = streams(&runtime);
    let block = |pages: usize| Storage::device(&runtime, pages * PAGE, &a).unwrap();
    let mut kept = Vec::new();
    for _ in 0..16 {
        let (storage, n) = (block(2), 2 * PAGE / 4);
        let halves = Layout::from_parts(smallvec![n / 2], smallvec![2], 0);
        run(&b, "neg", &[view(&storage, &halves, Read)]).unwrap();
        kept.push((Some(storage), block(1)));
    }
    kept.iter_mut().for_each(|(storage, _)| *storage = None);
    let large = block(16);
    assert!(remaps(&runtime) > 8);
    let n = 16 * PAGE / 4;
    let [even, odd] = [0, 1].map(|at| Layout::from_parts(smallvec![n / 2], smallvec![2], at));
    run(&a, "fill_", &[view(&large, &odd, Write)]).unwrap();
    assert!(runtime.take_races().is_empty());
    assert!(runtime.take_possible_races().is_empty());
    run(&a, "fill_", &[view(&large, &even, Write)]).unwrap();
    let found = runtime.take_races().len() + runtime.take_possible_races().len();
    // The two adjacent pages of a storage are moved together, so two moved pages cause one race.
    assert_eq!(2 * found as i64, remaps(&runtime));
}

/// Address ranges whose memory was first mapped elsewhere. Maps the start of each range to its end and to the address
/// at which the memory at the start was first mapped.
#[derive(Default)]
struct RemappedMemory(BTreeMap<u64, (u64, u64)>);

impl RemappedMemory {
    /// Returns the memory at these addresses as ranges of its first addresses.
    fn memory(&self, at: Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut start = at.start;
        while start < at.end {
            let (here, next) = self.split(start);
            let end = here.map_or(at.end, |(end, _)| end).min(at.end).min(next);
            let first = here.map_or(start, |(_, first)| first);
            found.push(first..first + (end - start));
            start = end;
        }
        found
    }

    /// Returns the end and the first address of the moved range at an address, and the start of the
    /// next moved range.
    fn split(&self, address: u64) -> (Option<(u64, u64)>, u64) {
        let below = self.0.range(..=address).next_back();
        let here = below.filter(|(_, (end, _))| address < *end);
        let next = self.0.range(address + 1..).next().map_or(u64::MAX, |(start, _)| *start);
        (here.map(|(start, (end, first))| (*end, first + address - start)), next)
    }

    fn moved(&mut self, from: u64, to: u64, bytes: u64) {
        let memory = self.memory(from..from + bytes);
        let end = to + bytes;
        let cut: Vec<_> =
            self.0.range(..end).filter(|(_, (e, _))| to < *e).map(|(s, _)| *s).collect();
        for start in cut {
            let Some((old, first)) = self.0.remove(&start) else { continue };
            if start < to {
                self.0.insert(start, (to, first));
            }
            if end < old {
                self.0.insert(end, (old, first + end - start));
            }
        }
        let mut at = to;
        for Range { start, end } in memory {
            self.0.insert(at, (at + end - start, start));
            at += end - start;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Make(usize),
    Drop(usize),
    Touch { on: bool, which: usize, part: (usize, usize), write: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let touch = (any::<bool>(), any::<usize>(), (0usize..12, 0usize..12), any::<bool>());
    prop_oneof![
        3 => (1usize..9).prop_map(Step::Make),
        2 => any::<usize>().prop_map(Step::Drop),
        3 => touch.prop_map(|(on, which, part, write)| Step::Touch { on, which, part, write }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compares the reported races with the accesses that a model records for the same physical
    /// memory. The two streams are never ordered.
    #[test]
    fn races_follow_the_physical_memory(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = runtime(RaceReport::Collect);
        let [a, b] = streams(&runtime);
        let remapped: Arc<Mutex<RemappedMemory>> = Arc::default();
        let follow = Arc::clone(&remapped);
        runtime.device(0).unwrap().allocator().on_remap(move |from, to, bytes| {
            follow.lock().unwrap().moved(from, to, bytes as u64);
        });
        let mut live: Vec<Storage> = Vec::new();
        // For each access: whether it was on stream `a`, whether it wrote, and the memory.
        let mut done: Vec<(bool, bool, Range<u64>)> = Vec::new();
        for step in steps {
            match step {
                Step::Make(pages) => {
                    live.push(Storage::device(&runtime, pages * PAGE - 512, &a).unwrap());
                }
                Step::Drop(which) if !live.is_empty() => {
                    live.swap_remove(which % live.len());
                }
                Step::Touch { on, which, part: (from, to), write } if !live.is_empty() => {
                    let storage = &live[which % live.len()];
                    let at = |twelfth: usize| storage.bytes() / 12 * twelfth;
                    let (start, end) = (at(from.min(to)), at(from.max(to) + 1));
                    let access: Access = if write { Write } else { Read };
                    let touch = Touch::range(storage, start, end - start, access);
                    run(if on { &a } else { &b }, "op", &[touch]).unwrap();
                    let bytes = storage.address() + start as u64..storage.address() + end as u64;
                    let mut expected = false;
                    for memory in remapped.lock().unwrap().memory(bytes) {
                        expected |= done.iter().any(|(by, wrote, other)| {
                            let shared = other.start < memory.end && memory.start < other.end;
                            *by != on && (*wrote || write) && shared
                        });
                        done.push((on, write, memory));
                    }
                    let found = !runtime.take_races().is_empty();
                    prop_assert_eq!(found, expected);
                    prop_assert!(runtime.take_possible_races().is_empty());
                }
                _ => {}
            }
        }
    }
}
