//! `cargo xtask custom-op`: a crate of another project, with an op of its own, built and tested against
//! the crates as they would be published.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use xshell::{Shell, cmd};

use crate::workspace::{self, Crate, LAYERS};

/// The project.
const PROJECT: &str = "tests/custom-op";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What `cargo test` is given after its own options, such as `-- --ignored gpu_`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    test: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let members = workspace::crates(&root)?;
    let published = LAYERS.iter().filter_map(|(name, _)| members.iter().find(|c| c.name == *name));
    let published: Vec<&Crate> = published.collect();
    let sh = Shell::new()?;
    sh.change_dir(&root);
    let packages = package(&sh, &root, &published)?;

    let manifest = root.join(PROJECT).join("Cargo.toml");
    // The versions that the workspace was built with, which are there without a network; cargo leaves out
    // what this project does not need.
    fs::copy(root.join("Cargo.lock"), root.join(PROJECT).join("Cargo.lock"))?;
    let used = patched(&workspace::read(&manifest)?);
    let patches = packages.iter().filter(|(name, _)| used.iter().any(|used| used == name));
    let patches: Vec<String> = patches.flat_map(|(name, path)| patch(name, path)).collect();
    ensure!(
        patches.len() == 2 * used.len(),
        "{PROJECT} takes the place of crates that are not here"
    );
    let (cargo, test) = (workspace::cargo(), &args.test);
    cmd!(sh, "{cargo} fmt --check --manifest-path {manifest}").run()?;
    // The crates that others wrote are those of the workspace's own build.
    let target = root.join("target");
    cmd!(sh, "{cargo} test --offline --manifest-path {manifest} --target-dir {target} {patches...} {test...}")
        .run()?;
    Ok(())
}

/// Makes the packages of crates and unpacks them: each crate's name, and its folder.
fn package(sh: &Shell, root: &Path, crates: &[&Crate]) -> Result<Vec<(String, PathBuf)>> {
    let names: Vec<&str> = crates.iter().flat_map(|c| ["-p", c.name.as_str()]).collect();
    let cargo = workspace::cargo();
    let options = ["--no-verify", "--allow-dirty", "--offline", "--exclude-lockfile"];
    cmd!(sh, "{cargo} package --quiet {options...} {names...}").run()?;
    let folder = root.join("target/package");
    crates.iter().map(|member| Ok((member.name.clone(), unpack(&folder, member)?))).collect()
}

/// Unpacks a package beside it. A file that is there with the same contents is left alone, so that cargo
/// builds again only what has changed.
fn unpack(folder: &Path, member: &Crate) -> Result<PathBuf> {
    let name = format!("{}-{}", member.name, member.version);
    let packed = folder.join(format!("{name}.crate"));
    let file = File::open(&packed).with_context(|| format!("no {}", packed.display()))?;
    let (fresh, place) = (folder.join("fresh").join(&name), folder.join(&name));
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    tar::Archive::new(GzDecoder::new(file)).unpack(folder.join("fresh"))?;
    update(&fresh, &place)?;
    fs::remove_dir_all(&fresh)?;
    Ok(place)
}

/// Makes `to` the same as `from`.
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

/// The crates for which a manifest names other places than the registry.
fn patched(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| line.trim() != "[patch.crates-io]").skip(1);
    let names = lines.take_while(|line| !line.starts_with('[')).filter_map(|l| l.split_once(" = "));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// What tells cargo so on the command line, which comes before the manifest's word.
fn patch(name: &str, path: &Path) -> [String; 2] {
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
        assert_eq!(patch("b", Path::new("/p/b-1"))[1], "patch.crates-io.b.path='/p/b-1'");
    }

    #[test]
    fn only_what_has_changed_is_written_again() {
        let dir = Shell::new().unwrap().create_temp_dir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let write = |place: &Path, text: &str| {
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
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
