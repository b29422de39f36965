//! Memory that the allocator maps at other addresses is still the memory that was used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use smallvec::smallvec;
use warpline_cuda_sys_safe::Access::{self, Read, Write};

use super::cases::{run, runtime, streams, view, whole};
use crate::race::Touch;
use crate::{Layout, RaceReport, Runtime, Storage};

/// Bytes of a page of the default policy.
const PAGE: usize = 2 << 20;

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

/// Of strided memory only a part may have been moved.
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
    assert_eq!(found as i64, remaps(&runtime));
}

/// On which stream, whether it wrote, and which bytes of the page.
type Use = (bool, bool, [usize; 2]);

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
    /// Against what was done to each physical page, which the model follows by itself. Nothing
    /// orders the two streams.
    #[test]
    fn uses_are_those_of_the_physical_page(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = runtime(RaceReport::Collect);
        let [a, b] = streams(&runtime);
        // A page that was never moved is named by its address.
        let names: Arc<Mutex<HashMap<u64, (u64, u64)>>> = Arc::default();
        let (follow, version) = (Arc::clone(&names), AtomicU64::new(1));
        runtime.device(0).unwrap().allocator().on_remap(move |from, to, bytes| {
            assert_eq!(bytes, PAGE);            let mut names = follow.lock().unwrap();
            let name = names.get(&from).copied().unwrap_or((from, 0));
            names.insert(to, name);
            // Whatever is mapped there next is another page.
            names.insert(from, (from, version.fetch_add(1, Ordering::Relaxed)));
        });
        let origin = Storage::device(&runtime, PAGE, &a).unwrap().address() as usize % PAGE;
        let mut live: Vec<Storage> = Vec::new();
        let mut done: HashMap<(u64, u64), Vec<Use>> = HashMap::new();
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
                    let mut expected = false;
                    // Pages need not be aligned.
                    let base = storage.address() as usize - origin;
                    for page in (base + start) / PAGE..(base + end).div_ceil(PAGE) {
                        let address = (page * PAGE + origin) as u64;
                        let names = names.lock().unwrap();
                        let name = names.get(&address).copied().unwrap_or((address, 0));
                        let clip = |at: usize| at.clamp(page * PAGE, (page + 1) * PAGE);
                        let bytes = [base + start, base + end].map(|at| clip(at) - page * PAGE);
                        let others = done.entry(name).or_default();
                        expected |= others.iter().any(|(by, wrote, other)| {
                            let shared = other[0] < bytes[1] && bytes[0] < other[1];
                            *by != on && (*wrote || write) && shared
                        });
                        others.push((on, write, bytes));
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
