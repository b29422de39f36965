//! `DataParallel` on simulated GPUs under many schedules, and on real ones.

mod failures;
mod gradients;
mod nested;
mod nets;
mod options;
mod programs;
mod replicas;
mod scatter;
mod threads;
mod world;
