//! The stream layer's tests: on simulated devices under many schedules, and on GPUs.
//!
//! Tests of rows of the semantics are named after them (`s01_…`). Set `WARPLINE_SCHEDULES` to run
//! each under more than eight schedules.

mod fake;
mod guards;
mod happens_before;
mod ordering;
mod programs;
mod s01_devices;
mod s11_streams;
mod s13_sync;
mod support;
mod threads;
