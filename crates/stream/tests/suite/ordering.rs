//! Tests of the driver calls for ordering, and of the work that a wait covers.

use warpline_stream::{Error, ErrorKind, Event, Stream};

use crate::support::{RunClock, RunProbe, TOKEN, counted, schedules, wait_late, work};

#[test]
fn operations_are_numbered_from_one() {
    let (_, devices) = counted(1, 0);
    let stream = devices.get(0).unwrap().default_stream();
    assert_eq!(stream.last_op(), 0);
    assert_eq!(work(stream, || ()), 1);
    assert_eq!(work(stream, || ()), 2);
    let failed: Result<((), _), Error> = stream.submit(TOKEN, |_| {
        Err(ErrorKind::EventNotRecorded.of("test").at(std::panic::Location::caller()))
    });
    assert!(failed.is_err());
    assert_eq!(stream.last_op(), 2, "a failed submit uses no number");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.submit(TOKEN, |_| -> Result<(), Error> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    assert_eq!(work(stream, || ()), 3, "a panic while enqueueing leaves the stream usable");
}

#[test]
fn a_stream_records_events_only_for_waits_and_after_a_late_wait() {
    let (driver, devices) = counted(2, 0);
    let stream = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    let other = devices.get(1).unwrap().stream_from_pool(0).unwrap();
    let mut last = 0;
    for _ in 0..100 {
        last = work(&stream, || ());
        stream.wait_for(&stream, last).unwrap();
        work(&other, || ());
    }
    assert_eq!(driver.calls("event_record") + driver.calls("stream_wait_event"), 0);
    let records = |f: &dyn Fn()| {
        let before = driver.calls("event_record");
        f();
        driver.calls("event_record") - before
    };
    let enqueue = |count| {
        for _ in 0..count {
            work(&stream, || ());
        }
    };
    // A wait for the last operation records an event after that operation. It also records an event after the waiting
    // stream's last work.
    assert_eq!(records(&|| other.wait_for(&stream, last).unwrap()), 2);
    assert_eq!(records(&|| enqueue(10)), 0);
    // A wait that comes late covers all work so far. The next operations get an event each.
    assert_eq!(records(&|| other.wait_for(&stream, last + 1).unwrap()), 1);
    assert!(other.is_ordered_after(&stream, last + 10).unwrap());
    assert_eq!(records(&|| enqueue(20)), 20);
    assert_eq!(records(&|| other.wait_for(&stream, last + 15).unwrap()), 0);
    assert!(!other.is_ordered_after(&stream, last + 16).unwrap());
    // Without further late waits, the events end.
    assert_eq!(records(&|| enqueue(1000)), 64);
}

/// In each step, a stream enqueues a thousand operations, and then another stream waits for the 990th.
#[test]
fn a_stream_soon_records_the_events_of_late_waits_that_keep_coming() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let [from, to] = [(); 2].map(|()| device.exclusive_stream(0).unwrap());
    // Returns the number of events that a step records, and whether the wait covers no later operations.
    let step = || {
        let before = driver.calls("event_record");
        let ops: Vec<_> = (0..1000).map(|_| work(&from, || ())).collect();
        let records = driver.calls("event_record") - before;
        to.wait_for(&from, ops[989]).unwrap();
        (records, !to.is_ordered_after(&from, ops[990]).unwrap())
    };
    let steps: Vec<_> = (0..20).map(|_| step()).collect();
    let growing = [0, 64, 128, 256, 512, 1000].map(|records| (records, records == 1000));
    assert_eq!(steps[..6], growing);
    assert!(steps[6..].iter().all(|step| *step == (1000, true)), "{steps:?}");
    // Late waits that are far apart cause few records each.
    for _ in 0..3 {
        (0..200_000).for_each(|_| _ = work(&from, || ()));
        step();
        assert_eq!(step().0, 64);
    }
    // More operations follow `old` than op events are kept, so a wait for `old` does not cause new events.
    let old = from.last_op() + 10;
    (0..200_000).for_each(|_| _ = work(&from, || ()));
    to.wait_for(&from, old).unwrap();
    let before = driver.calls("event_record");
    (0..100).for_each(|_| _ = work(&from, || ()));
    assert_eq!(driver.calls("event_record"), before);
}

