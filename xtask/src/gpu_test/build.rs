//! Builds test programs and lists them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::output;
use crate::workspace::{self, CargoTarget, Crate};

/// The profile in the root `Cargo.toml` for the programs of an archive.
pub(super) const ARCHIVE_PROFILE: &str = "gpu";

/// A test, example, bench or other program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestProgram {
    /// Name of the program's crate.
    pub(super) package: String,
    /// Name of the cargo target. For unit tests, the name of the library.
    pub(super) name: String,
    /// Path of the program.
    pub(super) path: PathBuf,
    /// Folder of the crate.
    pub(super) dir: PathBuf,
}

/// Returns all crates except `xtask`, from the bottom layer up.
pub(super) fn layers(root: &Path) -> Result<Vec<Crate>> {
    let mut crates = workspace::crates(root)?;
    crates.retain(|c| c.name != "xtask");
    Ok(crates)
}

/// Returns the integration tests that contain GPU tests. A library has none, because building the unit tests of one
/// library compiles those of all libraries.
fn gpu_targets(layers: &[Crate]) -> Result<BTreeSet<(String, String)>> {
    let mut chosen = BTreeSet::new();
    for layer in layers {
        for target in &layer.targets {
            if has_gpu_tests(target)? {
                let unit = target.kind.iter().any(|kind| kind == "lib");
                ensure!(
                    !unit,
                    "the unit tests of {} contain a GPU test; move it to crates/…/tests",
                    layer.name
                );
                chosen.insert((layer.name.clone(), target.name.clone()));
            }
        }
    }
    Ok(chosen)
}

/// Builds the integration tests of all crates that contain GPU tests.
pub(super) fn tests(root: &Path, profile: &str) -> Result<Vec<TestProgram>> {
    let layers = layers(root)?;
    let chosen = gpu_targets(&layers)?;
    let mut args = strings(&["test", "--no-run"]);
    for (_, name) in &chosen {
        args.extend(["--test".to_owned(), name.clone()]);
    }
    let mut binaries = in_order(cargo(root, profile, &args)?, &layers);
    // Cargo applies a target's name to all crates, so it may have built more than was chosen.
    binaries.retain(|binary| chosen.contains(&(binary.package.clone(), binary.name.clone())));
    Ok(binaries)
}

/// Returns whether the target is a library or an integration test, and its files define a function without parameters
/// with the name of a GPU test.
fn has_gpu_tests(target: &CargoTarget) -> Result<bool> {
    if !target.kind.iter().any(|kind| kind == "lib" || kind == "test") {
        return Ok(false);
    }
    let is_gpu_test = |line: &str| {
        let line = line.trim_start().strip_prefix("fn ")?;
        output::gpus_needed(line.split_once("()")?.0)
    };
    let root = &target.src_path;
    let files = match root.file_name().is_some_and(|name| name == "main.rs" || name == "lib.rs") {
        true => workspace::files(root.parent().unwrap_or(root), &["rs"])?,
        false => vec![root.clone()],
    };
    for file in files {
        if workspace::read(&file)?.lines().any(|line| is_gpu_test(line).is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Builds the integration test with this name.
pub(super) fn test(root: &Path, profile: &str, name: &str) -> Result<Vec<TestProgram>> {
    let layers = layers(root)?;
    let args = strings(&["test", "--no-run", "--test", name]);
    let built = cargo(root, profile, &args)?;
    Ok(in_order(built, &layers))
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// The used fields of cargo's `compiler-artifact` message.
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: ArtifactTarget,
    profile: ArtifactProfile,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct ArtifactTarget {
    name: String,
}

#[derive(Debug, Deserialize)]
struct ArtifactProfile {
    test: bool,
}

/// Runs cargo and returns the programs that it built. Always builds with `--workspace`: a build of some crates alone
/// may enable other features in their dependencies, and would compile these again.
fn cargo(root: &Path, profile: &str, args: &[String]) -> Result<Vec<Artifact>> {
    let output = Command::new(workspace::cargo())
        .args(args)
        .arg("--workspace")
        .args(["--profile", profile, "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    artifacts(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the programs in cargo's JSON messages.
fn artifacts(messages: &str) -> Result<Vec<Artifact>> {
    #[derive(Deserialize)]
    struct CargoMessage {
        reason: String,
    }
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: CargoMessage = serde_json::from_str(line).context("cargo's message")?;
        if message.reason == "compiler-artifact" {
            let artifact: Artifact = serde_json::from_str(line).context("cargo's artifact")?;
            if artifact.executable.is_some() {
                found.push(artifact);
            }
        }
    }
    Ok(found)
}

/// Returns the tests, in the order of the crates, then by name.
fn in_order(built: Vec<Artifact>, crates: &[Crate]) -> Vec<TestProgram> {
    let mut binaries = Vec::new();
    for member in crates {
        let mut own: Vec<TestProgram> = built
            .iter()
            .filter(|a| a.manifest_path == member.manifest_path && a.profile.test)
            .filter_map(|a| {
                Some(TestProgram {
                    package: member.name.clone(),
                    name: a.target.name.clone(),
                    path: a.executable.clone()?,
                    dir: member.dir().to_owned(),
                })
            })
            .collect();
        own.sort_by(|a, b| a.name.cmp(&b.name));
        binaries.extend(own);
    }
    binaries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(dir: &str, name: &str, kind: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/{dir}/Cargo.toml","target":{{"name":"{name}","kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = [
            message("b", "two", "test", true, "\"/t/two\""),
            "   Compiling something".to_owned(),
            message("b", "one", "test", true, "\"/t/one\""),
            message("b", "b", "lib", false, "null"),
            message("b", "run", "example", false, "\"/t/run\""),
            message("a", "a", "lib", true, "\"/t/a\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let member = |name: &str| Crate {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            manifest_path: format!("/w/{name}/Cargo.toml").into(),
            dependencies: Vec::new(),
            targets: Vec::new(),
        };
        let crates = [member("a"), member("b")];
        let built = artifacts(&messages.join("\n")).unwrap();
        let names: Vec<String> = in_order(built, &crates).into_iter().map(|b| b.name).collect();
        assert_eq!(names, ["a", "one", "two"]);
    }

    #[test]
    fn targets_without_gpu_tests_are_not_built() {
        let layers = layers(&workspace::root().unwrap()).unwrap();
        let found = |package: &str, name: &str| {
            let layer = layers.iter().find(|layer| layer.name == package).unwrap();
            let target = layer.targets.iter().find(|target| target.name == name).unwrap();
            has_gpu_tests(target).unwrap()
        };
        assert!(found("warpline", "semantics") && found("warpline-alloc", "gpu_host"));
        assert!(!found("warpline-kernels", "warpline_kernels"));
        assert!(!found("warpline-alloc", "host_suite"));
        assert!(!found("warpline-runtime", "warpline_runtime"));
        assert!(!found("warpline", "cuda_semantics"), "an example");
        let chosen = gpu_targets(&layers).unwrap();
        assert!(chosen.contains(&("warpline-kernels".to_owned(), "ops".to_owned())));
    }

    #[test]
    fn xtask_is_not_a_layer() {
        let layers = layers(&workspace::root().unwrap()).unwrap();
        assert!(layers.iter().any(|c| c.name == "warpline"));
        assert!(layers.iter().all(|c| c.name != "xtask"));
    }
}
