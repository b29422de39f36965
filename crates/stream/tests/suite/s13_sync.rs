//! S13: synchronize, wait_stream, wait_event, record_event, query, elapsed_time. S7: work runs
//! asynchronously.

use std::sync::Arc;

use warpline_stream::{Devices, Error, ErrorKind, Event, EventFlags, ResultExt};

use crate::support::{RunClock, TOKEN, counted, on_devices, schedules, simulated};

on_devices! {
    s07_work_is_done_once_waited_for, gpu_s07_work_is_done_once_waited_for, work_is_done;
    s13_wait_stream, gpu_s13_wait_stream, wait_stream;
    s13_wait_event, gpu_s13_wait_event, wait_event;
    s13_wait_for, gpu_s13_wait_for, wait_for;
    s13_query, gpu_s13_query, query;
    s13_events_are_made_when_recorded, gpu_s13_events_are_made_when_recorded, lazily_made;
    s13_elapsed_time, gpu_s13_elapsed_time, elapsed_time;
    s13_elapsed_time_errors, gpu_s13_elapsed_time_errors, elapsed_time_errors;
    s13_an_event_stays_on_its_device, gpu_s13_an_event_stays_on_its_device, event_device;
}

fn work_is_done(devices: &Devices) {
    let clock = RunClock::default();
    for device in devices {
        let stream = device.stream_from_pool(0).unwrap();
        let (by_stream, _) = clock.probe(&stream);
        stream.synchronize().unwrap();
        assert!(by_stream.ran());

        let (by_event, _) = clock.probe(&stream);
        stream.record_event(None).unwrap().synchronize().unwrap();
        assert!(by_event.ran());

        let (by_op, op) = clock.probe(&stream);
        stream.host_wait(op).unwrap();
        assert!(by_op.ran() && stream.is_done(op).unwrap());

        let other = device.exclusive_stream(0).unwrap();
        let (a, b) = (clock.probe(&stream).0, clock.probe(&other).0);
        device.synchronize().unwrap();
        assert!(a.ran() && b.ran());
        assert!(stream.is_done(stream.last_op()).unwrap());
        assert!(other.is_ordered_after(&stream, stream.last_op()).unwrap());
    }
}

fn wait_stream(devices: &Devices) {
    let clock = RunClock::default();
    for producer in devices {
        for consumer in devices {
            let (from, to) =
                (producer.stream_from_pool(0).unwrap(), consumer.stream_from_pool(-1).unwrap());
            let before = clock.probe(&from).0;
            to.wait_stream(&from).unwrap();
            let after = clock.probe(&to).0;
            to.synchronize().unwrap();
            assert!(before.ran_before(&after));
        }
    }
}

/// Ports PyTorch's test `events_wait`.
fn wait_event(devices: &Devices) {
    let clock = RunClock::default();
    for producer in devices {
        for consumer in devices {
            let (from, to) =
                (producer.stream_from_pool(0).unwrap(), consumer.stream_from_pool(0).unwrap());
            let event = Event::default();
            // This wait has no effect, because the event was never recorded.
            to.wait_event(&event).unwrap();
            let first = clock.probe(&from).0;
            event.record(&from).unwrap();
            to.wait_event(&event).unwrap();
            // A later record does not change an enqueued wait.
            from.record_event(Some(&event)).unwrap();
            let second = clock.probe(&to).0;
            to.synchronize().unwrap();
            assert!(first.ran_before(&second));
            event.synchronize().unwrap();
            assert!(event.query().unwrap());
        }
    }
}

fn wait_for(devices: &Devices) {
    let clock = RunClock::default();
    for producer in devices {
        for consumer in devices {
            let (from, to) =
                (producer.stream_from_pool(0).unwrap(), consumer.stream_from_pool(0).unwrap());
            for _ in 0..3 {
                let (before, op) = clock.probe(&from);
                to.wait_for(&from, op).unwrap();
                assert!(to.is_ordered_after(&from, op).unwrap());
                let after = clock.probe(&to).0;
                to.synchronize().unwrap();
                assert!(before.ran_before(&after));
            }
        }
    }
}

