//! Makes packages, and unpacks them so that cargo can build from them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use xshell::{Shell, cmd};

use crate::workspace::{self, Crate};

/// Makes the packages of crates, without building anything.
pub(crate) fn pack(sh: &Shell, crates: &[&Crate]) -> Result<()> {
    let names: Vec<&str> = crates.iter().flat_map(|c| ["-p", c.name.as_str()]).collect();
    let cargo = workspace::cargo();
    // The environment may name another target folder.
    let options = [
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--exclude-lockfile",
        "--target-dir",
        "target",
    ];
    cmd!(sh, "{cargo} package --quiet {options...} {names...}").run()?;
    Ok(())
}

/// Unpacks the packages of crates. Returns each crate's name and the folder of its package.
pub(crate) fn unpack_all(root: &Path, crates: &[&Crate]) -> Result<Vec<(String, PathBuf)>> {
    crates.iter().map(|member| Ok((member.name.clone(), unpack(root, member)?))).collect()
}

/// Returns the path of a crate's package.
pub(super) fn archive(root: &Path, member: &Crate) -> PathBuf {
    root.join("target/package").join(format!("{}-{}.crate", member.name, member.version))
}

/// Unpacks a package into a folder next to the package file, and returns the folder. Does not rewrite unchanged files,
/// so that cargo recompiles only changed crates.
fn unpack(root: &Path, member: &Crate) -> Result<PathBuf> {
    let packed = archive(root, member);
    let file = File::open(&packed).with_context(|| format!("cannot open {}", packed.display()))?;
    let folder = packed.with_extension("");
    let fresh = root.join("target/package/fresh");
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    tar::Archive::new(GzDecoder::new(file)).unpack(&fresh)?;
    workspace::update(&fresh.join(folder.file_name().unwrap_or_default()), &folder)?;
    fs::remove_dir_all(&fresh)?;
    Ok(folder)
}
