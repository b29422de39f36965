//! `cargo xtask gpu-test`: the tests that need a GPU, layer by layer.
//!
//! A GPU test is one whose name begins with `gpu_`, or with `gpu2_` (`gpu3_`, ...) when it needs so
//! many GPUs. A test sees as many GPUs as its name declares, so one that opens more fails. GPU tests are
//! `#[ignore]`d, so that `cargo test` passes without a GPU, and take the driver that `WARPLINE_DRIVER`
//! names: `sim:N`, or the real one when that is unset. A target is built where
//! `fn gpu_…` stands in one of its own files. Tests that only make sense on a real GPU are in a test
//! target whose own name begins with `gpu_`. A test reads its data
//! below the folder that the *run-time* environment variable `CARGO_MANIFEST_DIR` names
//! (`WARPLINE_TEST_DATA` holds the same), and falls back to `env!("CARGO_MANIFEST_DIR")`: when the
//! tests come out of an archive, the folder they were built in does not exist.

mod archive;
mod build;
mod fuzz;
mod gpus;
mod output;
mod sanitizer;
mod suite;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::build::Binary;
use self::fuzz::Fuzz;
use self::sanitizer::Sanitizer;
use self::suite::Suite;
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
    /// Only the tests whose name contains S
    #[arg(long, value_name = "S")]
    filter: Option<String>,
    /// Show the tests exactly N GPUs, and fail when there are fewer
    #[arg(long, value_name = "N", conflicts_with = "sim",
        value_parser = clap::value_parser!(u16).range(1..))]
    gpus: Option<u16>,
    /// Build the tests into FILE (.tar.gz) for a host without cargo, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "sim", "filter", "gpus"])]
    archive: Option<PathBuf>,
    /// Run the tests in an archive; needs neither cargo nor a network
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// With --from: unpack into this folder and leave it there, with examples/ and benches/
    #[arg(long, value_name = "DIR", requires = "from")]
    unpack: Option<PathBuf>,
    /// Build optimised, as for an archive
    #[arg(long, conflicts_with_all = ["archive", "from"])]
    release: bool,
    /// Run each test binary under this command, such as "compute-sanitizer --tool memcheck"
    #[arg(long, value_name = "COMMAND")]
    wrapper: Option<String>,
    /// Run each test binary under a tool of compute-sanitizer; what it finds is a failure
    #[arg(long, value_name = "TOOL", conflicts_with_all = ["wrapper", "sim", "fuzz", "fuzz_sticky"])]
    sanitizer: Option<Sanitizer>,
    /// Set an environment variable for the tests; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Seconds one test binary may run
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    #[command(flatten)]
    fuzz: Fuzz,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(file) = &args.archive {
        return archive::write(&workspace::root()?, file);
    }
    // Before anything is built or unpacked: without a GPU there is nothing to wait for.
    let suite = suite(args)?;
    let Some(file) = &args.from else {
        let root = workspace::root()?;
        let profile = if args.release { build::ARCHIVE_PROFILE } else { "dev" };
        if args.fuzz.asked() {
            return args.fuzz.run(&build::test(&root, profile, fuzz::TARGET)?, &suite);
        }
        return run_all(&build::tests(&root, profile)?, &suite);
    };
    match &args.unpack {
        Some(dir) => run_archive(file, dir, &args.fuzz, &suite),
        None => {
            let dir = xshell::Shell::new()?.create_temp_dir()?;
            run_archive(file, dir.path(), &args.fuzz, &suite)
        }
    }
}

fn run_archive(file: &Path, dir: &Path, fuzz: &Fuzz, suite: &Suite) -> Result<()> {
    let manifest =
        archive::unpack(file, dir).with_context(|| format!("cannot unpack {}", file.display()))?;
    println!("{}: made from {} for {}", file.display(), manifest.commit, manifest.host);
    if fuzz.asked() {
        return fuzz.run(&manifest.tests, suite);
    }
    run_all(&manifest.tests, suite)
}

fn suite(args: &Args) -> Result<Suite> {
    let mut env = Vec::new();
    let gpus = if let Some(count) = args.sim {
        println!("{count} simulated GPUs");
        env.push(("WARPLINE_DRIVER".to_owned(), Some(format!("sim:{count}"))));
        usize::from(count)
    } else {
        // The driver of choice is the real one, whatever the caller's environment says.
        env.push(("WARPLINE_DRIVER".to_owned(), None));
        let found = gpus::find().context(
            "no GPU to test on; run on a machine with one, or ask for simulated ones with --sim",
        )?;
        for (index, name) in found.iter().enumerate() {
            println!("GPU {index}: {name}");
        }
        match args.gpus.map(usize::from) {
            Some(wanted) => {
                ensure!(found.len() >= wanted, "{wanted} GPUs asked for, {} found", found.len());
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
    Ok(Suite {
        gpus,
        simulated: args.sim.is_some(),
        sanitizer: args.sanitizer,
        filter: args.filter.clone(),
        wrapper,
        env,
        timeout: Duration::from_secs(args.timeout),
    })
}

fn run_all(binaries: &[Binary], suite: &Suite) -> Result<()> {
    let mut outcomes = Vec::new();
    for binary in binaries {
        let outcome = suite
            .run(binary)
            .with_context(|| format!("cannot run {} of {}", binary.name, binary.package))?;
        outcomes.push((binary.package.clone(), outcome));
    }
    let summary = summary::Summary::new(outcomes);
    print!("\n{summary}");
    if summary.failed() > 0 {
        bail!("{} GPU tests failed", summary.failed());
    }
    ensure!(summary.passed() > 0, "no GPU test ran, so nothing is known");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from([&["gpu-test"], line].concat()).map(|line| line.args)
    }

    #[test]
    fn sim_may_have_a_count() {
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
    fn the_simulator_is_asked_for_and_otherwise_kept_out() {
        let driver = |suite: &Suite| {
            suite.env.iter().find(|(name, _)| name == "WARPLINE_DRIVER").map(|(_, v)| v.clone())
        };
        let suite = suite(&parse(&["--sim=2", "--env", "A=b"]).unwrap()).unwrap();
        assert_eq!(driver(&suite), Some(Some("sim:2".to_owned())));
        assert_eq!(suite.gpus, 2);
        assert!(suite.env.contains(&("A".to_owned(), Some("b".to_owned()))));
    }

    #[test]
    fn contradictory_options_are_refused() {
        assert!(parse(&["--archive", "a", "--from", "b"]).is_err());
        assert!(parse(&["--sim", "--gpus", "1"]).is_err());
        assert!(parse(&["--unpack", "a"]).is_err());
        assert!(parse(&["--sanitizer", "memcheck", "--fuzz", "5"]).is_err());
        assert!(parse(&["--sanitizer", "initcheck"]).is_err());
        let args = parse(&["--sanitizer", "racecheck"]).unwrap();
        assert_eq!(args.sanitizer, Some(Sanitizer::Racecheck));
    }
}
