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
    update(&fresh.join(folder.file_name().unwrap_or_default()), &folder)?;
    fs::remove_dir_all(&fresh)?;
    Ok(folder)
}

/// Makes the files of `to` equal to those of `from`. Writes only files that differ.
fn update(from: &Path, to: &Path) -> Result<()> {
    let names = |dir: &Path| -> Result<Vec<String>> {
        let files = workspace::files(dir, &[])?;
        Ok(files.iter().map(|file| workspace::relative(dir, file)).collect())
    };
    let wanted = names(from)?;
    for stale in names(to)?.iter().filter(|name| !wanted.contains(name)) {
        fs::remove_file(to.join(stale))?;
    }
    for name in wanted {
        let (new, old) = (from.join(&name), to.join(&name));
        let text = fs::read(new)?;
        if fs::read(&old).ok().as_ref() != Some(&text) {
            fs::create_dir_all(old.parent().unwrap_or(to))?;
            fs::write(old, text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_files_are_written() {
        let dir = Shell::new().unwrap().create_temp_dir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(&from.join("src/a.rs"), "a");
        write(&from.join("b.rs"), "new");
        update(&from, &to).unwrap();
        let time = || fs::metadata(to.join("src/a.rs")).unwrap().modified().unwrap();
        let before = time();
        write(&to.join("b.rs"), "old");
        write(&to.join("gone.rs"), "");
        std::thread::sleep(std::time::Duration::from_millis(20));
        update(&from, &to).unwrap();
        assert_eq!(time(), before);
        assert_eq!(fs::read_to_string(to.join("b.rs")).unwrap(), "new");
        assert!(!to.join("gone.rs").exists());
    }
}
