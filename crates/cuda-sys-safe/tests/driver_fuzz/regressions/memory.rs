//! Memory, copies and peers.

use super::Regression;
use crate::step::Step::*;
use crate::step::*;

fn at(buf: Id, at: usize) -> Place {
    Place::Buf { buf, at }
}

pub(super) fn all() -> Vec<Regression> {
    vec![
        Regression {
            name: "a device is not its own peer",
            devices: 1,
            steps: vec![PeerEnable { device: 0, peer: 0 }],
            results: &["PEER_ACCESS_UNSUPPORTED"],
        },
        Regression {
            name: "the driver's page-locked memory cannot be registered, and a program's memory only once",
            devices: 1,
            steps: vec![
                HostAlloc { buf: 10, device: 0, bytes: 256 },
                HostRegister { buf: 10, device: 0, bytes: 256 },
                Pageable { buf: 11, bytes: 256 },
                HostRegister { buf: 11, device: 0, bytes: 256 },
                HostRegister { buf: 11, device: 0, bytes: 256 },
            ],
            results: &["ok", "INVALID_VALUE", "ok", "ok", "HOST_MEMORY_ALREADY_REGISTERED"],
        },
        Regression {
            name: "an interprocess handle can be created from any address in an allocation, and cannot be opened in the same process",
            devices: 1,
            steps: vec![
                MemAlloc { buf: 10, device: 0, bytes: 512 },
                IpcMemory { buf: 10, device: 0, at: 32 },
                IpcMemory { buf: 10, device: 0, at: 0 },
            ],
            results: &["ok", "INVALID_CONTEXT", "INVALID_CONTEXT"],
        },
        Regression {
            name: "zero bytes can be allocated from a pool, but not from the device",
            devices: 1,
            steps: vec![
                PoolCreate { pool: 10, device: 0 },
                AllocAsync { buf: 11, pool: 10, bytes: 0, stream: 0 },
                MemAlloc { buf: 12, device: 0, bytes: 0 },
                HostAlloc { buf: 13, device: 0, bytes: 0 },
            ],
            results: &["ok", "ok", "INVALID_VALUE", "INVALID_VALUE"],
        },
        Regression {
            name: "memory of cuMemAlloc can be freed in stream order",
            devices: 1,
            steps: vec![
                MemAlloc { buf: 10, device: 0, bytes: 64 },
                FreeAsync { buf: 10, stream: 0 },
            ],
            results: &["ok", "ok"],
        },
        Regression {
            name: "reserved addresses without a mapping can be unmapped",
            devices: 1,
            steps: vec![
                Reserve { range: 10, device: 0, pages: 2, odd: 0 },
                Unmap { range: 10, device: 0, page: 1, pages: 1 },
            ],
            results: &["ok", "ok"],
        },
        Regression {
            name: "a host-to-host copy waits for earlier work on its stream",
            devices: 1,
            steps: vec![
                StreamCreate { stream: 9, device: 0, non_blocking: false, priority: -5 },
                HostAlloc { buf: 12, device: 0, bytes: 256 },
                Gate { stream: 9 },
                Copy { dst: at(12, 16), src: at(12, 32), bytes: 16, by: By::Stream(9) },
            ],
            results: &["ok", "ok", "ok", "ok, waited"],
        },
        Regression {
            name: "pool memory can be allocated on a stream of another device",
            devices: 2,
            steps: vec![
                PoolCreate { pool: 20, device: 0 },
                AllocAsync { buf: 22, pool: 20, bytes: 256, stream: 1 },
            ],
            results: &["ok", "ok"],
        },
        Regression {
            name: "a device cannot set memory that it cannot access",
            devices: 2,
            steps: vec![
                StreamCreate { stream: 10, device: 1, non_blocking: true, priority: 0 },
                MemAlloc { buf: 11, device: 0, bytes: 256 },
                Memset { dst: at(11, 16), width: 2, value: 1, count: 120, stream: 10 },
            ],
            results: &["ok", "ok", "INVALID_VALUE"],
        },
        Regression {
            name: "freeing memory does not wait for devices that have access to it",
            devices: 2,
            steps: vec![
                MemAlloc { buf: 10, device: 1, bytes: 4096 },
                PeerEnable { device: 0, peer: 1 },
                Gate { stream: 0 },
                MemFree { buf: 10, device: 1, at: 0 },
            ],
            results: &["ok", "ok", "ok", "ok"],
        },
    ]
}
