//! Modules and what goes with them, on simulated boxes of one to three devices; the twins named
//! `gpu_…` run on real ones. One program of all, which is linked once.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod boxes;
mod files;
mod from_pytorch;
mod launches;
mod messages;
mod modules;
mod moves;
mod optim;
mod random;
mod resume;
mod s31_modules;
mod saving;
mod state;
mod train_runs;