/// The work that a stream waits for may depend on another process and never complete.
#[test]
fn a_late_wait_does_not_cover_the_awaited_streams_next_wait() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let [from, to, stalled] = [(); 3].map(|()| device.exclusive_stream(0).unwrap());
    let clock = RunClock::default();
    let (used, op) = clock.probe(&from);
    let (blocked, last) = clock.probe(&stalled);
    from.wait_for(&stalled, last).unwrap();
    let later = clock.probe(&from).0;
    to.wait_for(&from, op).unwrap();
    let consumer = clock.probe(&to).0;
    driver.run_alone(from.raw().handle());
    driver.run_alone(to.raw().handle());
    assert!(used.ran_before(&consumer), "the wait covers what the stream uses");
    assert!(!blocked.ran() && !later.ran());
}

/// The awaited stream makes many waits of its own after an operation. A late wait for this
/// operation uses the event that was recorded before the first of these waits. The number of events
/// is bounded.
#[test]
fn many_later_waits_of_the_awaited_stream_do_not_widen_a_late_wait() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let [from, to, stalled] = [(); 3].map(|()| device.exclusive_stream(0).unwrap());
    let clock = RunClock::default();
    let wait_once = || {
        let (blocked, last) = clock.probe(&stalled);
        from.wait_for(&stalled, last).unwrap();
        (blocked, clock.probe(&from).0)
    };
    let (used, op) = clock.probe(&from);
    let first = wait_once();
    let others: Vec<_> = (0..500).map(|_| wait_once()).collect();
    to.wait_for(&from, op).unwrap();
    let consumer = clock.probe(&to).0;
    driver.run_alone(from.raw().handle());
    driver.run_alone(to.raw().handle());
    assert!(used.ran_before(&consumer), "the wait covers what the stream uses");
    assert!(!first.0.ran() && others.iter().all(|(_, later)| !later.ran()));
    (0..2000).for_each(|_| drop(wait_once()));
    let events = driver.calls("event_create");
    assert!(events <= 2 * 1024 + 10, "{events} events");
    (0..1000).for_each(|_| drop(wait_once()));
    assert_eq!(driver.calls("event_create"), events);
}

#[test]
fn a_wait_that_already_holds_costs_nothing() {
    let (driver, devices) = counted(2, 0);
    let from = devices.get(0).unwrap().stream_from_pool(0).unwrap();
    let to = devices.get(1).unwrap().stream_from_pool(0).unwrap();
    let early = work(&from, || ());
    let late = work(&from, || ());
    to.wait_for(&from, late).unwrap();
    assert_eq!(driver.calls("stream_wait_event"), 1);
    for op in [0, early, late] {
        to.wait_for(&from, op).unwrap();
    }
    assert_eq!(driver.calls("stream_wait_event"), 1);
    let next = work(&from, || ());
    assert!(!to.is_ordered_after(&from, next).unwrap());
    to.wait_for(&from, next).unwrap();
    assert_eq!(driver.calls("stream_wait_event"), 2);
    // A wait for work that the host has seen complete costs nothing either.
    let seen = work(&from, || ());
    from.host_wait(seen).unwrap();
    to.wait_for(&from, seen).unwrap();
    assert_eq!(driver.calls("stream_wait_event"), 2);
    let waits = driver.calls("event_synchronize");
    from.host_wait(seen).unwrap();
    from.host_wait(early).unwrap();
    assert_eq!(driver.calls("event_synchronize"), waits);
}

