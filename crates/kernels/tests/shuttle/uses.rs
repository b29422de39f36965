//! Tests of the record of a storage's last use: several threads run ops on shared storages.

use warpline_runtime::Storage;

use super::program::{Shared, run};
use super::*;

/// Runs ops on three device storages and `pinned` page-locked ones, in several threads. Each thread
/// uses a random one of `threads` streams, so threads may share a stream.
fn ops_of_threads(threads: usize, steps: usize, pinned: usize) {
    let (sim, runtime) = simulated_device();
    let streams: Vec<Stream> = (0..threads).map(|_| stream(&runtime)).collect();
    let mut storages = vec![
        device_memory(&streams[0], &runtime, 1),
        device_memory(&streams[0], &runtime, 2),
        device_memory(&streams[1], &runtime, 3),
    ];
    for value in 0..pinned {
        storages.push(host_memory(Storage::pinned(&runtime, BYTES).unwrap(), 4 + value as i64));
    }
    drop(runtime);
    let before = (1..=storages.len() as i64).collect();
    let shared = Shared { storages, graphs: Vec::new() };
    let threads = (0..threads)
        .map(|_| {
            let steps = (0..steps).map(|_| shared.random_step()).collect();
            (streams[random(streams.len())].clone(), steps)
        })
        .collect();
    drop(streams);
    run(shared, before, threads);
    assert!(sim.usage().all_released(), "{:?}", sim.usage());
}

#[test]
fn ops_on_shared_storages_have_a_sequential_order() {
    check(|| ops_of_threads(3, 3, 0));
}

#[test]
fn ops_and_host_code_on_shared_storages_have_a_sequential_order() {
    check(|| ops_of_threads(2, 5, 2));
}

/// A storage is dropped while its last use is in flight on another stream. The next use of its
/// memory is ordered after this use.
#[test]
fn memory_of_dropped_storages_is_not_reused_too_early() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let tasks = (1..=3).map(|number| {
            let runtime = runtime.clone();
            move || {
                let [own, other] = [(); 2].map(|()| stream(&runtime));
                for round in 0..2 {
                    let value = number * 10 + round;
                    let sum = device_memory(&other, &runtime, 0);
                    let dropped = device_memory(&own, &runtime, value);
                    mix_on(&other, &sum, &dropped, 1, 0).unwrap();
                    drop(dropped);
                    let next = device_memory(&own, &runtime, 99);
                    assert_eq!(value_of(&other, &sum), value);
                    assert_eq!(value_of(&own, &next), 99);
                }
            }
        });
        together(tasks);
    });
}
