//! Tests of graphs that several threads replay, while other work uses the same memory.

use shuttle::sync::atomic::{AtomicI64, Ordering};
use warpline_runtime::Storage;
use warpline_runtime::graph::{Capturing, GraphPool};

use super::program::{Captured, Shared, Step, run};
use super::*;

/// Captures two graphs of one pool, and replays the first. The first writes storage 2, which the
/// second reads. Storage 2 belongs to the pool; storages 0 and 1 do not.
fn two_graphs(runtime: &Runtime, streams: &[Stream]) -> Shared {
    let mut storages: Vec<Storage> =
        [1, 2].map(|value| device_memory(&streams[0], runtime, value)).into();
    let pool = GraphPool::new(gpu(runtime));
    let stream = pool.stream(gpu(runtime)).unwrap();

    let capturing = Capturing::begin(runtime, stream, &pool).unwrap();
    let made = Storage::device(runtime, BYTES, stream).unwrap();
    mix_on(stream, &made, &storages[0], 0, 11).unwrap();
    let dropped = Storage::device(runtime, BYTES, stream).unwrap();
    mix_on(stream, &dropped, &made, 0, 0).unwrap();
    mix_on(stream, &storages[1], &dropped, 3, 0).unwrap();
    drop(dropped);
    let graph = capturing.end().unwrap();
    let first = Captured { graph, does: vec![(2, 0, 0, 11), (1, 2, 3, 0)] };

    // The second capture reuses the memory of `dropped`.
    let capturing = Capturing::begin(runtime, stream, &pool).unwrap();
    let other = Storage::device(runtime, BYTES, stream).unwrap();
    mix_on(stream, &other, &storages[1], 0, 5).unwrap();
    mix_on(stream, &storages[0], &other, 0, 0).unwrap();
    mix_on(stream, &storages[0], &made, 7, 1).unwrap();
    let graph = capturing.end().unwrap();
    drop(other);
    let second = Captured { graph, does: vec![(0, 1, 0, 5), (0, 2, 7, 1)] };

    first.graph.replay(&streams[0]).unwrap();
    storages.push(made);
    Shared { storages, graphs: vec![first, second] }
}

#[test]
fn replays_by_threads_have_a_sequential_order() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let streams = [(); 3].map(|()| stream(&runtime));
        let shared = two_graphs(&runtime, &streams);
        drop(runtime);
        // The values after the replay in `two_graphs`. Before it, the first two storages held 1 and
        // 2.
        let made = 1 + 11;
        let before = vec![1, 2 * 3 + made, made];
        let steps = [
            vec![Step::Replay(0), Step::Replay(1), Step::Read(0)],
            vec![Step::Replay(1), Step::Replay(0), Step::Read(1)],
            [(); 3].map(|()| shared.random_step()).into(),
        ];
        run(shared, before, streams.into_iter().zip(steps).collect());
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// All replays of a graph on one stream share one record of uses.
#[test]
fn threads_replay_one_graph_on_one_stream() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let stream = stream(&runtime);
        let streams = [(); 2].map(|()| stream.clone());
        let shared = two_graphs(&runtime, &streams);
        drop((runtime, stream));
        let before = vec![1, 2 * 3 + 12, 12];
        let steps = [
            vec![Step::Replay(0), Step::Replay(0), Step::Read(1)],
            vec![Step::Replay(0), shared.random_step(), Step::Replay(0)],
        ];
        run(shared, before, streams.into_iter().zip(steps).collect());
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

/// One thread drops memory of a graph while another replays the graph.
#[test]
fn a_result_is_dropped_while_its_graph_is_replayed() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let streams = [(); 2].map(|()| stream(&runtime));
        let Shared { mut storages, graphs } = two_graphs(&runtime, &streams);
        let made = storages.pop().unwrap();
        let result = storages.remove(1);
        let input = storages.remove(0);
        let zero = device_memory(&streams[0], &runtime, 0);
        let total = device_memory(&streams[1], &runtime, 0);
        drop((runtime, storages));
        let [replays, reads] = streams.clone();
        // The number of replays that have begun, and the number that have been enqueued.
        let counts = Arc::new([AtomicI64::new(0), AtomicI64::new(0)]);
        let tasks: [Box<dyn FnOnce() -> [i64; 2] + Send>; 2] = [
            {
                let counts = Arc::clone(&counts);
                Box::new(move || {
                    for _ in 0..2 {
                        counts[0].fetch_add(1, Ordering::SeqCst);
                        // Increase the input by one before each replay.
                        mix_on(&replays, &input, &zero, 1, 1).unwrap();
                        graphs[0].graph.replay(&replays).unwrap();
                        counts[1].fetch_add(1, Ordering::SeqCst);
                    }
                    [0, 2]
                })
            },
            {
                let total = total.clone();
                Box::new(move || {
                    let before = counts[1].load(Ordering::SeqCst);
                    mix_on(&reads, &total, &made, 1, 0).unwrap();
                    drop(made);
                    [before, counts[0].load(Ordering::SeqCst)]
                })
            },
        ];
        let [least, most] = together(tasks)[1];
        // The result was 18. Each replay multiplies it by 3 and adds the graph's memory, 13 and
        // then 14. Read the result first, so that only the waits of this read make the other stream
        // run.
        assert_eq!(value_of(&streams[0], &result), (18 * 3 + 13) * 3 + 14);
        let read = value_of(&streams[1], &total) - 12;
        assert!((least..=most).contains(&read), "{read} replays, not {least} to {most}");
        drop((total, result, streams));
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}
