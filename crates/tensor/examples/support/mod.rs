//! Code that the examples share: the choice of devices, and reports.
#![allow(dead_code)] // each example uses a part of this module

use warpline::{Device, Result, Runtime, simulated, with_runtime};

/// Collects the steps and outcomes of an example, and prints them as they come.
#[derive(Debug, Default)]
pub(crate) struct Report {
    held: usize,
    failed: Vec<String>,
}

impl Report {
    /// Prints a step.
    pub(crate) fn note(&mut self, text: impl AsRef<str>) {
        println!("    {}", text.as_ref());
    }

    /// Records and prints whether a rule held.
    pub(crate) fn check(&mut self, rule: &str, held: bool, outcome: impl std::fmt::Display) {
        println!("    {} {rule}: {outcome}", if held { "ok  " } else { "FAIL" });
        if held {
            self.held += 1;
        } else {
            self.failed.push(format!("{rule}: {outcome}"));
        }
    }

    /// Returns the number of rules that held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the rules that did not hold, with their outcomes.
    pub(crate) fn failed(&self) -> &[String] {
        &self.failed
    }

    /// Prints the summary line. Returns whether every rule held.
    pub(crate) fn finish(&self) -> bool {
        for failure in &self.failed {
            println!("FAILED: {failure}");
        }
        println!("{} rules held, {} failed", self.held, self.failed.len());
        self.failed.is_empty()
    }
}

/// Runs `f` in the current runtime if it has at least `devices` GPUs, otherwise on three simulated GPUs.
pub(crate) fn on_devices<R>(devices: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let found = warpline::cuda::device_count()?;
    if found >= devices {
        return f();
    }
    println!("    ({found} CUDA device(s) here, {devices} needed: running on 3 simulated ones)");
    with_runtime(&simulated(3)?, f)
}

/// Runs `f` in a new runtime with the settings `config`, because some settings cannot change after a runtime is made.
/// Uses the machine's GPUs if the current runtime has at least `devices` of them, otherwise three simulated GPUs.
pub(crate) fn with_config<R>(
    devices: usize,
    config: &warpline::RuntimeConfig,
    f: impl FnOnce(&Runtime) -> Result<R>,
) -> Result<R> {
    let is_cuda = warpline::runtime().driver().is_ok_and(|driver| driver.name() == "cuda");
    let has_enough = is_cuda && warpline::cuda::device_count()? >= devices;
    let runtime = warpline::open(if has_enough { "cuda" } else { "sim:3" }, config)?;
    with_runtime(&runtime, || f(&runtime))
}

/// Runs `f` on the device named by `--device`: `cpu`, `cuda`, `cuda:1`, or `sim:1` for a simulated GPU.
pub(crate) fn on<R, E: From<warpline::Error>>(
    device: &str,
    f: impl FnOnce(Device) -> Result<R, E>,
) -> Result<R, E> {
    if device.starts_with("sim") {
        let runtime = warpline::open(device, &warpline::RuntimeConfig::default())?;
        return with_runtime(&runtime, || f(Device::cuda(0)));
    }
    f(device.parse()?)
}

/// The `main` function of an example that checks rules of PyTorch's note on CUDA semantics.
pub(crate) fn main_of(name: &str, run: fn(&mut Report) -> Result<()>) -> std::process::ExitCode {
    let mut report = Report::default();
    println!("{name}");
    if let Err(error) = run(&mut report) {
        report.check(name, false, error);
    }
    if report.finish() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
