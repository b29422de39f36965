//! Releases that the driver refuses, and what comes of trying again.

use std::io::Write;

use super::*;

type Release<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// One of each kind of what can be released, and how.
fn kinds(driver: &dyn Driver, from: StreamHandle) -> Vec<(&'static str, Release<'_>)> {
    let pages = HostFlags { portable: true, mapped: true };
    // SAFETY: nothing uses what is made here; it is released once, or again where the driver
    // refused to.
    unsafe {
        let memory = driver.mem_alloc(0, MIB).unwrap();
        let pinned = driver.host_alloc(0, 4096, pages).unwrap();
        let event = driver.event_create(0, EventFlags::default()).unwrap();
        let stream = driver.stream_create(0, StreamFlags::default()).unwrap();
        let module = driver.module_load(0, PTX.as_bytes()).unwrap();
        let empty = driver.mempool_create(0).unwrap();
        let pool = driver.mempool_create(0).unwrap();
        let pooled = driver.mem_alloc_async(pool, 4096, from).unwrap();
        let at_once = driver.mem_alloc_async(pool, 4096, from).unwrap();
        driver.begin_capture(from, CaptureMode::Relaxed).unwrap();
        driver.memset_async(memory, MemsetValue::U8(0), 64, from).unwrap();
        let graph = driver.end_capture(from).unwrap();
        let exec = driver.graph_instantiate(graph).unwrap();
        driver.synchronize(0).unwrap();
        vec![
            (
                "cuGraphExecDestroy",
                Box::new(move || driver.graph_exec_destroy(exec)) as Release<'_>,
            ),
            ("cuGraphDestroy", Box::new(move || driver.graph_destroy(graph))),
            ("cuModuleUnload", Box::new(move || driver.module_unload(module))),
            ("cuEventDestroy", Box::new(move || driver.event_destroy(event))),
            ("cuStreamDestroy", Box::new(move || driver.stream_destroy(stream))),
            ("cuMemFree", Box::new(move || driver.mem_free(0, memory))),
            ("cuMemFreeHost", Box::new(move || driver.host_free(0, pinned))),
            ("cuMemFree of a pool's memory", Box::new(move || driver.mem_free(0, at_once))),
            ("cuMemFreeAsync", Box::new(move || driver.mem_free_async(pooled, from))),
            ("cuMemPoolDestroy", Box::new(move || driver.mempool_destroy(empty))),
        ]
    }
}

/// Each kind of release during a capture. Where it is refused, it has not happened: once the
/// capture is over it succeeds, and what is made and released after that does too.
#[test]
#[ignore = "needs a GPU"]
fn gpu_refused_releases_can_be_tried_again() {
    in_child("gpu_refused_releases_can_be_tried_again", || {
        let driver = real::load().unwrap();
        let (own, captured) = (stream(&driver), stream(&driver));
        let (from, captured) = (own.handle(), captured.handle());
        let count = kinds(&*driver, from).len();
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
            for index in 0..count {
                let all = kinds(&*driver, from);
                let (name, release) = &all[index];
                // SAFETY: the stream is alive and captured by nobody else.
                unsafe { driver.begin_capture(captured, mode) }.unwrap();
                let first = release();
                // SAFETY: as above. A capture that the release spoiled has no graph.
                if let Ok(graph) = unsafe { driver.end_capture(captured) } {
                    // SAFETY: nothing uses the graph.
                    unsafe { driver.graph_destroy(graph) }.unwrap();
                }
                // What is printed last says where the process died, if it does.
                println!("{name}, {mode:?}: {first:?}");
                std::io::stdout().flush().unwrap();
                driver.synchronize(0).unwrap();
                if first.is_err() {
                    release().unwrap_or_else(|e| panic!("{name}: {e}"));
                }
                driver.synchronize(0).unwrap();
                for (other, (name, release)) in all.iter().enumerate() {
                    if other != index {
                        release().unwrap_or_else(|e| panic!("{name}: {e}"));
                    }
                }
                driver.synchronize(0).unwrap();
            }
        }
    });
}

/// A pool is destroyed with its last memory, whose free is still under way. The driver (580) has
/// died in `cuMemPoolDestroy` after a pool was destroyed before its memory was freed.
#[test]
#[ignore = "needs a GPU"]
fn gpu_pools_go_after_their_memory() {
    in_child("gpu_pools_go_after_their_memory", || {
        let driver = real::load().unwrap();
        for _ in 0..50 {
            let stream = stream(&driver);
            let pool = MemPool::new(&driver, 0).unwrap();
            let memory = pool.alloc(1024, &stream).unwrap();
            drop(pool);
            drop((memory, stream));
            let other = MemPool::new(&driver, 0).unwrap();
            drop(other);
            driver.synchronize(0).unwrap();
        }
    });
}
