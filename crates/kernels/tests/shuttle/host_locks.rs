//! Tests of the locks of host memory: threads run CPU ops on shared storages, in any order, and
//! copy them from and to the device.

use warpline_runtime::Storage;

use super::program::{Shared, Step, run};
use super::*;

/// Creates two pageable storages, two page-locked ones, and one on the device.
fn shared(runtime: &Runtime, stream: &Stream) -> Shared {
    let mut storages = Vec::new();
    for value in 1..=2 {
        storages.push(host_memory(Storage::pageable(runtime, BYTES).unwrap(), value));
    }
    for value in 3..=4 {
        storages.push(host_memory(Storage::pinned(runtime, BYTES).unwrap(), value));
    }
    storages.push(device_memory(stream, runtime, 5));
    Shared { storages, graphs: Vec::new() }
}

#[test]
fn host_code_and_copies_have_a_sequential_order() {
    check(|| {
        let (sim, runtime) = simulated_device();
        let streams = [(); 3].map(|()| stream(&runtime));
        let shared = shared(&runtime, &streams[0]);
        drop(runtime);
        let threads = streams.map(|stream| (stream, [(); 3].map(|()| shared.random_step()).into()));
        run(shared, (1..=5).collect(), threads.into());
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}

#[test]
fn ops_that_lock_storages_in_any_order_do_not_deadlock() {
    check(|| {
        let (_sim, runtime) = simulated_device();
        let streams = [(); 3].map(|()| stream(&runtime));
        let shared = shared(&runtime, &streams[0]);
        let [a, b, c, d, device] = [0, 1, 2, 3, 4];
        let steps = [
            vec![Step::Mix(a, b, 1), Step::Copy(device, c, true), Step::Mix(c, d, 1)],
            vec![Step::Mix(b, c, 2), Step::Copy(a, device, false), Step::Mix(d, a, 2)],
            vec![Step::Mix(c, a, 3), Step::Copy(device, b, false), Step::Mix(a, d, 3)],
        ];
        run(shared, (1..=5).collect(), streams.into_iter().zip(steps).collect());
    });
}
