//! Events that several threads record, wait for and query at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::rand::{RngCore, thread_rng};
use warpline_stream::{Devices, ErrorKind, Event, Stream};

use crate::fake::FakeDriver;
use crate::{RunLog, Task, check, fake_devices, streams, task, together};

/// Returns a thread that submits operations, tagged by their numbers, and records the event after
/// each. `count` is the number of records so far.
fn recorder(stream: &Stream, event: &Event, ran: &RunLog, count: &Arc<AtomicU64>) -> Task {
    let (stream, event, ran) = (stream.clone(), event.clone(), ran.clone());
    let count = Arc::clone(count);
    task(move || {
        for tag in 1..=3 {
            assert_eq!(ran.work(&stream, tag), tag);
            event.record(&stream).unwrap();
            count.store(tag, Ordering::SeqCst);
        }
    })
}

#[test]
fn a_wait_covers_all_records_before_it() {
    check(|| {
        let devices = fake_devices(1);
        let [stream, waits] = streams(&devices);
        let (event, ran, count) = (Event::default(), RunLog::default(), Arc::default());
        let records = recorder(&stream, &event, &ran, &count);
        let thread = {
            let ran = ran.clone();
            move || {
                for tag in [10, 20] {
                    let before = count.load(Ordering::SeqCst);
                    event.wait(&waits).unwrap();
                    let claimed = (1..=3).rfind(|op| waits.is_ordered_after(&stream, *op).unwrap());
                    assert!(claimed >= (before > 0).then_some(before));
                    ran.work(&waits, tag);
                    waits.synchronize().unwrap();
                    claimed.inspect(|op| ran.assert_order(*op, tag));
                }
            }
        };
        together([records, task(thread)]);
    });
}

#[test]
fn a_wait_claims_the_record_that_it_waits_for() {
    check(|| {
        let driver = FakeDriver::new(1, 0);
        let devices = Devices::new(driver.clone()).unwrap();
        let [waits, first, second] = streams(&devices);
        let (event, ran) = (Event::default(), RunLog::default());
        let recorded = [(first, 1), (second, 2)];
        for (stream, tag) in &recorded {
            ran.work(stream, *tag);
        }
        event.record(&recorded[0].0).unwrap();
        let records = recorded.clone().map(|(stream, _)| {
            let event = event.clone();
            task(move || event.record(&stream).unwrap())
        });
        let thread = move || {
            event.wait(&waits).unwrap();
            let after = |stream| waits.is_ordered_after(stream, 1).unwrap();
            let claims = recorded.each_ref().map(|(stream, tag)| after(stream).then_some(*tag));
            assert!(claims.iter().flatten().count() > 0);
            ran.work(&waits, 0);
            // The record of one stream completes long before that of the other stream.
            let early = &recorded[thread_rng().next_u64() as usize % 2].0;
            driver.run_alone(early.raw().handle());
            driver.run_alone(waits.raw().handle());
            waits.synchronize().unwrap();
            claims.into_iter().flatten().for_each(|tag| ran.assert_order(tag, 0));
        };
        together(records.into_iter().chain([task(thread)]));
    });
}

#[test]
fn work_that_an_event_has_seen_complete_has_run() {
    check(|| {
        let devices = fake_devices(1);
        let [stream] = streams(&devices);
        let (event, ran, count) = (Event::default(), RunLog::default(), Arc::default());
        let records = recorder(&stream, &event, &ran, &count);
        let asks = |ask: fn(&Event) -> bool| {
            let (stream, event, ran) = (stream.clone(), event.clone(), ran.clone());
            let count = Arc::clone(&count);
            task(move || {
                for _ in 0..2 {
                    let before = count.load(Ordering::SeqCst);
                    let done = ask(&event);
                    assert!(!done || before == 0 || ran.has(before));
                    ran.assert_known(&stream);
                }
            })
        };
        let query = |event: &Event| event.query().unwrap();
        let synchronize = |event: &Event| event.synchronize().is_ok();
        together([records, asks(query), asks(synchronize)]);
    });
}

#[test]
fn the_first_record_determines_the_device() {
    check(|| {
        let devices = fake_devices(2);
        let event = Event::default();
        let recorded = Arc::new(AtomicU64::new(0));
        together([0, 1].map(|device| {
            let stream = devices.get(device).unwrap().exclusive_stream(0).unwrap();
            let (event, recorded) = (event.clone(), Arc::clone(&recorded));
            task(move || match event.record(&stream) {
                Ok(()) => {
                    recorded.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(event.device_index(), Some(device));
                }
                Err(error) => match error.kind() {
                    ErrorKind::WrongDevice { expected, found, .. } => {
                        assert_eq!((*expected, *found), (1 - device, device));
                    }
                    _ => panic!("{error}"),
                },
            })
        }));
        assert_eq!(recorded.load(Ordering::SeqCst), 1);
    });
}
