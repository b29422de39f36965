//! Tests of a capture while other threads enqueue work on its streams, join streams to it, and drop
//! its memory.

use warpline_runtime::Storage;
use warpline_runtime::graph::{Capturing, Graph, GraphPool};
use warpline_stream::Event;

use super::*;

/// The code of a thread. Returns the graph if this thread ended the capture, and the sum of the
/// numbers that it added.
type Task = Box<dyn FnOnce() -> (Option<Graph>, i64) + Send>;

/// Adds a number, unless a capture rejects the work. Returns the added number, or 0.
fn add(stream: &Stream, to: &Storage, zero: &Storage, number: i64) -> i64 {
    match mix_on(stream, to, zero, 1, number) {
        Ok(()) => number,
        // A capture ended or began meanwhile.
        Err(error) if is_capture(error.kind()) => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that each addition either ran or was captured: the first replay adds the captured
/// numbers, and the second adds them again. The sums are read on a second stream, and only the read
/// of the first sum makes this stream wait for the replay.
#[track_caller]
fn assert_kept(graph: &Graph, [replays, reads]: [&Stream; 2], sums: &[Storage], added: &[i64]) {
    let ran: Vec<i64> = sums.iter().map(|sum| value_of(reads, sum)).collect();
    for round in 0..2 {
        graph.replay(replays).unwrap();
        for ((sum, ran), added) in sums.iter().zip(&ran).zip(added) {
            let kept = added - ran;
            assert_eq!(value_of(reads, sum), added + round * kept, "{added:x}, {ran:x} ran");
        }
    }
}

/// Threads enqueue work on the captured stream and on another stream, before, during and after the
/// capture.
#[test]
fn work_of_other_threads_runs_or_is_captured() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let streams = [(); 2].map(|()| stream(&runtime));
        let sums = [(); 2].map(|()| device_memory(&streams[0], &runtime, 0));
        let zero = device_memory(&streams[0], &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let captures = {
            let (runtime, stream) = (runtime.clone(), streams[0].clone());
            let (sum, zero) = (sums[1].clone(), zero.clone());
            move || {
                let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
                let added = add(&stream, &sum, &zero, 1);
                let made = Storage::device(&runtime, BYTES, &stream).unwrap();
                mix_on(&stream, &made, &zero, 0, 0x10).unwrap();
                mix_on(&stream, &sum, &made, 1, 0).unwrap();
                drop(made);
                (Some(capturing.end().unwrap()), added + 0x10)
            }
        };
        // One thread adds to the first sum on the captured stream. The other adds to the second sum,
        // as the capture does, on the second stream.
        let others = [(0, 0, 0x100), (1, 1, 0x10000)].map(|(on, sum, number)| {
            let (stream, sum, zero) = (streams[on].clone(), sums[sum].clone(), zero.clone());
            Box::new(move || {
                let added = (0..2).map(|i| add(&stream, &sum, &zero, number << (4 * i))).sum();
                (None, added)
            }) as Task
        });
        let first: Task = Box::new(captures);
        let tasks: Vec<_> = [first].into_iter().chain(others).collect();
        drop(runtime);
        let mut done = together(tasks);
        let added = [done[1].1, done[0].1 + done[2].1];
        let graph = done[0].0.take().unwrap();
        assert_kept(&graph, [&streams[1], &streams[0]], &sums, &added);
        drop((graph, sums, zero, streams));
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// A thread enqueues work on a joined stream until the capture ends, and afterwards. The end waits
/// for all captured work of the stream; otherwise the driver would invalidate the capture.
#[test]
fn a_capture_ends_while_another_thread_uses_a_joined_stream() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let [stream, joins] = [(); 2].map(|()| stream(&runtime));
        let sum = device_memory(&stream, &runtime, 0);
        let zero = device_memory(&stream, &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
        let mut added = add(&stream, &sum, &zero, 1);
        joins.wait_stream(&stream).unwrap();
        let ends = move || (Some(capturing.end().unwrap()), 0);
        let gives = {
            let (joins, sum) = (joins.clone(), sum.clone());
            move || {
                (None, [0x10, 0x100].map(|number| add(&joins, &sum, &zero, number)).iter().sum())
            }
        };
        let tasks: [Task; 2] = [Box::new(ends), Box::new(gives)];
        let mut done = together(tasks);
        added += done[1].1;
        let graph = done[0].0.take().unwrap();
        assert_kept(&graph, [&joins, &stream], &[sum], &[added]);
    });
}

/// Two threads enqueue work in one capture, on two of its streams. Later work that uses the results
/// of both is captured after both.
#[test]
fn captured_work_of_two_threads_comes_before_later_captured_work() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let streams = [(); 2].map(|()| stream(&runtime));
        let storages = [1, 2, 0].map(|value| device_memory(&streams[0], &runtime, value));
        let [a, b, seen] = &storages;
        let pool = GraphPool::new(gpu(&runtime));
        let capturing = Capturing::begin(&runtime, &streams[0], &pool).unwrap();
        mix_on(&streams[0], a, b, 1, 0).unwrap();
        streams[1].wait_stream(&streams[0]).unwrap();
        let tasks =
            streams.clone().into_iter().zip([[a, b], [b, a]]).map(|(stream, [to, from])| {
                let (to, from) = (to.clone(), from.clone());
                move || mix_on(&stream, &to, &from, 3, 1).unwrap()
            });
        together(tasks.collect::<Vec<_>>());
        mix_on(&streams[random(2)], seen, a, 0, 0).unwrap();
        mix_on(&streams[random(2)], seen, b, 1, 0).unwrap();
        let graph = capturing.end().unwrap();
        for _ in 0..2 {
            graph.replay(&streams[0]).unwrap();
            let [a, b, seen] = storages.each_ref().map(|s| value_of(&streams[0], s));
            assert_eq!(seen, a + b);
        }
    });
}

