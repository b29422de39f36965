//! Several threads submit work to the same streams. Work that the host believes complete has run.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use warpline_stream::{Devices, STREAMS_PER_POOL, Stream};

use crate::{RunLog, check, fake_devices, streams, task, together};

#[test]
fn numbers_are_the_order_in_the_stream() {
    check(|| {
        let devices = fake_devices(1);
        let [stream] = streams(&devices);
        let (ran, numbered) = (RunLog::default(), Arc::new(Mutex::new(Vec::new())));
        together([0, 1, 2].map(|thread| {
            let (stream, ran, numbered) = (stream.clone(), ran.clone(), Arc::clone(&numbered));
            task(move || {
                for tag in [10 * thread, 10 * thread + 1] {
                    let op = ran.work(&stream, tag);
                    numbered.lock().unwrap().push((op, tag));
                }
            })
        }));
        stream.synchronize().unwrap();
        let mut numbered = numbered.lock().unwrap().clone();
        numbered.sort_unstable();
        assert!(numbered.iter().map(|(op, _)| *op).eq(1..=6), "{numbered:?}");
        assert!(numbered.iter().map(|(_, tag)| *tag).eq(ran.list()), "{numbered:?}");
    });
}

/// Runs three threads. The first thread submits work to a stream and makes another stream wait for it. The second
/// thread calls `observe`. The second and the third thread check that the operations known to be complete have run.
fn check_observed(observe: impl Fn(&Devices, &Stream, &Stream) + Send + Sync + Clone + 'static) {
    check(move || {
        let devices = fake_devices(1);
        let [stream, waits] = streams(&devices);
        let ran = RunLog::default();
        let gives = {
            let (stream, waits, ran) = (stream.clone(), waits.clone(), ran.clone());
            move || {
                for tag in 1..=3 {
                    let op = ran.work(&stream, tag);
                    assert_eq!(op, tag);
                    waits.wait_for(&stream, op).unwrap();
                }
            }
        };
        let looks = {
            let (observe, devices, ran) = (observe.clone(), devices.clone(), ran.clone());
            let stream = stream.clone();
            move || {
                for _ in 0..2 {
                    observe(&devices, &stream, &waits);
                    ran.assert_known(&stream);
                }
            }
        };
        let watches = move || (0..3).for_each(|_| ran.assert_known(&stream));
        together([task(gives), task(looks), task(watches)]);
    });
}

#[test]
fn work_before_synchronize_has_run() {
    check_observed(|_, stream, _| stream.synchronize().unwrap());
}

#[test]
fn work_that_query_reports_complete_has_run() {
    check_observed(|_, stream, _| _ = stream.query().unwrap());
}

#[test]
fn work_before_synchronize_of_the_device_has_run() {
    check_observed(|devices, _, _| devices.get(0).unwrap().synchronize().unwrap());
}

#[test]
fn an_operation_that_host_wait_awaited_has_run() {
    check_observed(|_, stream, _| stream.host_wait(stream.last_op()).unwrap());
}

#[test]
fn an_operation_that_is_done_reports_has_run() {
    check_observed(|_, stream, _| _ = stream.is_done(stream.last_op()).unwrap());
}

#[test]
fn work_before_completed_work_has_run() {
    check_observed(|_, _, waits| waits.synchronize().unwrap());
    check_observed(|_, _, waits| _ = waits.is_done(waits.last_op()).unwrap());
}

#[test]
fn a_pool_hands_out_each_stream_once() {
    check(|| {
        let devices = fake_devices(1);
        let ids = Arc::new(Mutex::new(Vec::new()));
        let take = |devices: &Devices| devices.get(0).unwrap().stream_from_pool(0).unwrap().id();
        together([2, 1].map(|count| {
            let (devices, ids) = (devices.clone(), Arc::clone(&ids));
            task(move || {
                for _ in 0..count {
                    let id = take(&devices);
                    ids.lock().unwrap().push(id);
                }
            })
        }));
        let mut ids = ids.lock().unwrap().clone();
        ids.extend((ids.len()..STREAMS_PER_POOL).map(|_| take(&devices)));
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), STREAMS_PER_POOL);
        assert!(ids.contains(&take(&devices)), "the 33rd stream is the first");
    });
}

#[test]
fn a_device_knows_all_streams_created_concurrently() {
    check(|| {
        let devices = fake_devices(1);
        let made = Arc::new(Mutex::new(Vec::new()));
        together([1, 2].map(|tag| {
            let (devices, made) = (devices.clone(), Arc::clone(&made));
            task(move || {
                let [stream] = streams(&devices);
                let op = RunLog::default().work(&stream, tag);
                made.lock().unwrap().push((stream, op));
            })
        }));
        devices.get(0).unwrap().synchronize().unwrap();
        assert!(made.lock().unwrap().iter().all(|(stream, op)| stream.is_known_done(*op)));
    });
}
