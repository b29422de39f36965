//! An event that one thread records while others wait for it or ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_stream::{Event, Stream, StreamError};

use crate::{Ran, Task, check, streams, task, together, world};

/// A thread that gives a stream work tagged by its number and records the event after each. The
/// counter says how many records there were.
fn recorder(stream: &Stream, event: &Event, ran: &Ran, count: &Arc<AtomicU64>) -> Task {
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
        let devices = world(1);
        let [stream, waits] = streams(&devices);
        let (event, ran, count) = (Event::default(), Ran::default(), Arc::default());
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
fn no_order_is_claimed_that_a_record_on_another_stream_undid() {
    check(|| {
        let devices = world(1);
        let [first, second, waits] = streams(&devices);
        let (event, ran) = (Event::default(), Ran::default());
        let record = |stream: &Stream, tags: std::ops::Range<u64>| {
            let (stream, event, ran) = (stream.clone(), event.clone(), ran.clone());
            task(move || {
                for tag in tags {
                    ran.work(&stream, tag);
                    event.record(&stream).unwrap();
                }
            })
        };
        let thread = {
            let (first, second, event, ran) =
                (first.clone(), second.clone(), event.clone(), ran.clone());
            move || {
                event.wait(&waits).unwrap();
                let after = |stream, op| waits.is_ordered_after(stream, op).unwrap();
                let claims = [(&first, 1, 11), (&first, 2, 12), (&second, 1, 21)];
                let claims = claims.map(|(stream, op, tag)| after(stream, op).then_some(tag));
                ran.work(&waits, 0);
                waits.synchronize().unwrap();
                claims.into_iter().flatten().for_each(|tag| ran.assert_order(tag, 0));
            }
        };
        together([record(&first, 11..13), record(&second, 21..22), task(thread)]);
    });
}

#[test]
fn what_an_event_saw_done_has_run() {
    check(|| {
        let devices = world(1);
        let [stream] = streams(&devices);
        let (event, ran, count) = (Event::default(), Ran::default(), Arc::default());
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
fn the_first_record_settles_the_device() {
    check(|| {
        let devices = world(2);
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
                Err(StreamError::WrongDevice { expected, found, .. }) => {
                    assert_eq!((expected, found), (1 - device, device));
                }
                Err(other) => panic!("{other}"),
            })
        }));
        assert_eq!(recorded.load(Ordering::SeqCst), 1);
    });
}
