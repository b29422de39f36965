//! `DistributedDataParallel` on CPU groups, and on simulated GPUs under many schedules. Tests named `gpu2_…` use two
//! GPUs.

mod equal;
mod failures;
mod hooks;
mod iterations;
mod join;
pub(crate) mod killed;
mod machines;
pub(crate) mod model;
mod overlap;
mod streams;
mod unused;
