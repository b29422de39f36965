//! The workspace: its root, crates and files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The layers from the bottom up. Each crate has a list of the workspace crates that it may depend on.
///
/// `alloc` and `stream` do not depend on each other. `xtask` is not a layer and may depend on any crate.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("warpline-sync", &[]),
    ("warpline-files", &[]),
    ("warpline-cuda-sys-safe", &["warpline-sync"]),
    ("warpline-types", &["warpline-sync", "warpline-cuda-sys-safe"]),
    ("warpline-alloc", &["warpline-sync", "warpline-cuda-sys-safe", "warpline-types"]),
    ("warpline-stream", &["warpline-sync", "warpline-cuda-sys-safe", "warpline-types"]),
    (
        "warpline-runtime",
        &[
            "warpline-sync",
            "warpline-files",
            "warpline-cuda-sys-safe",
            "warpline-types",
            "warpline-alloc",
            "warpline-stream",
        ],
    ),
    (
        "warpline-kernels",
        &[
            "warpline-sync",
            "warpline-files",
            "warpline-cuda-sys-safe",
            "warpline-types",
            "warpline-alloc",
            "warpline-stream",
            "warpline-runtime",
        ],
    ),
    ("warpline-macros", &[]),
    (
        "warpline",
        &[
            "warpline-sync",
            "warpline-files",
            "warpline-cuda-sys-safe",
            "warpline-types",
            "warpline-alloc",
            "warpline-stream",
            "warpline-runtime",
            "warpline-kernels",
            "warpline-macros",
        ],
    ),
    (
        "warpline-nn",
        &[
            "warpline-sync",
            "warpline-files",
            "warpline-cuda-sys-safe",
            "warpline-types",
            "warpline-alloc",
            "warpline-stream",
            "warpline-runtime",
            "warpline-kernels",
            "warpline",
            "warpline-macros",
        ],
    ),
    (
        "warpline-parallel",
        &[
            "warpline-sync",
            "warpline-files",
            "warpline-cuda-sys-safe",
            "warpline-types",
            "warpline-alloc",
            "warpline-stream",
            "warpline-runtime",
            "warpline-kernels",
            "warpline",
            "warpline-nn",
        ],
    ),
];

/// A crate of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<CrateDependency>,
    pub(crate) targets: Vec<CargoTarget>,
}

/// A dependency of a crate.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CrateDependency {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) optional: bool,
    /// `dev` or `build`. `None`: a normal dependency.
    #[serde(default)]
    pub(crate) kind: Option<String>,
}

/// A cargo target of a crate, such as its library, a test or an example.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CargoTarget {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    /// The crate root of the target.
    pub(crate) src_path: PathBuf,
}

impl Crate {
    pub(crate) fn dir(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

#[derive(Deserialize)]
struct CargoMetadata {
    packages: Vec<Crate>,
}

/// Returns the root of the workspace that contains the current folder.
pub(crate) fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("there is no current folder")?;
    here.ancestors()
        .find(|dir| {
            fs::read_to_string(dir.join("Cargo.toml"))
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
        })
        .map(Path::to_path_buf)
        .with_context(|| format!("there is no Cargo workspace at or above {}", here.display()))
}

/// Returns the crates of the workspace from `cargo metadata`, from the bottom layer up.
pub(crate) fn crates(root: &Path) -> Result<Vec<Crate>> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: CargoMetadata = serde_json::from_slice(&output.stdout)?;
    let mut crates = metadata.packages;
    let height = |name: &str| LAYERS.iter().position(|(layer, _)| *layer == name);
    crates.sort_by_key(|c| (height(&c.name).unwrap_or(LAYERS.len()), c.name.clone()));
    Ok(crates)
}

/// Returns the cargo that runs this program. Outside cargo, returns the cargo on the path.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Returns the files below `dir` with one of these extensions, sorted. Without extensions, returns all files. Skips
/// hidden files, hidden folders and `target`. Returns no files if `dir` does not exist.
pub(crate) fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(dir, extensions, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            collect(&path, extensions, found)?;
        } else if extensions.is_empty() || extensions.contains(&extension.as_str()) {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns `path` relative to `root`, with forward slashes.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// Reads a text file and converts its line ends to those of Linux, so that hashes do not depend on the checkout.
pub(crate) fn read(path: &Path) -> Result<String> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.replace("\r\n", "\n"))
}

/// Makes the files of `to` equal to those of `from`, which are the files that [`files`] lists. Writes only files that
/// differ, so that Cargo rebuilds only the changed crates.
pub(crate) fn update(from: &Path, to: &Path) -> Result<()> {
    let names = |dir: &Path| -> Result<Vec<String>> {
        Ok(files(dir, &[])?.iter().map(|file| relative(dir, file)).collect())
    };
    let wanted: BTreeSet<String> = names(from)?.into_iter().collect();
    for stale in names(to)?.iter().filter(|name| !wanted.contains(*name)) {
        fs::remove_file(to.join(stale))?;
    }
    for name in wanted {
        let (new, old) = (from.join(&name), to.join(&name));
        let bytes = fs::read(&new).with_context(|| new.display().to_string())?;
        if fs::read(&old).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(old.parent().unwrap_or(to))?;
            fs::write(&old, bytes).with_context(|| old.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_lists_its_crates_from_the_bottom_up() {
        let root = root().unwrap();
        let crates = crates(&root).unwrap();
        let names: Vec<_> = crates.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names[..2], ["warpline-sync", "warpline-files"]);
        let at = |name| names.iter().position(|n| *n == name).unwrap();
        assert!(at("warpline-alloc") < at("warpline-kernels"));
        assert!(at("warpline-kernels") < at("warpline"));
        assert!(at("warpline") < at("xtask"));
        assert_eq!(relative(&root, crates[at("xtask")].dir()), "xtask");
    }

    #[test]
    fn files_are_sorted_and_chosen_by_extension() {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        for name in ["b.rs", "a/c.rs", "a/d.cu", "target/e.rs", ".git/f.rs"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let names = |extensions: &[&str]| -> Vec<String> {
            let found = files(dir.path(), extensions).unwrap();
            found.iter().map(|path| relative(dir.path(), path)).collect()
        };
        assert_eq!(names(&["rs"]), ["a/c.rs", "b.rs"]);
        assert_eq!(names(&[]), ["a/c.rs", "a/d.cu", "b.rs"]);
        assert!(files(&dir.path().join("missing"), &[]).unwrap().is_empty());
    }

    #[test]
    fn only_changed_files_are_written() {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
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
