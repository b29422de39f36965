//! Releases that the driver refuses, and their retries.

use std::io::Write;

use super::*;

type Release<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// Creates objects of several kinds. Returns their releases.
fn kinds(driver: &dyn Driver, from: StreamHandle) -> Vec<(&'static str, Release<'_>)> {
    let pages = HostFlags { portable: true, mapped: true };
    // SAFETY: no work uses the objects. Each is released once, or again after a refusal.
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

/// Releases an object of each of these kinds during a capture. A refused release has no effect: the
/// release succeeds after the capture, and later objects of that kind can be created and released.
#[test]
#[ignore = "needs a GPU"]
fn gpu_refused_releases_can_be_retried() {
    in_child("gpu_refused_releases_can_be_retried", || {
        let driver = real::load().unwrap();
        let (own, captured) = (stream(&driver), stream(&driver));
        let (from, captured) = (own.handle(), captured.handle());
        let count = kinds(&*driver, from).len();
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
            for index in 0..count {
                let all = kinds(&*driver, from);
                let (name, release) = &all[index];
                // SAFETY: the stream is alive, and is in no other capture.
                unsafe { driver.begin_capture(captured, mode) }.unwrap();
                let first = release();
                // SAFETY: the stream is alive. If the release invalidated the capture, there is no
                // graph.
                if let Ok(graph) = unsafe { driver.end_capture(captured) } {
                    // SAFETY: the graph was just created, and has no executable.
                    unsafe { driver.graph_destroy(graph) }.unwrap();
                }
                // If the process crashes later, the last line shows the release.
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

/// Destroys a pool together with its last memory, while the free of that memory is pending. The
/// NVIDIA driver 580 crashed in `cuMemPoolDestroy` when a pool had been destroyed before its memory
/// was freed.
#[test]
#[ignore = "needs a GPU"]
fn gpu_pools_are_destroyed_after_their_memory() {
    in_child("gpu_pools_are_destroyed_after_their_memory", || {
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
