//! `cargo xtask ci`: what continuous integration runs, in one command.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use crate::workspace;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Everything: 64 schedules on one, two and three devices, soak tests, the PTX rebuilt, and a
    /// check for other systems, where their std is installed
    #[arg(long)]
    full: bool,
    /// Leave the tests out; the caller runs `cargo test --workspace` itself
    #[arg(long, conflicts_with = "full")]
    no_test: bool,
    /// Print the steps and run none
    #[arg(long)]
    list: bool,
}

/// A command with the variables it runs under.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    name: String,
    args: Vec<&'static str>,
    env: Vec<(&'static str, &'static str)>,
    /// What it may take at most.
    limit: Option<Duration>,
}

fn step(
    name: impl Into<String>,
    args: &[&'static str],
    env: &[(&'static str, &'static str)],
) -> Step {
    Step { name: name.into(), args: args.to_vec(), env: env.to_vec(), limit: None }
}

/// A project of its own that depends on the allocator alone: it must build within a minute.
fn alloc_alone() -> Step {
    let manifest = "crates/alloc/tests/outside/Cargo.toml";
    let args = ["test", "--manifest-path", manifest, "--target-dir", "target/outside"];
    Step { limit: Some(Duration::from_secs(60)), ..step("alloc alone", &args, &[]) }
}

/// What threads share, under many schedules of theirs. It is a build of its own, in a folder of its
/// own, so that the usual one is not thrown away.
fn shuttle(crate_name: &'static str, schedules: &'static str) -> Step {
    let args = ["test", "-p", crate_name, "--test", "shuttle", "--target-dir", "target/shuttle"];
    let name = format!("schedules of threads, {crate_name}");
    step(name, &args, &[("RUSTFLAGS", "--cfg shuttle"), ("WARPLINE_SHUTTLE", schedules)])
}

/// Systems, by `std::env::consts::OS`, with the targets of which one is enough.
const SYSTEMS: [(&str, &[&str]); 3] = [
    ("linux", &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]),
    ("macos", &["aarch64-apple-darwin", "x86_64-apple-darwin"]),
    ("windows", &["x86_64-pc-windows-msvc", "x86_64-pc-windows-gnu"]),
];

/// Checks that the crates compile for systems other than this one, and what to say of those for
/// which there is no std, as `has_std` tells.
fn other_systems(here: &str, has_std: impl Fn(&str) -> bool) -> (Vec<Step>, Vec<String>) {
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for (system, targets) in SYSTEMS.into_iter().filter(|(system, _)| *system != here) {
        let name = format!("check for {system}");
        match targets.iter().find(|target| has_std(target)) {
            Some(target) => {
                steps.push(step(name, &["check", "--workspace", "--target", target], &[]));
            }
            None => {
                let [target, ..] = targets else { continue };
                skipped.push(format!("{name:<40} SKIPPED  needs `rustup target add {target}`"));
            }
        }
    }
    (steps, skipped)
}

/// Whether rustc finds a target's std.
fn has_std(sh: &Shell, target: &str) -> bool {
    let folder = cmd!(sh, "rustc --print target-libdir --target {target}").quiet().read();
    folder.is_ok_and(|folder| Path::new(&folder).is_dir())
}

