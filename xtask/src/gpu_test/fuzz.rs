//! `cargo xtask gpu-test --fuzz`: random driver programs on the simulator and the real driver.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::build::Binary;
use super::suite::Suite;

/// The test target that makes the programs.
pub(super) const TARGET: &str = "driver_fuzz";

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(super) struct Fuzz {
    /// Run N random driver programs on the simulator and on the GPUs, instead of the tests
    #[arg(long, value_name = "N")]
    pub(super) fuzz: Option<u64>,
    /// Of programs that end with a sticky error, each in a process of its own, run N
    #[arg(long, value_name = "N")]
    pub(super) fuzz_sticky: Option<u64>,
    /// The first program's seed; each later one's is one more
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// Leave out these groups of steps, such as "captures,pools"
    #[arg(long, value_name = "GROUPS")]
    pub(super) without: Option<String>,
    /// Processes that run programs side by side, up to 16 unless said
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<u16>,
}

/// The most devices that programs use.
const MOST: usize = 3;

impl Fuzz {
    pub(super) fn asked(&self) -> bool {
        self.fuzz.is_some() || self.fuzz_sticky.is_some()
    }

    /// The tests to run, each with its settings.
    fn runs(&self, gpus: usize) -> Vec<(&'static str, String)> {
        let mut common = format!("seed={} devices={}", self.seed, gpus.clamp(1, MOST));
        if let Some(without) = &self.without {
            common += &format!(" without={without}");
        }
        if let Some(workers) = self.workers {
            common += &format!(" workers={workers}");
        }
        let mut runs = Vec::new();
        if let Some(count) = self.fuzz.filter(|&count| count > 0) {
            runs.push(("gpu_random_programs", format!("programs={count} {common}")));
        }
        if let Some(count) = self.fuzz_sticky.filter(|&count| count > 0) {
            runs.push(("gpu_sticky_programs", format!("sticky={count} {common}")));
        }
        runs
    }

    pub(super) fn run(&self, binaries: &[Binary], suite: &Suite) -> Result<()> {
        let binary = binaries.iter().find(|binary| binary.name == TARGET);
        let binary = binary.with_context(|| format!("there is no test target {TARGET}"))?;
        let runs = self.runs(suite.gpus);
        ensure!(!runs.is_empty(), "no program was asked for");
        let mut failed = Vec::new();
        for (test, settings) in runs {
            println!("\n{test}: {settings}");
            let mut command: Command = suite.command(binary, &suite.wrapper);
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
            bail!("the drivers differ: {}", failed.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_program_is_a_run_of_its_own() {
        let fuzz = Fuzz { fuzz: Some(5), seed: 7, ..Fuzz::default() };
        let expected = [("gpu_random_programs", "programs=5 seed=7 devices=2".to_owned())];
        assert_eq!(fuzz.runs(2), expected);
        let sticky = Fuzz {
            fuzz: Some(0),
            fuzz_sticky: Some(3),
            without: Some("pools,ipc".to_owned()),
            workers: Some(4),
            ..Fuzz::default()
        };
        let settings = "sticky=3 seed=0 devices=3 without=pools,ipc workers=4".to_owned();
        assert_eq!(sticky.runs(8), [("gpu_sticky_programs", settings)]);
    }

    #[test]
    fn an_archive_without_the_target_is_an_error() {
        let fuzz = Fuzz { fuzz: Some(5), ..Fuzz::default() };
        assert!(fuzz.asked() && !Fuzz::default().asked());
        let suite = Suite {
            gpus: 1,
            simulated: true,
            sanitizer: None,
            filter: None,
            wrapper: Vec::new(),
            env: Vec::new(),
            timeout: std::time::Duration::from_secs(1),
        };
        assert!(fuzz.run(&[], &suite).unwrap_err().to_string().contains(TARGET));
    }
}
