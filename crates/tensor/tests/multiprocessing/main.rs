//! Tensors that several processes have. Runtimes of their own in threads stand for processes where
//! many schedules are run; programs with real processes run on simulated and on real GPUs alike.
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
