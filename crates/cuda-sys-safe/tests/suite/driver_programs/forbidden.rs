//! Calls that captures forbid, and calls that they allow.

use std::sync::Arc;

use warpline_cuda_sys_safe::CaptureMode::{Global, Relaxed, ThreadLocal};
use warpline_cuda_sys_safe::owned::Stream;
use warpline_cuda_sys_safe::*;

use super::kit::*;

/// Runs `call` while the stream is captured. Records the result of the call and of the capture.
fn during<T>(
    t: &mut Transcript,
    (stream, mode): (&Stream, CaptureMode),
    what: &str,
    call: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    let driver = stream.driver();
    // SAFETY: the stream is alive. The captured graph is destroyed without a replay.
    unsafe {
        driver.begin_capture(stream.handle(), mode)?;
        let result = call();
        let seen = result.as_ref().map_or_else(name, |_| "ok".to_owned());
        let kept =
            driver.end_capture(stream.handle()).is_ok_and(|g| driver.graph_destroy(g).is_ok());
        t.say(what, (seen, if kept { "captured" } else { "invalidated" }));
        Ok(result.ok())
    }
}

/// Creates an empty graph and its executable.
fn graphs(driver: &Arc<dyn Driver>) -> Result<(GraphHandle, GraphExecHandle)> {
    let stream = stream(driver, 0)?;
    // SAFETY: the stream is alive, and the graph was just captured.
    unsafe {
        driver.begin_capture(stream.handle(), Relaxed)?;
        let graph = driver.end_capture(stream.handle())?;
        Ok((graph, driver.graph_instantiate(graph)?))
    }
}

programs! {
    unsafe_calls_while_capturing(1, driver, t) {
        let (a, memory) = (stream(driver, 0)?, memory(driver, 64)?);
        let strict = (&a, Global);
        let (graph, exec) = graphs(driver)?;
        let pool = driver.mempool_create(0)?;
        let function = add_scalar(driver, 0)?;
        // SAFETY: all released objects were created here, and no work uses them. The image is PTX
        // text.
        unsafe {
            let load = || driver.module_load(0, PTX.as_bytes());
            if let Some(module) = during(t, strict, "load a module", load)? {
                driver.module_unload(module)?;
            }
            let module = driver.module_load(0, PTX.as_bytes())?;
            if during(t, strict, "unload it", || driver.module_unload(module))?.is_none() {
                driver.module_unload(module)?;
            }
            during(t, strict, "set an attribute", || {
                driver.function_max_shared(function.handle(), 1024)
            })?;
            during(t, strict, "trim a pool", || driver.mempool_trim(pool, 0))?;
            driver.mempool_destroy(pool)?;
            during(t, strict, "destroy a graph", || driver.graph_destroy(graph))?;
            if during(t, strict, "an executable", || driver.graph_exec_destroy(exec))?.is_none() {
                driver.graph_exec_destroy(exec)?;
            }
            during(t, strict, "share memory", || driver.ipc_mem_handle(0, memory.ptr()))?;
        }
        during(t, strict, "ask for free memory", || driver.mem_info(0))?;
        let elsewhere = |mode| {
            let ask = || {
                driver.exchange_capture_mode(0, mode)?;
                Stream::default_of(driver, 0).query()
            };
            std::thread::scope(|scope| scope.spawn(ask).join().expect("no panic"))
        };
        during(t, strict, "query in another thread", || elsewhere(Global))?;
        during(t, strict, "in another, thread-local", || elsewhere(ThreadLocal))?;
        during(t, (&a, ThreadLocal), "with a thread-local capture", || elsewhere(Global))?;
    } => [
        "load a module: (\"ok\", \"captured\")",
        "unload it: (\"STREAM_CAPTURE_UNSUPPORTED\", \"invalidated\")",
        "set an attribute: (\"ok\", \"captured\")",
        "trim a pool: (\"STREAM_CAPTURE_UNSUPPORTED\", \"invalidated\")",
        "destroy a graph: (\"ok\", \"captured\")",
        "an executable: (\"STREAM_CAPTURE_UNSUPPORTED\", \"invalidated\")",
        "share memory: (\"ok\", \"captured\")",
        "ask for free memory: (\"ok\", \"captured\")",
        "query in another thread: (\"STREAM_CAPTURE_UNSUPPORTED\", \"invalidated\")",
        "in another, thread-local: (\"ok\", \"captured\")",
        "with a thread-local capture: (\"ok\", \"captured\")",
    ]

    host_functions_in_the_default_stream_while_capturing(1, driver, t) {
        let blocking = blocking_stream(driver, 0)?;
        during(t, (&blocking, Relaxed), "a host function", || {
            // SAFETY: a default stream is always alive.
            unsafe { driver.launch_host_func(StreamHandle::default_of(0), Box::new(|| ())) }
        })?;
    } => [
        "a host function: (\"STREAM_CAPTURE_IMPLICIT\", \"captured\")",
    ]

    captured_copies_of_pageable_memory(1, driver, t) {
        let (a, memory) = (stream(driver, 0)?, memory(driver, 64)?);
        let (mut source, mut target) = (vec![1u8; 64], vec![0u8; 64]);
        // SAFETY: stream, memory and both vectors outlive the replay, and no other code accesses
        // them before.
        unsafe {
            driver.begin_capture(a.handle(), Relaxed)?;
            copy_async(&a, dev(&memory), host(&mut source), 64)?;
            copy_async(&a, host(&mut target), dev(&memory), 64)?;
            let graph = driver.end_capture(a.handle())?;
            let exec = driver.graph_instantiate(graph)?;
            source.fill(2);
            driver.graph_launch(exec, a.handle())?;
            a.synchronize()?;
            driver.graph_exec_destroy(exec)?;
            driver.graph_destroy(graph)?;
        }
        t.say("what the source held when the graph ran", target[63]);
    } => [
        "what the source held when the graph ran: 2",
    ]
}
