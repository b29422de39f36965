//! Streams and events.

use std::sync::mpsc::channel;

use warpline_cuda_sys_safe::owned::{Event, Stream};

use super::kit::*;

use std::sync::Arc;
use warpline_cuda_sys_safe::*;

programs! {
    unrecorded_events(1, driver, t) {
        let never = event(driver, true)?;
        t.say("query", never.query()?);
        t.call("synchronize", never.synchronize());
        let stream = stream(driver, 0)?;
        t.call("wait", stream.wait_event(&never));
        stream.synchronize()?;
        let other = event(driver, true)?;
        other.record(&stream)?;
        other.synchronize()?;
        t.call("elapsed to it", other.elapsed(&never));
        t.call("elapsed from it", never.elapsed(&other));
    } => [
        "query: true",
        "synchronize: ok",
        "wait: ok",
        "elapsed to it: INVALID_HANDLE",
        "elapsed from it: INVALID_HANDLE",
    ]

    elapsed_times(1, driver, t) {
        let stream = stream(driver, 0)?;
        let memory = memory(driver, 64 << 10)?;
        let (start, end) = (event(driver, true)?, event(driver, true)?);
        let untimed = event(driver, false)?;
        start.record(&stream)?;
        fill(&stream, &memory, 1)?;
        end.record(&stream)?;
        untimed.record(&stream)?;
        stream.synchronize()?;
        t.say("positive", start.elapsed(&end)? > 0.0);
        t.say("backwards", end.elapsed(&start)? < 0.0);
        t.call("without timing", start.elapsed(&untimed));
    } => [
        "positive: true",
        "backwards: true",
        "without timing: INVALID_HANDLE",
    ]

    a_wait_orders_two_streams(1, driver, t) {
        let (a, b) = (stream(driver, 0)?, stream(driver, 0)?);
        let (from, to) = (memory(driver, 1 << 20)?, memory(driver, 1 << 20)?);
        let event = event(driver, false)?;
        for round in 1..4 {
            fill(&a, &from, round)?;
            event.record(&a)?;
            b.wait_event(&event)?;
            copy_async(&b, dev(&to), dev(&from), 1 << 20)?;
            event.record(&b)?;
            a.wait_event(&event)?;
        }
        fill(&a, &from, 9)?;
        t.say("uniform", read(driver, &to)?.iter().all(|&x| x == 3));
    } => ["uniform: true"]

    the_default_stream_waits_for_blocking_streams(1, driver, t) {
        let default = Stream::default_of(driver, 0);
        let (a, b) = (blocking_stream(driver, 0)?, blocking_stream(driver, 0)?);
        let (x, y) = (memory(driver, 1 << 20)?, memory(driver, 1 << 20)?);
        fill(&a, &x, 5)?;
        copy_async(&default, dev(&y), dev(&x), 1 << 20)?;
        fill(&b, &x, 6)?;
        t.say("default saw a", read(driver, &y)?.iter().all(|&v| v == 5));
        t.say("b came after", read(driver, &x)?.iter().all(|&v| v == 6));
    } => ["default saw a: true", "b came after: true"]

    destroying_a_stream_lets_its_work_finish(1, driver, t) {
        let memory = memory(driver, 16)?;
        let stream = stream(driver, 0)?;
        fill(&stream, &memory, 4)?;
        drop(stream);
        t.say("filled", read(driver, &memory)?);
    } => ["filled: [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]"]

    events_belong_to_devices(2, driver, t) {
        let event = event(driver, false)?;
        let (here, there) = (stream(driver, 0)?, stream(driver, 1)?);
        t.call("record on another device", event.record(&there));
        event.record(&here)?;
        t.call("wait on another device", there.wait_event(&event));
        there.synchronize()?;
        let timed = |device| Event::new(driver, device, EventFlags { timing: true, ..EventFlags::default() });
        let (a, b) = (timed(0)?, timed(1)?);
        a.record(&here)?;
        b.record(&there)?;
        here.synchronize()?;
        there.synchronize()?;
        t.call("elapsed across devices", a.elapsed(&b));
    } => [
        "record on another device: INVALID_HANDLE",
        "wait on another device: ok",
        "elapsed across devices: INVALID_HANDLE",
    ]

    host_functions_run_in_stream_order(1, driver, t) {
        let stream = stream(driver, 0)?;
        let (say, heard) = channel();
        for i in 0..3 {
            let say = say.clone();
            // SAFETY: the stream is alive.
            unsafe { driver.launch_host_func(stream.handle(), Box::new(move || say.send(i).unwrap())) }?;
        }
        stream.synchronize()?;
        t.say("heard", heard.try_iter().collect::<Vec<_>>());
    } => ["heard: [0, 1, 2]"]

    priorities(1, driver, t) {
        let (least, greatest) = driver.stream_priority_range(0)?;
        t.say("least", least);
        t.say("greater is lower", greatest < least);
        let with = |priority| Stream::new(driver, 0, StreamFlags { non_blocking: true, priority });
        t.say("clamped", with(-100)?.priority()? == greatest && with(100)?.priority()? == least);
        t.say("kept", with(greatest)?.priority()? == greatest);
        t.say("default", Stream::default_of(driver, 0).priority()?);
    } => [
        "least: 0",
        "greater is lower: true",
        "clamped: true",
        "kept: true",
        "default: 0",
    ]
}
