//! `cargo xtask mutants`: brings former bugs back, one by one, and prints how many random programs it takes to find
//! each.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// Folder of the patches.
const PATCHES: &str = "tests/mutants";
/// Folder of the patched copy and its build, in the workspace.
const COPY: &str = "target/mutants";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Maximum number of programs to run for each bug
    #[arg(long, default_value_t = 100_000)]
    programs: u64,
    /// Only patches whose file name contains this text
    #[arg(default_value = "")]
    name: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let mut patches = workspace::files(&root.join(PATCHES), &["patch"])?;
    patches.retain(|path| path.to_string_lossy().contains(&args.name));
    ensure!(!patches.is_empty(), "no patch in {PATCHES} has {} in its name", args.name);
    let copy = root.join(COPY).join("workspace");
    let mut missed = Vec::new();
    for patch in patches {
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        workspace::update(&root, &copy)?;
        apply(&copy, &patch)?;
        match find(&copy, args.programs)? {
            Some(programs) => println!("{name}: found by program {programs}"),
            None => {
                println!("{name}: not found by {} programs", args.programs);
                missed.push(name);
            }
        }
    }
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

fn apply(copy: &Path, patch: &Path) -> Result<()> {
    // Hide the repository around the copy from git. Otherwise git would take the paths in the patch as relative to that
    // repository's root, and would skip all of them, because they are outside the current folder.
    let status = Command::new("git")
        .args(["apply", "--verbose"])
        .arg(patch)
        .current_dir(copy)
        .env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap_or(copy))
        .status()
        .context("git")?;
    ensure!(status.success(), "{} does not apply", patch.display());
    Ok(())
}

/// Runs programs until one finds the bug. Returns the number of programs that were run, or `None` if no program found
/// the bug.
fn find(copy: &Path, programs: u64) -> Result<Option<u64>> {
    let output = Command::new(workspace::cargo())
        .args([
            "test",
            "-p",
            "warpline-parallel",
            "--test",
            "programs",
            "--",
            "--exact",
            "random_programs",
        ])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.with_file_name("target"))
        .env("WARPLINE_PROGRAMS", programs.to_string())
        .env("WARPLINE_PROGRAM_SEED", "0")
        .output()
        .context("cargo")?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let failed = text.lines().find_map(|line| line.strip_prefix("program ")?.split_once(" fails"));
    match failed.and_then(|(seed, _)| seed.parse::<u64>().ok()) {
        Some(seed) => Ok(Some(seed + 1)),
        None => bail!("the patched workspace does not run:\n{text}"),
    }
}
