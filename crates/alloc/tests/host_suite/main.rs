//! The allocator against a backend in plain Rust and against the simulated driver. All modules form
//! one test program, so that linking happens once.

#[path = "../common/mod.rs"]
mod common;
mod tool;

mod concurrent;
mod cuda;
mod experts;
mod faults;
mod headroom;
mod host;
mod host_cuda;
mod host_model;
mod host_options;
mod host_waste;
mod memory_map;
mod misuse;
mod model;
mod oracle;
mod out_of_memory;
mod outlive;
mod pages;
mod policy;
mod pools;
mod ported;
mod ported_pinned;
mod ported_pools;
mod ported_snapshot;
mod refused;
mod replay;
mod snapshot;
mod soak;
mod stats;
mod stream_ordered;
mod traces;
mod windows;
