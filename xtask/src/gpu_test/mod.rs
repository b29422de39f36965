//! `cargo xtask gpu-test`: the tests that need a GPU, crate by crate.
//!
//! The name of a GPU test begins with `gpu_`, or with `gpu2_`, `gpu3_` and so on if the test needs several GPUs. Each
//! test sees exactly as many GPUs as its name declares, so a test that opens more fails. GPU tests are `#[ignore]`d, so
//! that `cargo test` passes without a GPU. They open the driver that `WARPLINE_DRIVER` names: `sim:N`, or the real
//! driver if the variable is unset.
//!
//! An integration test is built if one of its files contains `fn gpu_…()`; unit tests contain none. Tests that need a
//! real GPU, not a simulated one, are in a test target whose name begins with `gpu_`.
//!
//! A test reads its data below the folder in the environment variable `CARGO_MANIFEST_DIR` at run time
//! (`WARPLINE_TEST_DATA` has the same value), and falls back to `env!("CARGO_MANIFEST_DIR")`. For tests from an archive
//! the folder that they were built in does not exist.

mod archive;
mod build;
mod compute_sanitizer;
mod fuzz;
mod gpus;
mod output;
mod runner;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::build::TestProgram;
use self::compute_sanitizer::SanitizerTool;
use self::fuzz::FuzzOptions;
use self::runner::TestRunner;
use crate::workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run on N simulated GPUs instead of real ones
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    sim: Option<u16>,
    /// Run only tests whose name contains S
    #[arg(long, value_name = "S")]
    filter: Option<String>,
    /// Use exactly N GPUs; an error if fewer are visible
    #[arg(long, value_name = "N", conflicts_with = "sim",
        value_parser = clap::value_parser!(u16).range(1..))]
    gpus: Option<u16>,
    /// Build an archive of the tests (.tar.gz) for a host without cargo, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "sim", "filter", "gpus"])]
    archive: Option<PathBuf>,
    /// Run the tests of an archive; needs neither cargo nor a network
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// With --from: unpack the archive into this folder and keep it
    #[arg(long, value_name = "DIR", requires = "from")]
    unpack: Option<PathBuf>,
    /// Build with optimizations
    #[arg(long, conflicts_with_all = ["archive", "from"])]
    release: bool,
    /// Run each test program under this command, such as "compute-sanitizer --tool memcheck"
    #[arg(long, value_name = "COMMAND")]
    wrapper: Option<String>,
    /// Run each test program under a tool of compute-sanitizer; each reported error is a failure
    #[arg(long, value_name = "TOOL", conflicts_with_all = ["wrapper", "sim", "fuzz", "fuzz_sticky"])]
    sanitizer: Option<SanitizerTool>,
    /// Set an environment variable for the tests; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Time limit for each run of a test program, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    #[command(flatten)]
    fuzz: FuzzOptions,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} does not have the form NAME=VALUE")),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.archive {
        return archive::write(&workspace::root()?, file);
    }
    // Make the runner first, so that a missing GPU is reported before a long build.
    let runner = test_runner(args)?;
    let Some(file) = &args.from else {
        let root = workspace::root()?;
        let profile = if args.release { "release" } else { "dev" };
        if args.fuzz.is_requested() {
            return args.fuzz.run(&build::test(&root, profile, fuzz::TARGET)?, &runner);
        }
        return run_all(&build::tests(&root, profile)?, &runner);
    };
    match &args.unpack {
        Some(dir) => run_archive(file, dir, &args.fuzz, &runner),
        None => {
            let dir = xshell::Shell::new()?.create_temp_dir()?;
            run_archive(file, dir.path(), &args.fuzz, &runner)
        }
    }
}

fn run_archive(file: &Path, dir: &Path, fuzz: &FuzzOptions, runner: &TestRunner) -> Result<()> {
    let manifest =
        archive::unpack(file, dir).with_context(|| format!("cannot unpack {}", file.display()))?;
    println!("{}: built from commit {} for {}", file.display(), manifest.commit, manifest.host);
    if fuzz.is_requested() {
        return fuzz.run(&manifest.tests, runner);
    }
    run_all(&manifest.tests, runner)
}

