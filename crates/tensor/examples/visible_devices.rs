//! `CUDA_VISIBLE_DEVICES` renumbers the devices and hides the others. Run this example with
//! `WARPLINE_DRIVER=sim:3 CUDA_VISIBLE_DEVICES=2,0`, or on a machine with GPUs.

#[path = "support/mod.rs"]
pub(crate) mod support;

use support::Report;
use warpline::{Result, SimulatedOptions, cuda, simulated, with_runtime};

/// Shows the effect of several values of `CUDA_VISIBLE_DEVICES` on three simulated GPUs.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    for (visible, count) in [("2,0", 2), ("1", 1), ("0,1,2", 3), ("0,-1,1", 1), ("", 0)] {
        let runtime = simulated(SimulatedOptions::new(3).visible(visible))?;
        let found = with_runtime(&runtime, cuda::device_count)?;
        let rule = format!("S21 CUDA_VISIBLE_DEVICES='{visible}'");
        report.check(&rule, found == count, format!("{found} device(s)"));
    }
    let all = simulated(3)?;
    let last = with_runtime(&all, || cuda::get_device_properties(2))?;
    let reordered = simulated(SimulatedOptions::new(3).visible("2,0"))?;
    let first = with_runtime(&reordered, || cuda::get_device_properties(0))?;
    report.check(
        "S21 the order is the variable's",
        first.uuid == last.uuid,
        "cuda:0 is the third GPU",
    );
    let missing = with_runtime(&reordered, || warpline::zeros([1], "cuda:2"));
    let outcome = missing.as_ref().err().map(ToString::to_string).unwrap_or_default();
    report.check("S21 a device that is not visible is an error", missing.is_err(), outcome);
    Ok(())
}

#[allow(dead_code)]
fn main() -> std::process::ExitCode {
    match cuda::device_count() {
        Ok(count) => println!("{count} device(s) are visible here"),
        Err(error) => println!("{error}"),
    }
    support::main_of("CUDA_VISIBLE_DEVICES", run)
}