/// A capture may end between two checks of an op. Work that reads a captured result, which is
/// uninitialized before a replay, is captured or rejected, and never runs.
#[test]
fn work_on_captured_results_does_not_run_before_a_replay() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let stream = stream(&runtime);
        let sum = device_memory(&stream, &runtime, 0);
        let zero = device_memory(&stream, &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
        let made = Storage::device(&runtime, BYTES, &stream).unwrap();
        mix_on(&stream, &made, &zero, 0, 1).unwrap();
        let uses = {
            let (stream, sum) = (stream.clone(), sum.clone());
            move || {
                let added = mix_on(&stream, &sum, &made, 1, 0);
                (None, i64::from(added.is_ok()))
            }
        };
        let ends = move || (Some(capturing.end().unwrap()), 0);
        let tasks: [Task; 2] = [Box::new(ends), Box::new(uses)];
        let mut done = together(tasks);
        let graph = done[0].0.take().unwrap();
        assert_eq!(value_of(&stream, &sum), 0);
        graph.replay(&stream).unwrap();
        assert_eq!(value_of(&stream, &sum), done[1].1);
    });
}

/// A second stream joins the capture, uses memory of the first and drops it, while the first
/// allocates more and may end the capture.
#[test]
fn memory_dropped_in_a_capture_is_used_again_after_its_uses() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let [stream, joins] = [(); 2].map(|()| stream(&runtime));
        let sums = [(); 2].map(|()| device_memory(&stream, &runtime, 0));
        let zero = device_memory(&stream, &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
        let made = Storage::device(&runtime, BYTES, &stream).unwrap();
        mix_on(&stream, &made, &zero, 0, 1).unwrap();
        let event = Event::default();
        event.record(&stream).unwrap();
        let joined = {
            let (joins, sum) = (joins.clone(), sums[1].clone());
            move || {
                let added = match joins.wait_event(&event) {
                    Ok(()) => mix_on(&joins, &sum, &made, 1, 0),
                    Err(error) => Err(error.into()),
                };
                drop(made);
                (None, i64::from(added.is_ok()))
            }
        };
        let goes_on = {
            let (runtime, stream) = (runtime.clone(), stream.clone());
            let (sum, zero) = (sums[0].clone(), zero.clone());
            move || {
                for number in [0x10, 0x100] {
                    let made = Storage::device(&runtime, BYTES, &stream).unwrap();
                    mix_on(&stream, &made, &zero, 0, number).unwrap();
                    mix_on(&stream, &sum, &made, 1, 0).unwrap();
                }
                (Some(capturing.end().unwrap()), 0)
            }
        };
        let tasks: [Task; 2] = [Box::new(joined), Box::new(goes_on)];
        drop((runtime, pool));
        let mut done = together(tasks);
        let graph = done[1].0.take().unwrap();
        for round in 1..=2 {
            graph.replay(&joins).unwrap();
            assert_eq!(value_of(&joins, &sums[0]), round * 0x110);
            assert_eq!(value_of(&joins, &sums[1]), round * done[0].1);
        }
        drop((graph, sums, zero, stream, joins));
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// A thread allocates memory while another thread begins and ends a capture of the same stream.
/// Memory that does not belong to the capture must not overlap memory that replays of an earlier
/// graph of the pool write.
#[test]
fn memory_allocated_outside_a_capture_is_not_written_by_replays() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let [stream, other] = [(); 2].map(|()| stream(&runtime));
        let zero = device_memory(&stream, &runtime, 0);
        let pool = GraphPool::new(gpu(&runtime));
        let capture = {
            let (runtime, stream, zero) = (runtime.clone(), stream.clone(), zero.clone());
            move || {
                let capturing = Capturing::begin(&runtime, &stream, &pool).unwrap();
                let made = Storage::device(&runtime, BYTES, &stream).unwrap();
                mix_on(&stream, &made, &zero, 0, 7).unwrap();
                drop(made);
                capturing.end().unwrap()
            }
        };
        let graph = capture();
        let asks = {
            let (runtime, stream) = (runtime.clone(), stream.clone());
            move || (None, Some(Storage::device(&runtime, BYTES, &stream).unwrap()))
        };
        let captures = move || (Some(capture()), None);
        let tasks: [Box<dyn FnOnce() -> (Option<Graph>, Option<Storage>) + Send>; 2] =
            [Box::new(captures), Box::new(asks)];
        let mut done = together(tasks);
        let storage = done[1].1.take().unwrap();
        match mix_on(&other, &storage, &zero, 0, 5) {
            Ok(()) => {
                graph.replay(&stream).unwrap();
                assert_eq!(value_of(&other, &storage), 5);
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::NotReplayed), "{error}"),
        }
    });
}