/// Ports PyTorch's tests `streams_multi_gpu_query` and `events_multi_gpu_query`.
fn query(devices: &Devices) {
    let clock = RunClock::default();
    for device in devices {
        let stream = device.stream_from_pool(0).unwrap();
        assert!(stream.query().unwrap());
        let (probe, op) = clock.probe(&stream);
        let event = stream.record_event(None).unwrap();
        // Repeated polls return `true` in the end, but only when the work is complete.
        while !event.query().unwrap() {
            std::thread::yield_now();
        }
        assert!(probe.ran() && stream.is_done(op).unwrap());
        let (probe, _) = clock.probe(&stream);
        while !stream.query().unwrap() {
            std::thread::yield_now();
        }
        assert!(probe.ran());
        let (probe, op) = clock.probe(&stream);
        while !stream.is_done(op).unwrap() {
            std::thread::yield_now();
        }
        assert!(probe.ran());
    }
}

/// Ports PyTorch's tests `events` and `stream_event_device`.
fn lazily_made(devices: &Devices) {
    for device in devices {
        let event = Event::new(EventFlags::new().enable_timing(true));
        assert!(event.query().unwrap(), "an unrecorded event is complete");
        event.synchronize().unwrap();
        assert_eq!(event.device_index(), None);
        let clone = event.clone();
        event.record(device.default_stream()).unwrap();
        assert_eq!(clone.device_index(), Some(device.index()));
        clone.synchronize().unwrap();
    }
}

/// Ports PyTorch's tests `events` and `events_multi_gpu_elapsed_time`.
fn elapsed_time(devices: &Devices) {
    let clock = RunClock::default();
    for device in devices {
        let stream = device.stream_from_pool(0).unwrap();
        let (start, end) = (
            Event::new(EventFlags::new().enable_timing(true)),
            Event::new(EventFlags::new().enable_timing(true)),
        );
        start.record(&stream).unwrap();
        clock.probe(&stream);
        end.record(&stream).unwrap();
        end.synchronize().unwrap();
        assert!(start.elapsed_time(&end).unwrap() > 0.0);
        assert_eq!(start.elapsed_time(&start).unwrap(), 0.0);
    }
}

/// Ports PyTorch's test `events_elapsedtime`.
fn elapsed_time_errors(devices: &Devices) {
    let stream = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    let timed = || {
        let event = Event::new(EventFlags::new().enable_timing(true));
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
        event
    };
    let untimed = stream.record_event(None).unwrap();
    let error = timed().elapsed_time(&untimed).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoTiming), "{error}");
    assert!(matches!(untimed.elapsed_time(&timed()).kind(), Some(ErrorKind::NoTiming)));
    let error =
        timed().elapsed_time(&Event::new(EventFlags::new().enable_timing(true))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::EventNotRecorded), "{error}");
    if devices.count() > 1 {
        let elsewhere = Event::new(EventFlags::new().enable_timing(true));
        elsewhere.record(devices.get(1).unwrap().default_stream()).unwrap();
        let error = timed().elapsed_time(&elsewhere).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WrongDevice { .. }), "{error}");
    }
}

#[test]
fn s13_elapsed_time_of_unfinished_work_is_an_error() {
    // A poll of the fake driver runs at most three operations.
    let (_, devices) = counted(1, 0);
    let stream = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    let (start, end) = (
        Event::new(EventFlags::new().enable_timing(true)),
        Event::new(EventFlags::new().enable_timing(true)),
    );
    start.record(&stream).unwrap();
    let clock = RunClock::default();
    (0..100).for_each(|_| drop(clock.probe(&stream)));
    end.record(&stream).unwrap();
    let error = start.elapsed_time(&end).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::EventNotFinished), "{error}");
}

