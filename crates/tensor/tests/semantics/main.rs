//! The rows of the semantics, each by its number, on simulated boxes of one to three devices; the
//! twins named `gpu_…` run on real ones, those named `gpu2_…` on two.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod copies;
mod devices;
mod elementwise;
mod factories;
mod memory;
mod memory_history;
mod memory_pools;
mod pinned;
mod random;
mod streams;
mod visible;
