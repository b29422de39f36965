//! Tests of tensors that several processes share. Tests with many schedules use two threads, each
//! with its own runtime, instead of processes. Programs with real processes run on simulated and on
//! real GPUs.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod cut;
mod forked;
mod host;
mod hostile;
mod killed;
mod order;
mod processes;
mod refusals;
mod threads;