#[test]
fn errors_name_the_operation_and_the_line_of_the_call() {
    let at = |error: Error, name: &str, line: u32| {
        let (text, location) = (error.to_string(), error.location().unwrap());
        assert_eq!((location.file(), location.line()), (file!(), line), "{text}");
        assert!(text.starts_with(&format!("{name}: ")), "{text}");
        assert!(text.ends_with(&format!("(called at {location})")), "{text}");
    };
    let (_, devices) = counted(2, 0);
    let (_, others) = counted(1, 0);
    let stream = |device: usize| devices.get(device).unwrap().stream_from_pool(0).unwrap();
    let (here, there) = (stream(0), stream(1));
    let other = others.get(0).unwrap().stream_from_pool(0).unwrap();
    let (plain, timed) = (Event::new(()), Event::new(EventFlags::new().enable_timing(true)));
    at(timed.elapsed_time(&plain).unwrap_err(), "elapsed_time", line!());
    at(timed.elapsed_time(&timed).unwrap_err(), "elapsed_time", line!());
    plain.record(&here).unwrap();
    at(plain.record(&there).unwrap_err(), "record", line!());
    at(there.record_event(Some(&plain)).unwrap_err(), "record_event", line!());
    at(plain.wait(&other).unwrap_err(), "wait", line!());
    at(other.wait_event(&plain).unwrap_err(), "wait_event", line!());
    at(other.wait_stream(&here).unwrap_err(), "wait_stream", line!());
    at(others.set_current_stream(&here).unwrap_err(), "set_current_stream", line!());
    at(others.with_stream(&here, || ()).unwrap_err(), "with_stream", line!());
}

fn event_device(devices: &Devices) {
    let event = devices.get(0).unwrap().default_stream().record_event(None).unwrap();
    for device in devices.iter().skip(1) {
        let error = event.record(device.default_stream()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WrongDevice { .. }), "{error}");
        assert_eq!(event.device_index(), Some(0));
    }
    event.record(&devices.get(0).unwrap().stream_from_pool(0).unwrap()).unwrap();
}

#[test]
fn s13_events_are_pooled() {
    let (driver, devices) = counted(1, 0);
    let stream = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    for _ in 0..10 {
        stream.record_event(None).unwrap();
    }
    assert_eq!(driver.calls("event_create"), 1);
    // An event in use is not reused.
    let held = stream.record_event(None).unwrap();
    stream.record_event(None).unwrap();
    assert_eq!(driver.calls("event_create"), 2);
    drop(held);
    // Events with other flags have a list of their own. Interprocess events are not pooled.
    let timed = Event::new(EventFlags::new().enable_timing(true));
    timed.record(&stream).unwrap();
    assert_eq!(driver.calls("event_create"), 3);
    drop(timed);
    let shared = Event::new(EventFlags::new().interprocess(true));
    shared.record(&stream).unwrap();
    assert_eq!(driver.calls("event_destroy"), 0);
    drop(shared);
    assert_eq!(driver.calls("event_destroy"), 1);
}

/// A thread may still use a twin after another thread has ended the capture.
#[test]
fn the_twin_of_an_ended_capture_is_refused() {
    for seed in 0..schedules() {
        let driver = simulated(1, seed)[1].clone();
        let devices = Devices::new(driver).expect("devices");
        let device = devices.get(0).expect("device");
        let [stream, other] = [0, 0].map(|p| device.exclusive_stream(p).expect("stream"));
        let capture = stream.begin_capture(Arc::new(()), TOKEN).expect("begin");
        let captured = stream.captured().expect("captured");
        assert!(captured.twin().is_capturing());
        captured.twin().record_event(None).expect("part of the capture");
        capture.end(true).expect("end");
        assert!(!captured.twin().is_capturing() && !stream.is_capturing());
        let late = captured.twin().record_event(None);
        assert!(matches!(late.kind(), Some(ErrorKind::NotCapturing)), "{late:?}, seed {seed}");
        // The stream itself stays usable.
        other.wait_event(&stream.record_event(None).expect("record")).expect("wait");
    }
}
