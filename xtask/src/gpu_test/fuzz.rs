//! `cargo xtask gpu-test --fuzz`: random driver programs on the simulator and the real driver.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::build::TestProgram;
use super::runner::TestRunner;

/// The test target that generates and runs the programs.
pub(super) const TARGET: &str = "driver_fuzz";

/// Options for random driver programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(super) struct FuzzOptions {
    /// Instead of the tests, run N random driver programs on the simulator and on the GPUs
    #[arg(long, value_name = "N")]
    pub(super) fuzz: Option<u64>,
    /// Instead of the tests, run N random driver programs that end with a sticky error, each in a new process
    #[arg(long, value_name = "N")]
    pub(super) fuzz_sticky: Option<u64>,
    /// Seed of the first program; each further program has the next seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// Generate no steps of these groups, such as "captures,pools"
    #[arg(long, value_name = "GROUPS")]
    pub(super) without: Option<String>,
    /// Number of processes that run programs in parallel; default: up to 16
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<u16>,
}

/// Maximum number of devices that a program uses.
const MAX_DEVICES: usize = 3;

impl FuzzOptions {
    /// Returns whether programs run instead of the tests.
    pub(super) fn is_requested(&self) -> bool {
        self.fuzz.is_some() || self.fuzz_sticky.is_some()
    }

    /// Returns the tests to run, each with its `WARPLINE_FUZZ` settings.
    fn runs(&self, gpus: usize) -> Vec<(&'static str, String)> {
        let mut common = format!("seed={} devices={}", self.seed, gpus.clamp(1, MAX_DEVICES));
        if let Some(without) = &self.without {
            common += &format!(" without={without}");
        }
        if let Some(workers) = self.workers {
            common += &format!(" workers={workers}");
        }
        let mut runs = Vec::new();
        if let Some(count) = self.fuzz.filter(|&count| count > 0) {
            runs.push(("gpu_random_programs_agree", format!("programs={count} {common}")));
        }
        if let Some(count) = self.fuzz_sticky.filter(|&count| count > 0) {
            runs.push(("gpu_sticky_programs_agree", format!("sticky={count} {common}")));
        }
        runs
    }

    pub(super) fn run(&self, binaries: &[TestProgram], runner: &TestRunner) -> Result<()> {
        let binary = binaries.iter().find(|binary| binary.name == TARGET);
        let binary = binary.with_context(|| format!("there is no test target {TARGET}"))?;
        let runs = self.runs(runner.gpus);
        ensure!(!runs.is_empty(), "no programs to run: both numbers are 0");
        let mut failed = Vec::new();
        for (test, settings) in runs {
            println!("\n{test}: {settings}");
            let mut command: Command = runner.command(binary, &runner.wrapper);
            let status = command
                .args([test, "--exact", "--include-ignored", "--nocapture"])
                .env("WARPLINE_FUZZ", settings)
                .stdin(Stdio::null())
                .status()
                .with_context(|| format!("cannot start {}", binary.path.display()))?;
            if !status.success() {
                failed.push(test);
            }
        }
        if !failed.is_empty() {
            bail!(
                "the simulator and the real driver differ, or a run failed: {}",
                failed.join(", ")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_program_is_a_separate_run() {
        let fuzz = FuzzOptions { fuzz: Some(5), seed: 7, ..FuzzOptions::default() };
        let expected = [("gpu_random_programs_agree", "programs=5 seed=7 devices=2".to_owned())];
        assert_eq!(fuzz.runs(2), expected);
        let sticky = FuzzOptions {
            fuzz: Some(0),
            fuzz_sticky: Some(3),
            without: Some("pools,ipc".to_owned()),
            workers: Some(4),
            ..FuzzOptions::default()
        };
        let settings = "sticky=3 seed=0 devices=3 without=pools,ipc workers=4".to_owned();
        assert_eq!(sticky.runs(8), [("gpu_sticky_programs_agree", settings)]);
    }

    #[test]
    fn an_archive_without_the_target_is_an_error() {
        let fuzz = FuzzOptions { fuzz: Some(5), ..FuzzOptions::default() };
        assert!(fuzz.is_requested() && !FuzzOptions::default().is_requested());
        let runner = TestRunner {
            gpus: 1,
            simulated: true,
            sanitizer: None,
            filter: None,
            wrapper: Vec::new(),
            env: Vec::new(),
            timeout: std::time::Duration::from_secs(1),
        };
        assert!(fuzz.run(&[], &runner).unwrap_err().to_string().contains(TARGET));
    }
}
