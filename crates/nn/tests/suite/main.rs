//! Tests of modules, optimizers and files, on one to three simulated devices. Tests named `gpu_…` run on real
//! GPUs. The tests are one program, so that only one program has to be linked.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod autocast;
mod boxes;
mod chains;
mod containers;
mod files;
mod from_pytorch;
mod hooks;
mod launches;
mod llama;
mod messages;
mod modules;
mod moves;
mod optim;
mod options;
mod own_names;
mod parameters;
mod random;
mod resnet;
mod resume;
mod s31_modules;
mod s38_whole_steps;
mod saving;
mod state;
mod train_runs;
mod transformer;
mod tree;
