//! Checks rules of PyTorch's note on CUDA semantics: devices, streams, memory, new tensors, page-locked memory and
//! loading. Most parts run on real GPUs if there are enough, otherwise on three simulated GPUs. Exits with a failure if
//! a rule does not hold.

#![allow(clippy::duplicate_mod)] // each example has its own copy of `support`

use std::process::ExitCode;

#[path = "data_loader.rs"]
mod data_loader;
#[path = "device_agnostic.rs"]
mod device_agnostic;
#[path = "device_guard.rs"]
mod device_guard;
#[path = "device_selection.rs"]
mod device_selection;
#[path = "memory.rs"]
mod memory;
#[path = "new_and_like.rs"]
mod new_and_like;
#[path = "pinned_memory.rs"]
mod pinned_memory;
#[path = "streams.rs"]
mod streams;
#[path = "visible_devices.rs"]
mod visible_devices;

/// Runs an example and adds its outcome to the total.
macro_rules! section {
    ($held:ident, $failed:ident, $example:ident, $title:literal) => {{
        println!("\n{}", $title);
        let mut report = $example::support::Report::default();
        if let Err(error) = $example::run(&mut report) {
            report.check($title, false, error);
        }
        $held += report.held();
        $failed.extend_from_slice(report.failed());
    }};
}

fn main() -> ExitCode {
    let mut held = 0;
    let mut failed: Vec<String> = Vec::new();
    match warpline::cuda::device_count() {
        Ok(0) => println!("No CUDA device here: everything runs on simulated ones."),
        Ok(n) => println!("{n} CUDA device(s) here."),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    section!(held, failed, device_selection, "Device selection");
    section!(held, failed, device_guard, "Device guards");
    section!(held, failed, streams, "Streams");
    section!(held, failed, memory, "Memory management");
    section!(held, failed, device_agnostic, "Device-agnostic code");
    section!(held, failed, visible_devices, "CUDA_VISIBLE_DEVICES");
    section!(held, failed, new_and_like, "new_* and *_like");
    section!(held, failed, pinned_memory, "Pinned memory");
    section!(held, failed, data_loader, "Data loading");
    println!();
    for failure in &failed {
        println!("FAILED: {failure}");
    }
    println!("{held} rules held, {} failed", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