#[test]
fn waits_of_the_user_are_known_order() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let [a, b, c] = [(); 3].map(|()| device.exclusive_stream(0).unwrap());
    let first = work(&a, || ());
    let event = a.record_event(None).unwrap();
    let later = work(&a, || ());
    b.wait_event(&event).unwrap();
    assert!(b.is_ordered_after(&a, first).unwrap());
    assert!(!b.is_ordered_after(&a, later).unwrap());

    // Waits chain through a third stream if that stream waits before it records its event.
    let unrelated = c.record_event(None).unwrap();
    let before_wait = b.record_event(None).unwrap();
    c.wait_event(&unrelated).unwrap();
    c.wait_event(&before_wait).unwrap();
    assert!(c.is_ordered_after(&a, first).unwrap(), "the chain a, b, c");
    let [d, e] = [(); 2].map(|()| device.exclusive_stream(0).unwrap());
    let early = d.record_event(None).unwrap();
    let op = work(&a, || ());
    d.wait_for(&a, op).unwrap();
    e.wait_event(&early).unwrap();
    assert!(!e.is_ordered_after(&a, op).unwrap(), "recorded before d waited");

    // When the host sees an event complete, all later work comes after the work of the event.
    let [seen, unseen] = [(); 2].map(|()| work(&c, || ()));
    let event = c.record_event(None).unwrap();
    let after = work(&c, || ());
    event.synchronize().unwrap();
    for op in [seen, unseen] {
        assert!(e.is_ordered_after(&c, op).unwrap());
    }
    assert!(!e.is_ordered_after(&c, after).unwrap());
    while !c.query().unwrap() {}
    assert!(e.is_ordered_after(&c, after).unwrap());

    // A synchronized stream has completed the work that it waited for.
    d.synchronize().unwrap();
    assert!(e.is_ordered_after(&a, op).unwrap());
    let waits = driver.calls("stream_wait_event");
    e.wait_for(&a, op).unwrap();
    assert_eq!(driver.calls("stream_wait_event"), waits);
}

#[test]
fn a_wait_does_not_cover_later_unrelated_work() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let (from, to) = (device.stream_from_pool(0).unwrap(), device.stream_from_pool(0).unwrap());
    let clock = RunClock::default();
    wait_late(&to, &from);
    let used = clock.probe(&from);
    let later: Vec<_> = (0..10).map(|_| clock.probe(&from).0).collect();
    to.wait_for(&from, used.1).unwrap();
    let consumer = clock.probe(&to).0;
    // The producer runs its work up to the awaited operation and that operation's op event. The two
    // items of each later operation, its work and its op event, stay in the queue.
    driver.drain(from.raw().handle(), 2 * later.len());
    driver.run_alone(to.raw().handle());
    assert!(used.0.ran_before(&consumer));
    assert!(later.iter().all(|m| !m.ran()), "the streams overlap");
}

/// Enqueues `count` operations on `from`. One late wait of `other` per 32 operations makes every operation
/// get an op event. Before the call, another late wait for `from` must have started the op events.
fn probes_with_late_waits(
    count: usize,
    clock: &RunClock,
    from: &Stream,
    other: &Stream,
) -> Vec<RunProbe> {
    let mut previous = from.last_op();
    let probe = |i| {
        let (probe, op) = clock.probe(from);
        if i % 32 == 31 {
            other.wait_for(from, previous).unwrap();
        }
        previous = op;
        probe
    };
    (0..count).map(probe).collect()
}

#[test]
fn a_wait_for_an_operation_older_than_all_op_events_still_covers_it() {
    for seed in 0..schedules() {
        let (driver, devices) = counted(1, seed);
        let device = devices.get(0).unwrap();
        let [from, to, other] = [(); 3].map(|()| device.stream_from_pool(0).unwrap());
        wait_late(&to, &from);
        let clock = RunClock::default();
        let (old, op) = clock.probe(&from);
        probes_with_late_waits(500, &clock, &from, &other);
        assert!(driver.calls("event_create") <= 70, "op events are bounded");
        to.wait_for(&from, op).unwrap();
        let after = clock.probe(&to).0;
        to.synchronize().unwrap();
        assert!(old.ran_before(&after), "schedule {seed}");
    }
}

#[test]
fn an_operation_has_one_op_event() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let [from, to, other, late] = [(); 4].map(|()| device.exclusive_stream(0).unwrap());
    wait_late(&to, &from);
    let clock = RunClock::default();
    let (early, op) = clock.probe(&from);
    let records = driver.calls("event_record");
    let event = from.op_event(op).unwrap();
    assert_eq!(driver.calls("event_record"), records, "the operation already has an op event");
    // Submit more operations than the stream keeps op events for. If `event` were recorded again after one
    // of these operations, it would complete only after that operation.
    let late = probes_with_late_waits(200, &clock, &from, &late);
    assert!(driver.calls("event_create") <= 66, "the other events are reused");
    driver.drain(from.raw().handle(), 2 * late.len());
    assert!(early.ran() && late.iter().all(|late| !late.ran()));
    assert!(event.query_silently().unwrap());
    assert!(!to.is_ordered_after(&from, op).unwrap(), "a silent query records no order");
    event.wait(&to).unwrap();
    assert!(to.is_ordered_after(&from, op).unwrap());
    assert!(!to.is_ordered_after(&from, op + 1).unwrap());
    assert!(!other.is_ordered_after(&from, op).unwrap());
    assert!(event.query().unwrap());
    assert!(other.is_ordered_after(&from, op).unwrap(), "a query records the order");
}

