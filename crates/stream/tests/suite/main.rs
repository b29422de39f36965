//! Tests of the stream layer, on simulated devices under many schedules, and on GPUs.
//!
//! A test of a row of the table of semantics has the row's number in its name (`s01_…`).
//! `WARPLINE_SCHEDULES` is the number of schedules of each test. Default: 8.

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
