//! `cargo xtask outside` and `cargo xtask custom-op`: projects outside the workspace, built and tested against the
//! packages that would be published.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

use crate::{package, workspace};

/// Projects that depend on the allocator and on no other crate of Warpline. Each has its own lock file.
const ALLOC_ALONE: [&str; 2] = ["crates/alloc/tests/outside", "crates/alloc/examples/cudarc"];
/// A crate that defines its own op.
const CUSTOM_OP: &str = "tests/custom-op";
/// Arguments to clippy that deny warnings, and three of the workspace's lints that clippy allows by default.
const LINTS: [&str; 5] =
    ["--", "-Dwarnings", "-Dclippy::dbg_macro", "-Dclippy::todo", "-Dclippy::unimplemented"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Further arguments for `cargo test`, such as `-- --ignored gpu_`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    test: Vec<String>,
}

pub(crate) fn custom_op(args: &Args) -> Result<()> {
    // The workspace's lock file names versions that are already downloaded, so the build needs no network. Cargo drops
    // the entries that the project does not need.
    let root = workspace::root()?;
    fs::copy(root.join("Cargo.lock"), root.join(CUSTOM_OP).join("Cargo.lock"))?;
    // The workspace's target folder already contains the third-party crates.
    test(CUSTOM_OP, &["--offline", "--target-dir", "target"], &args.test)
}

pub(crate) fn alloc_alone(args: &Args) -> Result<()> {
    ALLOC_ALONE.iter().try_for_each(|project| {
        println!("-- {project}");
        test(project, &["--target-dir", "target/outside"], &args.test)
    })
}

/// Tests a project with packages in place of the crates that its manifest patches.
fn test(project: &str, options: &[&str], test: &[String]) -> Result<()> {
    let root = workspace::root()?;
    let manifest = root.join(project).join("Cargo.toml");
    let used = patched(&workspace::read(&manifest)?);
    let members = workspace::crates(&root)?;
    let mut crates = package::published(&members);
    crates.retain(|member| used.contains(&member.name));
    ensure!(
        crates.len() == used.len() && !used.is_empty(),
        "{project} must patch at least one crate, and only crates of this workspace"
    );
    let sh = Shell::new()?;
    sh.change_dir(&root);
    package::pack(&sh, &crates)?;
    let packages = package::unpack_all(&root, &crates)?;
    let patches = packages.iter().flat_map(|(name, path)| patch_option(name, path));
    let patches = &patches.collect::<Vec<_>>();
    let cargo = workspace::cargo();
    cmd!(sh, "{cargo} fmt --check --manifest-path {manifest}").run()?;
    cmd!(sh, "{cargo} clippy --all-targets --manifest-path {manifest} {options...} {patches...}")
        .args(LINTS)
        .run()?;
    cmd!(sh, "{cargo} test --manifest-path {manifest} {options...} {patches...} {test...}")
        .run()?;
    Ok(())
}

/// Returns the crates that a manifest patches.
fn patched(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[patch.crates-io]").skip(1);
    let names = lines.take_while(|line| !line.starts_with('[')).filter_map(|l| l.split_once(" = "));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Returns the cargo option that patches a crate. The option overrides the manifest.
fn patch_option(name: &str, path: &Path) -> [String; 2] {
    let path = path.to_string_lossy();
    ["--config".to_owned(), format!("patch.crates-io.{name}.path='{path}'")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patched_crates_are_read_from_the_manifest() {
        let manifest = "[dependencies]\na = \"1\"\n[patch.crates-io]\nb = { path = \"b\" }\nc = { path = \"c\" }\n\n[profile.dev]\nx = 1\n";
        assert_eq!(patched(manifest), ["b", "c"]);
        assert_eq!(patch_option("b", Path::new("/p/b-1"))[1], "patch.crates-io.b.path='/p/b-1'");
    }
}