/// The steps, the quick ones first.
fn steps(full: bool, test: bool) -> Vec<Step> {
    let mut steps = vec![
        step("format", &["fmt", "--all", "--check"], &[]),
        step("tidy", &["xtask", "tidy"], &[]),
        step("ptx", &["xtask", "ptx", "--check"], &[]),
        step("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]),
        step("docs", &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")]),
    ];
    if full || test {
        steps.push(alloc_alone());
        // Whose schedules take longest comes last, and has the fewest.
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
            steps.push(step(
                format!("tests, {devices} simulated devices, 64 schedules"),
                &all,
                &[("WARPLINE_SCHEDULES", "64"), ("WARPLINE_SIM_DEVICES", devices)],
            ));
        }
        let soak = [&all[..], &["--", "--ignored", "soak_"]].concat();
        steps.push(step("soak tests", &soak, &[]));
        steps.push(step("ptx, rebuilt", &["xtask", "ptx", "--check", "--rebuild"], &[]));
    } else if test {
        steps.push(step("tests", &all, &[("WARPLINE_SCHEDULES", "8")]));
    }
    steps
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(workspace::root()?);
    let mut steps = steps(args.full, !args.no_test);
    let mut skipped = Vec::new();
    if args.full {
        let (checks, others) = other_systems(std::env::consts::OS, |target| has_std(&sh, target));
        steps.extend(checks);
        skipped = others;
    }
    if args.list {
        for step in &steps {
            let env: String = step.env.iter().map(|(n, v)| format!("{n}='{v}' ")).collect();
            println!("{:<40} {env}cargo {}", step.name, step.args.join(" "));
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
        let passed = cmd!(sh, "{cargo} {args...}").envs(step.env.iter().copied()).run();
        if let Err(error) = &passed {
            eprintln!("{error}");
        }
        let time = begun.elapsed();
        let over = step.limit.filter(|limit| time > *limit);
        if let Some(limit) = over {
            eprintln!("it took {time:.1?}, more than {limit:?}");
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

    fn named<'a>(steps: &'a [Step], part: &str) -> Vec<&'a Step> {
        steps.iter().filter(|s| s.name.contains(part)).collect()
    }

    #[test]
    fn the_usual_run_has_eight_schedules_and_no_rebuild() {
        let steps = steps(false, true);
        let names: Vec<_> = steps.iter().map(|s| s.name.as_str()).collect();
        let checks = ["format", "tidy", "ptx", "clippy", "docs", "alloc alone"];
        let threads =
            ["alloc", "stream", "kernels"].map(|c| format!("schedules of threads, warpline-{c}"));
        assert_eq!(names[..6], checks);
        assert_eq!(names[6..9], threads);
        assert_eq!(names[9..], ["tests"]);
        assert_eq!(named(&steps, "tests")[0].env, [("WARPLINE_SCHEDULES", "8")]);
        assert_eq!(named(&steps, "alone")[0].limit, Some(Duration::from_secs(60)));
        let untested = super::steps(false, false);
        assert!(["tests", "alone", "threads"].iter().all(|part| named(&untested, part).is_empty()));
    }

    #[test]
    fn the_full_run_has_three_device_counts_soak_tests_and_a_rebuild() {
        let steps = steps(true, true);
        let devices: Vec<_> = named(&steps, "64 schedules").iter().map(|s| s.env[1]).collect();
        assert_eq!(devices, ["1", "2", "3"].map(|n| ("WARPLINE_SIM_DEVICES", n)));
        assert_eq!(named(&steps, "soak").len(), 1);
        let schedules: Vec<_> = named(&steps, "threads").iter().map(|s| s.env[1].1).collect();
        assert_eq!(schedules, ["20000", "20000", "6000"]);
        assert!(named(&steps, "rebuilt")[0].args.contains(&"--rebuild"));
    }

    #[test]
    fn each_other_system_is_checked_by_one_target_or_skipped_aloud() {
        let (steps, skipped) = other_systems("linux", |target| target.contains("gnu"));
        assert_eq!(steps.iter().map(|s| s.args[3]).collect::<Vec<_>>(), ["x86_64-pc-windows-gnu"]);
        let [macos] = &skipped[..] else { panic!("{skipped:?}") };
        assert!(macos.starts_with("check for macos") && macos.contains("SKIPPED"), "{macos}");
        assert!(macos.contains("rustup target add aarch64-apple-darwin"), "{macos}");
        assert_eq!(other_systems("macos", |_| true).0.len(), 2);
        assert_eq!(other_systems("windows", |_| false).1.len(), 2);
    }
}
