//! The registry of all ops, and tests that run for each of its entries.
//!
//! Each public function that returns tensors has an [`Entry`](entry::Entry) in the file of its
//! family, or is listed in `completeness.rs` with the reason why it is not an op. Methods of
//! `unary.rs` and `binary.rs` are listed in `../by_name.rs` instead. A new op needs only an entry:
//! the tests then check its gradients, the agreement between devices, the agreement between backward
//! passes, its dtypes in an autocast region, and failures of its driver calls. An entry declares the
//! op's category in autocast.

mod autocast;
mod calls;
mod completeness;
mod devices;
mod differences;
mod entry;
mod faults;
mod passes;
mod sample;

mod attention;
mod convolutions;
mod elementwise;
mod factories;
mod in_place;
mod indexing;
mod losses;
mod normalization;
mod parameters;
mod pools;
mod products;
mod random;
mod reductions;
mod scans;
mod scatters;
mod shapes;
mod sorting;
mod statistics;
mod transfers;

use entry::Entry;
use warpline::{Device, Result, simulated, with_runtime};

/// Returns the entries of all ops.
fn registry() -> Vec<Entry> {
    let families = [
        elementwise::entries(),
        parameters::entries(),
        in_place::entries(),
        reductions::entries(),
        statistics::entries(),
        scans::entries(),
        sorting::entries(),
        products::entries(),
        convolutions::entries(),
        pools::entries(),
        normalization::entries(),
        losses::entries(),
        attention::entries(),
        indexing::entries(),
        scatters::entries(),
        shapes::entries(),
        transfers::entries(),
        factories::entries(),
        random::entries(),
    ];
    families.into_iter().flatten().collect()
}

/// Runs `walk`, a test of all entries, on a simulated GPU.
fn on_simulated_gpu(walk: impl Fn(Device) -> Result<()>) {
    let runtime = simulated(1).expect("a simulated GPU");
    with_runtime(&runtime, || walk(Device::cuda(0))).unwrap_or_else(|e| panic!("{e}"));
}

/// Panics with the list of failures, if there are any.
fn report(walk: &str, checks: usize, failures: &[String]) {
    let count = failures.len();
    assert!(failures.is_empty(), "{walk}: {count} of {checks} failed\n{}", failures.join("\n"));
}
