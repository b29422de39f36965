//! Releases of memory: refusals and implicit waits.

use super::Regression;
use crate::step::Step::*;
use crate::step::*;

fn at(buf: Id, at: usize) -> Place {
    Place::Buf { buf, at }
}

pub(super) fn all() -> Vec<Regression> {
    vec![
        Regression {
            name: "the driver's page-locked memory cannot be unregistered",
            devices: 1,
            steps: vec![
                HostAlloc { buf: 13, device: 0, bytes: 256 },
                HostUnregister { buf: 13, device: 0 },
                Pageable { buf: 14, bytes: 256 },
                HostUnregister { buf: 14, device: 0 },
            ],
            results: &["ok", "INVALID_VALUE", "ok", "HOST_MEMORY_NOT_REGISTERED"],
        },
        Regression {
            name: "freeing an empty allocation in stream order does nothing",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 11, device: 0, non_blocking: true, priority: 0 },
                PoolCreate { pool: 16, device: 0 },
                AllocAsync { buf: 17, pool: 16, bytes: 0, stream: 11 },
                FreeAsync { buf: 17, stream: 11 },
            ],
            results: &["ok", "ok", "ok", "ok"],
        },
        Regression {
            name: "a synchronous free of pool memory does not wait",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: true, priority: 0 },
                PoolCreate { pool: 14, device: 0 },
                AllocAsync { buf: 16, pool: 14, bytes: 4096, stream: 0 },
                StreamSynchronize { stream: 0 },
                Gate { stream: 9 },
                MemFree { buf: 16, device: 0, at: 0 },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "ok"],
        },
        Regression {
            name: "a synchronous copy of pageable memory waits for blocking streams",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 10, device: 0, non_blocking: false, priority: 0 },
                MemAlloc { buf: 13, device: 0, bytes: 512 },
                Pageable { buf: 14, bytes: 64 },
                Gate { stream: 10 },
                Copy { dst: at(13, 208), src: at(14, 0), bytes: 64, by: By::Device(0) },
            ],
            results: &["ok", "ok", "ok", "ok", "ok, waited"],
        },
        Regression {
            name: "mapping more than the memory's size at an offset is not supported",
            devices: 1,
            steps: vec![
                Reserve { range: 12, device: 0, pages: 2, odd: 0 },
                Create { memory: 15, device: 0, pages: 2, odd: 0 },
                Map { range: 12, page: 0, at: 0, pages: 2, offset: 2 << 20, memory: 15 },
            ],
            results: &["ok", "ok", "NOT_SUPPORTED"],
        },
        Regression {
            name: "events without timing have no elapsed time, captured or not",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: true, priority: 0 },
                EventCreate { event: 18, device: 0, timing: false, interprocess: false },
                EventCreate { event: 19, device: 0, timing: false, interprocess: false },
                BeginCapture { stream: 9, mode: Mode::Relaxed },
                EventRecord { event: 18, stream: 9 },
                EndCapture { stream: 9, graph: 21 },
                EventElapsed { start: 19, end: 18 },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "ok", "INVALID_HANDLE"],
        },
        Regression {
            name: "on two devices, waits of releases of page-locked memory are not compared",
            devices: 2,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: true, priority: 0 },
                Pageable { buf: 10, bytes: 64 },
                HostRegister { buf: 10, device: 1, bytes: 64 },
                HostAlloc { buf: 11, device: 0, bytes: 64 },
                Gate { stream: 9 },
                // The buffer was registered with the other device.
                HostUnregister { buf: 10, device: 0 },
                HostFree { buf: 11, device: 0 },
                OpenGate,
                HostUnregister { buf: 10, device: 0 },
                HostFree { buf: 11, device: 0 },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "-", "-", "ok", "ok", "ok"],
        },
        Regression {
            name: "a free with another device's index frees the memory and waits for the memory's own device",
            devices: 2,
            steps: vec![
                StreamCreate { stream: 9, device: 1, non_blocking: true, priority: 0 },
                MemAlloc { buf: 11, device: 0, bytes: 64 },
                MemAlloc { buf: 12, device: 1, bytes: 512 },
                MemFree { buf: 11, device: 1, at: 0 },
                Gate { stream: 9 },
                MemFree { buf: 12, device: 0, at: 0 },
            ],
            results: &["ok", "ok", "ok", "ok", "ok", "ok, waited"],
        },
    ]
}
