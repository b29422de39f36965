//! Captures that begin and end while other threads submit work to the same streams.

use std::sync::Arc;

use warpline_stream::{CaptureGuard, Devices, Error, ErrorKind, Event, ResultExt as _, Stream};

use crate::fake::FakeDriver;
use crate::{RunLog, TOKEN, check, streams, task, together};

/// Creates a fake driver and two streams. The driver shows whether a stream is captured.
fn driver_and_streams() -> (Arc<FakeDriver>, [Stream; 2]) {
    let driver = FakeDriver::new(1, 0);
    let devices = Devices::new(driver.clone()).unwrap();
    (driver, streams(&devices))
}

fn begin(stream: &Stream) -> CaptureGuard {
    stream.begin_capture(Arc::new(()), TOKEN).unwrap()
}

/// Asserts that a stream is not captured, and that it has numbered all work that ran and no other
/// work. `ran` must log all work submitted to the stream.
#[track_caller]
fn assert_numbered(driver: &FakeDriver, stream: &Stream, ran: &RunLog) {
    let captured = [stream.is_capturing(), driver.is_capturing(stream.raw().handle())];
    assert_eq!(captured, [false, false]);
    ran.work(stream, 99);
    stream.synchronize().unwrap();
    assert!(ran.has(99));
    assert_eq!(stream.last_op() as usize, ran.list().len(), "{:?}", ran.list());
}

#[test]
fn work_is_captured_or_runs_and_is_numbered() {
    check(|| {
        let (driver, [stream, _]) = driver_and_streams();
        let ran = RunLog::default();
        let captures = {
            let (stream, ran) = (stream.clone(), ran.clone());
            move || {
                let capture = begin(&stream);
                ran.work(&stream, 10);
                capture.end(true).unwrap();
            }
        };
        let gives = {
            let (stream, ran) = (stream.clone(), ran.clone());
            move || {
                for tag in 1..=2 {
                    ran.work(&stream, tag);
                }
            }
        };
        together([task(captures), task(gives)]);
        assert!(!ran.has(10));
        assert_numbered(&driver, &stream, &ran);
    });
}

#[test]
fn work_for_an_ended_capture_is_not_enqueued() {
    check(|| {
        let (driver, [stream, _]) = driver_and_streams();
        let capture = begin(&stream);
        let captured = stream.captured().unwrap();
        let ends = { move || drop(capture.end(true).unwrap()) };
        let gives = {
            let driver = Arc::clone(&driver);
            move || {
                let enqueue = |handle| {
                    assert!(driver.is_capturing(handle));
                    shuttle::thread::yield_now();
                    assert!(driver.is_capturing(handle));
                    Ok::<_, Error>(())
                };
                let given = captured.submit(TOKEN, enqueue);
                assert!(matches!(given.kind(), None | Some(ErrorKind::NotCapturing)));
            }
        };
        together([task(ends), task(gives)]);
        assert_numbered(&driver, &stream, &RunLog::default());
    });
}

#[test]
fn a_stream_that_joins_a_capture_leaves_it_at_its_end() {
    check(|| {
        let (driver, [stream, joins]) = driver_and_streams();
        let (ran, event) = (RunLog::default(), Event::default());
        let capture = begin(&stream);
        event.record(&stream).unwrap();
        let ends = { move || drop(capture.end(true).unwrap()) };
        // The thread that comes second finds that the stream has joined the capture, or that the
        // capture has ended.
        let threads = [1, 2].map(|tag| {
            let (joins, event, ran) = (joins.clone(), event.clone(), ran.clone());
            task(move || {
                let waited = joins.wait_event(&event);
                assert!(matches!(waited.kind(), None | Some(ErrorKind::CapturedEvent)));
                ran.work(&joins, tag);
            })
        });
        together(threads.into_iter().chain([task(ends)]));
        assert_numbered(&driver, &joins, &ran);
        assert_numbered(&driver, &stream, &RunLog::default());
    });
}

#[test]
fn two_threads_make_a_stream_join_a_capture() {
    check(|| {
        let (driver, [stream, joins]) = driver_and_streams();
        let capture = begin(&stream);
        together([0, 1].map(|_| {
            let joins = joins.clone();
            // Each thread has its own event, because threads that wait for the same event exclude
            // each other.
            let event = stream.record_event(None).unwrap();
            task(move || joins.wait_event(&event).unwrap())
        }));
        assert!(joins.is_capturing());
        capture.end(true).unwrap();
        assert_numbered(&driver, &joins, &RunLog::default());
    });
}

#[test]
fn a_capture_ends_on_the_stream_that_it_began_on() {
    check(|| {
        let (driver, [stream, joins]) = driver_and_streams();
        let captures = {
            let stream = stream.clone();
            move || {
                let capture = begin(&stream);
                capture.end(true).unwrap();
            }
        };
        let thread = {
            let (stream, joins) = (stream.clone(), joins.clone());
            move || {
                let event = stream.record_event(None).unwrap();
                let _ = joins.wait_event(&event);
            }
        };
        together([task(captures), task(thread)]);
        assert!(!driver.is_capturing(joins.raw().handle()) && !joins.is_capturing());
        assert_numbered(&driver, &stream, &RunLog::default());
    });
}

#[test]
fn an_event_knows_whether_it_was_captured() {
    check(|| {
        let (driver, [stream, waits]) = driver_and_streams();
        let ran = RunLog::default();
        let captures = {
            let stream = stream.clone();
            move || {
                let capture = begin(&stream);
                capture.end(true).unwrap();
            }
        };
        let thread = {
            let (waits, ran) = (waits.clone(), ran.clone());
            move || {
                let event = stream.record_event(None).unwrap();
                let _ = waits.wait_event(&event);
                let before = waits.last_op();
                ran.work(&waits, 1);
                waits.last_op() > before
            }
        };
        let captures = shuttle::thread::spawn(captures);
        let numbered = thread();
        captures.join().unwrap();
        waits.synchronize().unwrap();
        assert_eq!(ran.has(1), numbered);
        assert!(!driver.is_capturing(waits.raw().handle()) && !waits.is_capturing());
    });
}