fn test_runner(args: &Args) -> Result<TestRunner> {
    let mut env = Vec::new();
    let gpus = if let Some(count) = args.sim {
        println!("{count} simulated GPUs");
        env.push(("WARPLINE_DRIVER".to_owned(), Some(format!("sim:{count}"))));
        usize::from(count)
    } else {
        // Without --sim the tests use the real driver, even if the caller's environment names another.
        env.push(("WARPLINE_DRIVER".to_owned(), None));
        let found = gpus::names()
            .context("no GPU found; run on a machine with a GPU, or simulate GPUs with --sim")?;
        for (index, name) in found.iter().enumerate() {
            println!("GPU {index}: {name}");
        }
        match args.gpus.map(usize::from) {
            Some(wanted) => {
                ensure!(
                    found.len() >= wanted,
                    "{wanted} GPUs were requested, but {} are visible",
                    found.len()
                );
                let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
                let first = gpus::first(wanted, visible.as_deref());
                env.push(("CUDA_VISIBLE_DEVICES".to_owned(), Some(first)));
                wanted
            }
            None => found.len(),
        }
    };
    env.extend(args.env.iter().map(|(name, value)| (name.clone(), Some(value.clone()))));
    let wrapper = args.wrapper.as_deref().unwrap_or_default();
    let wrapper = match args.sanitizer {
        Some(sanitizer) => sanitizer.wrapper()?,
        None => wrapper.split_whitespace().map(str::to_owned).collect(),
    };
    Ok(TestRunner {
        gpus,
        simulated: args.sim.is_some(),
        sanitizer: args.sanitizer,
        filter: args.filter.clone(),
        wrapper,
        env,
        timeout: Duration::from_secs(args.timeout),
    })
}

fn run_all(binaries: &[TestProgram], runner: &TestRunner) -> Result<()> {
    let mut outcomes = Vec::new();
    for binary in binaries {
        let outcome = runner
            .run(binary)
            .with_context(|| format!("cannot run {} of {}", binary.name, binary.package))?;
        outcomes.push((binary.package.clone(), outcome));
    }
    let summary = summary::Summary::new(outcomes);
    print!("\n{summary}");
    if summary.failed() > 0 {
        bail!("{} GPU tests failed", summary.failed());
    }
    ensure!(summary.passed() > 0, "no GPU test ran");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        TestCli::try_parse_from([&["gpu-test"], line].concat()).map(|line| line.args)
    }

    #[test]
    fn the_count_of_sim_is_optional() {
        assert_eq!(parse(&[]).unwrap().sim, None);
        assert_eq!(parse(&["--sim"]).unwrap().sim, Some(3));
        assert_eq!(parse(&["--sim=2"]).unwrap().sim, Some(2));
        assert!(parse(&["--sim=0"]).is_err());
    }

    #[test]
    fn variables_have_a_name_and_a_value() {
        let args = parse(&["--env", "A=b=c", "--env", "D="]).unwrap();
        let expected = [("A", "b=c"), ("D", "")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(args.env, expected);
        assert!(parse(&["--env", "A"]).is_err());
        assert!(parse(&["--env", "=b"]).is_err());
    }

    #[test]
    fn sim_selects_the_simulator() {
        let driver = |runner: &TestRunner| {
            runner.env.iter().find(|(name, _)| name == "WARPLINE_DRIVER").map(|(_, v)| v.clone())
        };
        let runner = test_runner(&parse(&["--sim=2", "--env", "A=b"]).unwrap()).unwrap();
        assert_eq!(driver(&runner), Some(Some("sim:2".to_owned())));
        assert_eq!(runner.gpus, 2);
        assert!(runner.env.contains(&("A".to_owned(), Some("b".to_owned()))));
    }

    #[test]
    fn contradictory_options_are_refused() {
        assert!(parse(&["--archive", "a", "--from", "b"]).is_err());
        assert!(parse(&["--sim", "--gpus", "1"]).is_err());
        assert!(parse(&["--unpack", "a"]).is_err());
        assert!(parse(&["--sanitizer", "memcheck", "--fuzz", "5"]).is_err());
        assert!(parse(&["--sanitizer", "initcheck"]).is_err());
        let args = parse(&["--sanitizer", "racecheck"]).unwrap();
        assert_eq!(args.sanitizer, Some(SanitizerTool::Racecheck));
    }
}
