//! Tests of kernels that check indices, on several threads and streams.

use std::collections::BTreeSet;

use warpline_kernels::indexing;
use warpline_runtime::graph::{Capturing, GraphPool};
use warpline_runtime::{Error, Storage};

use super::*;

/// Returns the index out of range if the call failed because of one. Panics at any other error.
fn failed_index(result: Result<()>) -> Option<i64> {
    match result {
        Ok(()) => None,
        Err(error) => match error.kind() {
            ErrorKind::IndexCheck { index, .. } => Some(*index),
            _ => panic!("{error}"),
        },
    }
}

/// Gathers the elements of `from` at the indices in `index` to `to`.
fn pick(stream: &Stream, from: &Storage, index: &Storage, to: &Storage) -> Result<()> {
    let layout = Layout::contiguous(&[COUNT]).unwrap();
    let view = |storage| View { storage, layout: &layout, dtype: DType::I64 };
    let runtime = from.runtime();
    let target = Target::Cuda(runtime, gpu(runtime), stream);
    indexing::index_select(target, view(from), 0, view(index), view(to))
}

/// Waits until no wait reports a failure any more. Returns the reported indices.
fn remaining_failures(runtime: &Runtime) -> BTreeSet<i64> {
    let device = gpu(runtime).device();
    std::iter::from_fn(|| failed_index(device.synchronize().map_err(Error::from))).collect()
}

/// Returns the index that a read of `result` reports as out of range.
fn read_fails(stream: &Stream, result: &Storage) -> Option<i64> {
    let host = Storage::pageable(result.runtime(), BYTES).unwrap();
    failed_index(copy(stream, &host, result, false)).or_else(|| {
        let mut bytes = [0; BYTES];
        failed_index(launch::read_bytes((&host, 0), &mut bytes))
    })
}

/// Each thread waits for its own work, but its wait may report the failure of another thread's
/// work. Every failure is reported, by a wait or by a read of the failed op's result. Waits report
/// no failure twice, and nothing else is reported.
#[test]
fn every_failed_index_is_reported_once() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let streams = [(); 3].map(|()| stream(&runtime));
        let from = device_memory(&streams[0], &runtime, 7);
        let tasks: Vec<_> = streams
            .into_iter()
            .zip([10, 20, 30])
            .map(|(stream, number)| {
                let (runtime, from) = (runtime.clone(), from.clone());
                let fails = [(); 2].map(|()| random(2) == 0);
                move || {
                    let (mut bad, mut waits, mut reads) = (Vec::new(), Vec::new(), Vec::new());
                    for (number, fails) in (number..).zip(fails) {
                        let index = if fails { 1000 + number } else { 1 };
                        bad.extend(fails.then_some(index));
                        let index = device_memory(&stream, &runtime, index);
                        let to = Storage::device(&runtime, BYTES, &stream).unwrap();
                        waits.extend(failed_index(pick(&stream, &from, &index, &to)));
                        waits.extend(failed_index(stream.synchronize().map_err(Error::from)));
                        reads.extend(read_fails(&stream, &to));
                    }
                    (bad, waits, reads)
                }
            })
            .collect();
        let done = together(tasks);
        let all =
            |of: fn(&ReportedIndices) -> &Vec<i64>| done.iter().flat_map(of).copied().collect();
        let bad: Vec<i64> = all(|heard| &heard.0);
        let mut waits: Vec<i64> = all(|heard| &heard.1);
        let reads: Vec<i64> = all(|heard| &heard.2);
        waits.extend(remaining_failures(&runtime));
        let once: BTreeSet<i64> = waits.iter().copied().collect();
        assert_eq!(once.len(), waits.len(), "twice: {waits:?}");
        let heard: BTreeSet<i64> = once.into_iter().chain(reads).collect();
        assert_eq!(heard, bad.into_iter().collect());
    });
}

