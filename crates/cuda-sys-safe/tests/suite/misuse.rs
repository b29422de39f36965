//! Attempts to misuse owned objects from safe code. All must be refused.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{
    Capture, Event, LaunchToken, MemPool, Module, ReleaseKind, Stream, retry_refused,
};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

fn sim() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    (sim, driver)
}

fn stream(driver: &Arc<dyn Driver>) -> Stream {
    Stream::new(driver, 0, StreamFlags { non_blocking: true, priority: 0 }).unwrap()
}

fn event(driver: &Arc<dyn Driver>) -> Event {
    Event::new(driver, 0, EventFlags::default()).unwrap()
}

// SAFETY: captured work in these tests uses no memory, and no other code uses the streams.
const TOKEN: LaunchToken = unsafe { LaunchToken::new() };

fn begin(stream: &Stream) -> Capture {
    stream.begin_capture(CaptureMode::Relaxed, TOKEN).unwrap()
}

fn is_refused(answer: &Result<()>) -> bool {
    matches!(answer, Err(DriverError::InvalidArgument { .. }))
}

#[test]
fn a_wait_does_not_make_a_stream_join_a_capture_implicitly() {
    let (_, driver) = sim();
    let (captured, other, event) = (stream(&driver), stream(&driver), event(&driver));
    let capture = begin(&captured);
    event.record(&captured).unwrap();
    let waited = other.wait_event(&event);
    assert!(is_refused(&waited), "{waited:?}");
    assert_eq!(other.capture_status().unwrap(), CaptureStatus::None);

    other.join_capture(&event, TOKEN).unwrap();
    assert!(matches!(other.capture_status().unwrap(), CaptureStatus::Active(_)));
    // Waits between streams of one capture are allowed.
    event.record(&other).unwrap();
    captured.wait_event(&event).unwrap();
    capture.end().unwrap();
    assert_eq!(other.capture_status().unwrap(), CaptureStatus::None);
    // A capture that has ended can no longer be joined.
    assert!(is_refused(&other.join_capture(&event, TOKEN)));
    event.record(&captured).unwrap();
    other.wait_event(&event).unwrap();
    assert!(is_refused(&other.join_capture(&event, TOKEN)));
}

/// A real driver would crash in this wait.
#[test]
fn an_interprocess_event_is_not_waited_for_on_another_device() {
    let sim = SimConfig::new(2).build();
    let driver: Arc<dyn Driver> = sim.clone();
    let flags = StreamFlags { non_blocking: true, priority: 0 };
    let [here, there] = [0, 1].map(|device| Stream::new(&driver, device, flags).unwrap());
    let flags = EventFlags { interprocess: true, ..EventFlags::default() };
    let event = Event::new(&driver, 0, flags).unwrap();
    for _ in 0..2 {
        here.wait_event(&event).unwrap();
        let waited = there.wait_event(&event);
        assert!(is_refused(&waited), "{waited:?}");
        event.record(&here).unwrap();
    }
    assert_eq!(sim.usage().count(CallKind::StreamWaitEvent), 2);
}

#[test]
fn a_capture_ends_with_the_object_that_began_it() {
    let (_, driver) = sim();
    let stream = stream(&driver);
    drop(begin(&stream));
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
    begin(&stream).end().unwrap();
}

#[test]
fn stream_ordered_memory_stays_out_of_captures() {
    let (sim, driver) = sim();
    let stream = stream(&driver);
    let pool = MemPool::new(&driver, 0).unwrap();
    let memory = pool.alloc(4096, &stream).unwrap();
    let capture = begin(&stream);
    let error = pool.alloc(4096, &stream).unwrap_err();
    assert!(error.to_string().contains("captured"), "{error}");
    drop(memory);
    let exec = capture.end().unwrap().instantiate().unwrap();
    for _ in 0..2 {
        // SAFETY: the graph is empty, because the release of the memory was not captured.
        unsafe { exec.launch(&stream) }.unwrap();
    }
    assert_eq!(driver.refused().of(ReleaseKind::PoolMemory).count, 1);
    assert_eq!(retry_refused(&driver).count, 0);
    stream.synchronize().unwrap();
    assert_eq!(sim.usage().devices[0].pool_allocations, 0);
}

#[test]
fn only_text_is_loaded_as_ptx() {
    const PTX: &str = ".version 8.0\n.target sm_75\n.visible .entry k(\n)\n{ ret; }\n";
    let (_, driver) = sim();
    let load = |text: &str| Module::load_ptx(&driver, 0, text);
    for text in [PTX.to_owned(), format!("// a\n/* b\n */ {PTX}"), format!("\n {PTX}\0\0")] {
        load(&text).unwrap();
    }
    let elf = format!("\x7fELF\x02\x01\x01{}", "\0".repeat(57));
    for text in [&elf, "", "\0", "// .version 8.0", "/* .version", "version 8.0", "P\u{ed}"] {
        let error = load(text).unwrap_err();
        assert!(matches!(error, DriverError::InvalidArgument { .. }), "{text:?}: {error}");
    }
    assert!(load(&PTX.replace("ret", "r\0t")).is_err());
}

#[test]
fn one_handle_is_one_stream_however_often_it_is_wrapped() {
    let (_, driver) = sim();
    let own = stream(&driver);
    // SAFETY: `own` keeps the stream alive.
    let wrap = || unsafe { Stream::from_external(&driver, own.handle()) };
    assert_eq!(wrap(), own);
    drop(wrap());
    assert_eq!(wrap(), own);
    assert_ne!(own, stream(&driver));
}