#[test]
fn op_events_of_a_dropped_stream_are_reused() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    work(device.default_stream(), || ());
    for _ in 0..20 {
        let stream = device.exclusive_stream(0).unwrap();
        let op = work(&stream, || ());
        device.default_stream().wait_for(&stream, op).unwrap();
    }
    // One event after the default stream's work, and one for all other streams.
    assert_eq!(driver.calls("event_create"), 2);
    assert_eq!(driver.calls("stream_destroy"), 20);
}

#[test]
fn a_failed_op_event_is_recorded_at_the_next_wait() {
    let (driver, devices) = counted(1, 0);
    let device = devices.get(0).unwrap();
    let (from, to) = (device.stream_from_pool(0).unwrap(), device.stream_from_pool(0).unwrap());
    wait_late(&to, &from);
    driver.fail(Some("event_record"));
    let op = work(&from, || ());
    assert!(to.wait_for(&from, op).unwrap_err().to_string().contains("ordering.rs"));
    assert!(!to.is_ordered_after(&from, op).unwrap());
    driver.fail(None);
    to.wait_for(&from, op).unwrap();
    driver.fail(Some("stream_wait_event"));
    let op = work(&from, || ());
    assert!(to.wait_for(&from, op).is_err());
    assert!(!to.is_ordered_after(&from, op).unwrap(), "a failed wait orders nothing");
    driver.fail(None);
}

#[test]
fn calls_on_a_lost_device_fail_and_drops_do_not_panic() {
    let (driver, devices) = counted(2, 0);
    let (lost, well) = (devices.get(0).unwrap(), devices.get(1).unwrap());
    let (one, two) = (lost.exclusive_stream(0).unwrap(), lost.exclusive_stream(0).unwrap());
    let (op, _) = (work(&one, || ()), work(&two, || ()));
    let event = one.record_event(None).unwrap();
    let _guard = devices.stream_guard(&one).unwrap();
    driver.lose(0);
    let errors = [
        one.synchronize().unwrap_err(),
        one.query().unwrap_err(),
        one.host_wait(op).unwrap_err(),
        one.is_done(op).unwrap_err(),
        two.wait_for(&one, op).unwrap_err(),
        two.wait_stream(&one).unwrap_err(),
        event.synchronize().unwrap_err(),
        event.record(&one).unwrap_err(),
        Event::default().record(&one).unwrap_err(),
        lost.synchronize().unwrap_err(),
        lost.exclusive_stream(0).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("cuda:0 is lost"), "{error}");
    }
    let healthy = well.stream_from_pool(0).unwrap();
    let op = work(&healthy, || ());
    healthy.host_wait(op).unwrap();
}

#[test]
fn dropped_devices_release_their_driver() {
    let (driver, devices) = counted(2, 0);
    let (from, to) = (devices.get(0).unwrap(), devices.get(1).unwrap());
    let (from, to) = (from.stream_from_pool(0).unwrap(), to.exclusive_stream(0).unwrap());
    devices.with_stream(&to, || ()).unwrap();
    let op = work(&from, || ());
    to.wait_for(&from, op).unwrap();
    let event = to.record_event(None).unwrap();
    drop((devices, from, to, event));
    assert_eq!(std::sync::Arc::strong_count(&driver), 1);
    assert_eq!(driver.calls("event_destroy"), driver.calls("event_create"));
    assert_eq!(driver.calls("stream_destroy"), driver.calls("stream_create"));
}

#[test]
fn a_current_stream_of_dropped_devices_is_released_by_the_next_devices() {
    let (driver, devices) = counted(1, 0);
    devices.set_current_stream(&devices.get(0).unwrap().stream_from_pool(0).unwrap()).unwrap();
    drop(devices);
    let (_, next) = counted(2, 0);
    next.set_device(1).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&driver), 1);
}
