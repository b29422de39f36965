//! Stream capture and graphs.

use warpline_cuda_sys_safe::owned::Stream;

use super::kit::*;

use std::sync::Arc;
use warpline_cuda_sys_safe::*;

fn begin(stream: &Stream, mode: CaptureMode) -> Result<()> {
    // SAFETY: the stream is alive.
    unsafe { stream.driver().begin_capture(stream.handle(), mode) }
}

fn end(stream: &Stream) -> Result<GraphHandle> {
    // SAFETY: the stream is alive.
    unsafe { stream.driver().end_capture(stream.handle()) }
}

fn status(stream: &Stream) -> Result<&'static str> {
    // SAFETY: the stream is alive.
    Ok(match unsafe { stream.driver().capture_status(stream.handle()) }? {
        CaptureStatus::None => "none",
        CaptureStatus::Active(_) => "active",
        CaptureStatus::Invalidated => "invalidated",
    })
}

fn destroy(driver: &Arc<dyn Driver>, graph: GraphHandle) -> Result<()> {
    // SAFETY: callers pass a live graph and do not use it afterwards.
    unsafe { driver.graph_destroy(graph) }
}

use CaptureMode::{Global, Relaxed, ThreadLocal};

programs! {
    a_graph_replays(1, driver, t) {
        let (a, b) = (stream(driver, 0)?, stream(driver, 0)?);
        let (x, y) = (memory(driver, 256)?, memory(driver, 256)?);
        let function = add_scalar(driver, 0)?;
        let (fork, join) = (event(driver, false)?, event(driver, false)?);
        begin(&a, ThreadLocal)?;
        let ends = [(0, x.ptr()); 2];
        launch_add(&a, &function, ONE_BLOCK, ends, 64, 1)?;
        fork.record(&a)?;
        b.wait_event(&fork)?;
        t.say("the other stream", status(&b)?);
        copy_async(&b, dev(&y), dev(&x), 256)?;
        join.record(&b)?;
        a.wait_event(&join)?;
        launch_add(&a, &function, ONE_BLOCK, ends, 64, 10)?;
        let graph = end(&a)?;
        t.say("after", (status(&a)?, status(&b)?));
        t.say("nothing ran", words(&read(driver, &x)?)[0]);
        // SAFETY: graph, stream and memory stay alive until the work is done.
        unsafe {
            let exec = driver.graph_instantiate(graph)?;
            driver.graph_launch(exec, a.handle())?;
            driver.graph_launch(exec, a.handle())?;
            t.say("x", words(&read(driver, &x)?)[63]);
            t.say("y", words(&read(driver, &y)?)[63]);
            t.call("destroy", driver.graph_exec_destroy(exec));
        }
        destroy(driver, graph)?;
    } => [
        "the other stream: \"active\"",
        "after: (\"none\", \"none\")",
        "nothing ran: 0",
        "x: 22",
        "y: 12",
        "destroy: ok",
    ]

    captures_forbid_waits(1, driver, t) {
        let stream = stream(driver, 0)?;
        for what in ["query", "synchronize", "device"] {
            begin(&stream, Relaxed)?;
            let result = match what {
                "query" => stream.query().map(|_| ()),
                "synchronize" => stream.synchronize(),
                _ => driver.synchronize(0),
            };
            t.call(what, result);
            t.say("status", status(&stream)?);
            t.call("end", end(&stream));
        }
        t.call("usable again", stream.synchronize());
    } => [
        "query: STREAM_CAPTURE_UNSUPPORTED",
        "status: \"invalidated\"",
        "end: STREAM_CAPTURE_INVALIDATED",
        "synchronize: STREAM_CAPTURE_UNSUPPORTED",
        "status: \"invalidated\"",
        "end: STREAM_CAPTURE_INVALIDATED",
        "device: STREAM_CAPTURE_UNSUPPORTED",
        "status: \"invalidated\"",
        "end: STREAM_CAPTURE_INVALIDATED",
        "usable again: ok",
    ]

    allocation_while_capturing(1, driver, t) {
        let stream = stream(driver, 0)?;
        let attempt = |t: &mut Transcript, what: &str, mode| -> Result<()> {
            begin(&stream, mode)?;
            let allocated = driver.mem_alloc(0, 1024);
            let ptr = allocated.as_ref().ok().copied();
            t.call(what, allocated);
            match end(&stream) {
                Ok(graph) => {
                    destroy(driver, graph)?;
                    t.say("captured", true);
                }
                Err(error) => t.say("captured", name(&error)),
            }
            // SAFETY: the memory was allocated above, and no work uses it.
            ptr.map_or(Ok(()), |ptr| unsafe { driver.mem_free(0, ptr) })
        };
        attempt(t, "global", Global)?;
        attempt(t, "thread-local", ThreadLocal)?;
        attempt(t, "relaxed", Relaxed)?;
        let old = driver.exchange_capture_mode(0, Relaxed)?;
        attempt(t, "global, in a relaxed thread", Global)?;
        driver.exchange_capture_mode(0, old)?;
        t.say("old mode", old);
    } => [
        "global: STREAM_CAPTURE_UNSUPPORTED",
        "captured: \"STREAM_CAPTURE_INVALIDATED\"",
        "thread-local: STREAM_CAPTURE_UNSUPPORTED",
        "captured: \"STREAM_CAPTURE_INVALIDATED\"",
        "relaxed: ok",
        "captured: true",
        "global, in a relaxed thread: ok",
        "captured: true",
        "old mode: Global",
    ]

    captures_and_other_streams(1, driver, t) {
        let (a, b) = (stream(driver, 0)?, stream(driver, 0)?);
        let memory = memory(driver, 64)?;
        let (outside, inside) = (event(driver, false)?, event(driver, false)?);
        t.call("the default stream", begin(&Stream::default_of(driver, 0), Relaxed));
        outside.record(&b)?;
        begin(&a, Relaxed)?;
        t.say("twice is refused", begin(&a, Relaxed).is_err());
        t.call("wait from outside", a.wait_event(&outside));
        t.call("end", end(&a));

        begin(&a, Relaxed)?;
        fill(&a, &memory, 1)?;
        inside.record(&a)?;
        t.call("query the event", inside.query());
        t.call("end", end(&a));

        begin(&a, Relaxed)?;
        fill(&a, &memory, 1)?;
        inside.record(&a)?;
        b.wait_event(&inside)?;
        fill(&b, &memory, 2)?;
        t.call("end unjoined", end(&a));
        t.say("streams", (status(&a)?, status(&b)?));

        begin(&a, Relaxed)?;
        inside.record(&a)?;
        b.wait_event(&inside)?;
        t.call("end in the wrong stream", end(&b));
        if let Ok(graph) = end(&a) {
            destroy(driver, graph)?;
        }
        t.say("end again is refused", end(&a).is_err());
    } => [
        "the default stream: STREAM_CAPTURE_UNSUPPORTED",
        "twice is refused: true",
        "wait from outside: STREAM_CAPTURE_ISOLATION",
        "end: STREAM_CAPTURE_INVALIDATED",
        "query the event: CAPTURED_EVENT",
        "end: STREAM_CAPTURE_INVALIDATED",
        "end unjoined: STREAM_CAPTURE_UNJOINED",
        "streams: (\"none\", \"none\")",
        "end in the wrong stream: STREAM_CAPTURE_UNMATCHED",
        "end again is refused: true",
    ]

    captures_and_the_default_stream(1, driver, t) {
        let default = Stream::default_of(driver, 0);
        let memory = memory(driver, 64)?;
        let (blocking, free) = (blocking_stream(driver, 0)?, stream(driver, 0)?);
        begin(&blocking, Relaxed)?;
        t.call("with a blocking stream", fill(&default, &memory, 1));
        t.call("end", end(&blocking));
        begin(&free, Relaxed)?;
        t.call("with another", fill(&default, &memory, 2));
        let graph = end(&free)?;
        destroy(driver, graph)?;
        t.say("filled", read(driver, &memory)?[0]);
    } => [
        "with a blocking stream: STREAM_CAPTURE_IMPLICIT",
        "end: STREAM_CAPTURE_INVALIDATED",
        "with another: ok",
        "filled: 2",
    ]
}
