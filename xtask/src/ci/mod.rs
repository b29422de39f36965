//! `cargo xtask ci`: the checks and tests of continuous integration, in one command.

mod fuzzers;
mod host_sanitizers;
mod systems;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use crate::workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run everything: 64 schedules on one, two and three devices, soak tests and a rebuild of the PTX; also host
    /// sanitizers, fuzzers and checks for other systems, if their tools are installed
    #[arg(long)]
    full: bool,
    /// Skip the tests; the caller runs `cargo test --workspace` itself
    #[arg(long, conflicts_with = "full")]
    no_test: bool,
    /// Print the steps without running them
    #[arg(long)]
    list: bool,
}

/// A cargo command of a run.
#[derive(Debug, PartialEq, Eq)]
struct CiStep {
    name: String,
    args: Vec<&'static str>,
    env: Vec<(&'static str, &'static str)>,
    /// Time limit. A step that takes longer fails.
    limit: Option<Duration>,
    /// A toolchain of rustup. `None`: the current toolchain.
    toolchain: Option<&'static str>,
}

impl CiStep {
    fn new(
        name: impl Into<String>,
        args: &[&'static str],
        env: &[(&'static str, &'static str)],
    ) -> Self {
        let (args, env) = (args.to_vec(), env.to_vec());
        Self { name: name.into(), args, env, limit: None, toolchain: None }
    }
}

/// Tests the projects that depend on the allocator and on no other crate of Warpline. With a `limit`, a longer test
/// fails.
fn alloc_alone(limit: Option<Duration>) -> CiStep {
    CiStep { limit, ..CiStep::new("projects with alloc alone", &["xtask", "outside"], &[]) }
}

/// Tests a crate's shared state under many thread schedules. The step has its own target folder, because its
/// `RUSTFLAGS` would invalidate the usual build.
fn shuttle(crate_name: &'static str, schedules: &'static str) -> CiStep {
    let args = ["test", "-p", crate_name, "--test", "shuttle", "--target-dir", "target/shuttle"];
    let name = format!("thread schedules, {crate_name}");
    CiStep::new(name, &args, &[("RUSTFLAGS", "--cfg shuttle"), ("WARPLINE_SHUTTLE", schedules)])
}

/// Tests extreme integers in a dev build without overflow checks, where arithmetic wraps, and in a release build with
/// overflow checks. Each build has its own target folder.
fn extremes() -> [CiStep; 2] {
    let dev =
        ["test", "-p", "warpline-nn", "--test", "extremes", "--target-dir", "target/wrapping"];
    let release = [
        "test",
        "--release",
        "-p",
        "warpline-nn",
        "--test",
        "extremes",
        "--target-dir",
        "target/checked",
    ];
    [
        CiStep::new(
            "extreme integers, dev, wrapping",
            &dev,
            &[("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false")],
        ),
        CiStep::new(
            "extreme integers, release, checked",
            &release,
            &[("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")],
        ),
    ]
}

/// Returns the steps, quick steps first.
fn steps(full: bool, test: bool) -> Vec<CiStep> {
    let mut steps = vec![
        CiStep::new("format", &["fmt", "--all", "--check"], &[]),
        CiStep::new("tidy", &["xtask", "tidy"], &[]),
        CiStep::new("ptx", &["xtask", "ptx", "--check"], &[]),
        CiStep::new(
            "clippy",
            &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            &[],
        ),
        CiStep::new(
            "docs",
            &["doc", "--workspace", "--no-deps"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
    ];
    // Building every package from scratch takes minutes.
    let packages: &[&str] =
        if full { &["xtask", "package"] } else { &["xtask", "package", "--no-verify"] };
    steps.push(CiStep::new("packages", packages, &[]));
    steps.push(alloc_alone((full || test).then_some(Duration::from_secs(60))));
    if full || test {
        steps.push(CiStep::new("custom op", &["xtask", "custom-op"], &[]));
        // A schedule takes longest for kernels. So kernels has the fewest schedules and comes last.
        let crates = [
            ("warpline-alloc", "1000", "20000"),
            ("warpline-stream", "1000", "20000"),
            ("warpline-kernels", "300", "6000"),
        ];
        for (name, brief, long) in crates {
            steps.push(shuttle(name, if full { long } else { brief }));
        }
    }
    let all = ["test", "--workspace"];
    if full {
        for devices in ["1", "2", "3"] {
            steps.push(CiStep::new(
                format!("tests, {devices} simulated devices, 64 schedules"),
                &all,
                &[("WARPLINE_SCHEDULES", "64"), ("WARPLINE_SIM_DEVICES", devices)],
            ));
        }
        steps.extend(extremes());
        let soak = [&all[..], &["--", "--ignored", "soak_"]].concat();
        steps.push(CiStep::new("soak tests", &soak, &[]));
        let campaigns = [
            (
                "random driver programs",
                ["warpline-cuda-sys-safe", "driver_fuzz"],
                None,
                ("WARPLINE_FUZZ", "programs=50000 sticky=500"),
            ),
            (
                "random programs",
                ["warpline-parallel", "programs"],
                None,
                ("WARPLINE_PROGRAMS", "100000"),
            ),
            (
                "random calls of each op",
                ["warpline", "semantics"],
                Some("registry::calls"),
                ("WARPLINE_TEST_CALLS", "1000"),
            ),
            (
                "failures of each driver call of each op",
                ["warpline", "semantics"],
                Some("registry::faults"),
                ("WARPLINE_TEST_FAULTS", "all"),
            ),
            (
                "failures of each driver call",
                ["warpline-parallel", "suite"],
                Some("faults::"),
                ("WARPLINE_TEST_FAULTS", "all"),
            ),
            (
                "endings of processes",
                ["warpline-parallel", "suite"],
                Some("endings::"),
                ("WARPLINE_ENDINGS", "10000"),
            ),
            (
                "long load",
                ["warpline-parallel", "suite"],
                Some("load::"),
                ("WARPLINE_LOAD_SECONDS", "600"),
            ),
        ];
        for (name, [package, test], filter, setting) in campaigns {
            let args = ["test", "-p", package, "--test", test].into_iter().chain(filter);
            steps.push(CiStep::new(name, &args.collect::<Vec<_>>(), &[setting]));
        }
        steps.push(CiStep::new("ptx, rebuilt", &["xtask", "ptx", "--check", "--rebuild"], &[]));
    } else if test {
        steps.push(CiStep::new("tests", &all, &[("WARPLINE_SCHEDULES", "8")]));
    }
    steps
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(workspace::root()?);
    let mut steps = steps(args.full, !args.no_test);
    let mut skipped = Vec::new();
    if args.full {
        let optional = [host_sanitizers::steps(&sh), fuzzers::steps(&sh)?, systems::steps(&sh)];
        for (more, others) in optional {
            steps.extend(more);
            skipped.extend(others);
        }
    }
    if args.list {
        for step in &steps {
            let env: String = step.env.iter().map(|(n, v)| format!("{n}='{v}' ")).collect();
            let toolchain = step.toolchain.map_or(String::new(), |name| format!("+{name} "));
            println!("{:<40} {env}cargo {toolchain}{}", step.name, step.args.join(" "));
        }
        skipped.iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    let start = Instant::now();
    let mut done: Vec<(&str, Duration, bool)> = Vec::new();
    for step in &steps {
        println!("\n== {}", step.name);
        let begun = Instant::now();
        let (cargo, args) = (workspace::cargo(), &step.args);
        let command = match (step.toolchain, args.split_first()) {
            (Some(toolchain), _) => cmd!(sh, "rustup run {toolchain} cargo {args...}"),
            // Cargo would build this program again, if it was built with the features of the whole workspace.
            (None, Some((first, args))) if *first == "xtask" => {
                let own = std::env::current_exe()?;
                cmd!(sh, "{own} {args...}")
            }
            (None, _) => cmd!(sh, "{cargo} {args...}"),
        };
        let passed = command.envs(step.env.iter().copied()).run();
        if let Err(error) = &passed {
            eprintln!("{error}");
        }
        let time = begun.elapsed();
        let over = step.limit.filter(|limit| time > *limit);
        if let Some(limit) = over {
            eprintln!("{} took {time:.1?}; the limit is {limit:?}", step.name);
        }
        done.push((&step.name, time, passed.is_ok() && over.is_none()));
    }
    println!();
    for (name, time, passed) in &done {
        let mark = if *passed { "ok" } else { "FAILED" };
        println!("{name:<40} {mark:<6} {:>7.1} s", time.as_secs_f64());
    }
    skipped.iter().for_each(|line| println!("{line}"));
    println!("{:<40} {:<6} {:>7.1} s", "total", "", start.elapsed().as_secs_f64());
    let failed: Vec<&str> = done.iter().filter(|d| !d.2).map(|d| d.0).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'a>(steps: &'a [CiStep], part: &str) -> Vec<&'a CiStep> {
        steps.iter().filter(|s| s.name.contains(part)).collect()
    }

    #[test]
    fn the_usual_run_has_eight_schedules_and_no_rebuild() {
        let steps = steps(false, true);
        let names: Vec<_> = steps.iter().map(|s| s.name.as_str()).collect();
        let checks =
            ["format", "tidy", "ptx", "clippy", "docs", "packages", "projects with alloc alone"];
        let threads =
            ["alloc", "stream", "kernels"].map(|c| format!("thread schedules, warpline-{c}"));
        assert_eq!(names[..7], checks);
        assert_eq!(names[7], "custom op");
        assert_eq!(names[8..11], threads);
        assert_eq!(names[11..], ["tests"]);
        assert_eq!(named(&steps, "tests")[0].env, [("WARPLINE_SCHEDULES", "8")]);
        assert_eq!(named(&steps, "alone")[0].limit, Some(Duration::from_secs(60)));
        let untested = super::steps(false, false);
        assert_eq!(named(&untested, "alone")[0].limit, None);
        assert!(
            ["tests", "custom op", "thread schedules"]
                .iter()
                .all(|part| named(&untested, part).is_empty())
        );
    }

    #[test]
    fn the_full_run_has_three_device_counts_soak_tests_and_a_rebuild() {
        let steps = steps(true, true);
        let devices: Vec<_> = named(&steps, "64 schedules").iter().map(|s| s.env[1]).collect();
        assert_eq!(devices, ["1", "2", "3"].map(|n| ("WARPLINE_SIM_DEVICES", n)));
        assert_eq!(named(&steps, "soak").len(), 1);
        let checks: Vec<_> = named(&steps, "extreme").iter().map(|s| s.env[0].1).collect();
        assert_eq!(checks, ["false", "true"]);
        let schedules: Vec<_> =
            named(&steps, "thread schedules").iter().map(|s| s.env[1].1).collect();
        assert_eq!(schedules, ["20000", "20000", "6000"]);
        assert!(named(&steps, "rebuilt")[0].args.contains(&"--rebuild"));
        assert_eq!(named(&steps, "endings")[0].env, [("WARPLINE_ENDINGS", "10000")]);
        assert_eq!(named(&steps, "load")[0].env, [("WARPLINE_LOAD_SECONDS", "600")]);
    }
}