/// The indices of one thread: those that are out of range, those that waits reported, and those
/// that reads reported.
type ReportedIndices = (Vec<i64>, Vec<i64>, Vec<i64>);

/// Two of three threads enqueue work on the same stream. For each stream with failures, a wait or a
/// read of a failed op's result reports at least one of them. Nothing else is reported.
#[test]
fn failed_indices_of_a_shared_stream_are_reported() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let first = stream(&runtime);
        let from = device_memory(&first, &runtime, 7);
        // The third thread uses the stream of the second.
        let shared = stream(&runtime);
        let streams = [first, shared.clone(), shared];
        let mut bad = BTreeSet::new();
        let tasks: Vec<_> = (0..3)
            .map(|thread| {
                let fails = random(2) == 0;
                let index = if fails { 1000 + thread } else { thread };
                bad.extend(fails.then_some(index));
                let (runtime, from) = (runtime.clone(), from.clone());
                let stream = streams[thread as usize].clone();
                let waits = random(3);
                move || {
                    let index = device_memory(&stream, &runtime, index);
                    let to = Storage::device(&runtime, BYTES, &stream).unwrap();
                    let launched = failed_index(pick(&stream, &from, &index, &to));
                    let waited = match waits {
                        0 => failed_index(stream.synchronize().map_err(Error::from)),
                        1 => failed_index(stream.query().map(drop).map_err(Error::from)),
                        _ => None,
                    };
                    ([launched, waited], (stream, to, index))
                }
            })
            .collect();
        let done = together(tasks);
        let mut heard: BTreeSet<i64> = done.iter().flat_map(|(told, _)| *told).flatten().collect();
        heard.extend(remaining_failures(&runtime));
        heard.extend(done.iter().filter_map(|(_, (stream, to, _))| read_fails(stream, to)));
        // If one wait covers several failures of a stream, only the oldest may be reported.
        let own = |index: &i64| if *index >= 1001 { 1 } else { 0 };
        let streams = |set: &BTreeSet<i64>| set.iter().map(own).collect::<BTreeSet<_>>();
        assert!(heard.is_subset(&bad), "{heard:?} of {bad:?}");
        assert_eq!(streams(&heard), streams(&bad), "{heard:?} of {bad:?}");
    });
}

/// Two threads replay a graph whose index check may fail.
#[test]
fn every_failed_replay_is_reported() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let streams = [(); 2].map(|()| stream(&runtime));
        let from = device_memory(&streams[0], &runtime, 7);
        let to = device_memory(&streams[0], &runtime, 0);
        let index = device_memory(&streams[0], &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let capturing = Capturing::begin(&runtime, &streams[0], &pool).unwrap();
        pick(&streams[0], &from, &index, &to).unwrap();
        let graph = Arc::new(capturing.end().unwrap());
        let mut bad = BTreeSet::new();
        let tasks = streams.clone().into_iter().zip([5, 6]).map(|(stream, number)| {
            let (runtime, index) = (runtime.clone(), index.clone());
            let graph = Arc::clone(&graph);
            let fails = random(2) == 0;
            let number = if fails { 1000 + number } else { number };
            bad.extend(fails.then_some(number));
            move || {
                let new = device_memory(&stream, &runtime, number);
                copy(&stream, &index, &new, true).unwrap();
                let replayed = failed_index(graph.replay(&stream));
                let waited = failed_index(stream.synchronize().map_err(Error::from));
                [replayed, waited]
            }
        });
        let tasks: Vec<_> = tasks.collect();
        let done = together(tasks);
        let mut heard: BTreeSet<i64> = done.into_iter().flatten().flatten().collect();
        heard.extend(remaining_failures(&runtime));
        heard.extend(read_fails(&streams[1], &to));
        assert!(heard.is_subset(&bad), "{heard:?} of {bad:?}");
        // A replay may run with the indices that the other thread has written.
        if bad.len() == 2 {
            assert!(!heard.is_empty());
        }
    });
}
