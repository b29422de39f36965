//! What a package must hold, so that it builds away from the repository and says what it is.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::workspace;

/// The most that the registry takes, compressed.
const MOST_BYTES: u64 = 10_000_000;
/// Files that are the repository's own, in every package.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// Folders of a crate whose files are needed to build it, whether or not the build says so: without its
/// PTX `warpline-kernels` builds, and has no kernels.
const NEEDED: [&str; 3] = ["src", "ptx", "docs"];
/// What names a file that the compiler reads, and whose path begins right behind it.
const READS: [&str; 4] = ["include_str!(", "include_bytes!(", "include!(", "#[path ="];

/// What is wrong with the package of the crate in `dir`, unpacked in `package`, which has `bytes` bytes.
pub(super) fn check(root: &Path, dir: &Path, package: &Path, bytes: u64) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    if bytes > MOST_BYTES {
        complaints.push(format!("{bytes} bytes, of which the registry takes {MOST_BYTES}"));
    }
    if !package.join("README.md").is_file() {
        complaints.push("no README.md".to_owned());
    }
    for name in LICENSES {
        let text = fs::read(package.join(name)).ok();
        // Where a checkout has no links, what they say stands in their place.
        if text.is_none() || text != fs::read(root.join(name)).ok() {
            complaints.push(format!("no {name}, or another than the repository's"));
        }
    }
    for folder in NEEDED {
        for file in workspace::files(&dir.join(folder), &[])? {
            let name = workspace::relative(dir, &file);
            if fs::read(package.join(&name)).ok() != fs::read(&file).ok() {
                complaints.push(format!("{name} is not what the repository has, or is left out"));
            }
        }
    }
    for file in workspace::files(package, &["rs"])? {
        let source = workspace::read(&file)?;
        for named in read_by(&source) {
            let place = resolve(&file, &named);
            if !place.as_deref().is_some_and(|p| p.starts_with(package) && p.is_file()) {
                let name = workspace::relative(package, &file);
                complaints.push(format!("{name} reads {named}, which is not in the package"));
            }
        }
    }
    Ok(complaints)
}

/// The files that a source file names literally, outside its comments.
fn read_by(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let behind = READS.iter().flat_map(|start| code.match_indices(start));
    let literals = behind.filter_map(|(at, start)| {
        let rest = code[at + start.len()..].trim_start().strip_prefix('"')?;
        rest.split_once('"').map(|(name, _)| name.to_owned())
    });
    literals.collect()
}

/// The file that a source file means by a relative path; `None` above the root of everything.
fn resolve(source: &Path, named: &str) -> Option<PathBuf> {
    let mut place = source.parent()?.to_path_buf();
    for part in Path::new(named).components() {
        match part {
            Component::ParentDir => place.pop().then_some(())?,
            Component::CurDir => {}
            part => place.push(part),
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with a crate, and its package.
    struct Trial {
        dir: xshell::TempDir,
    }

    impl Trial {
        fn new() -> Self {
            let trial = Self { dir: xshell::Shell::new().unwrap().create_temp_dir().unwrap() };
            for name in LICENSES {
                trial.write(name, name);
            }
            for place in ["a", "package"] {
                for name in LICENSES {
                    trial.write(&format!("{place}/{name}"), name);
                }
                trial.write(&format!("{place}/README.md"), "A.");
                trial.write(&format!("{place}/src/lib.rs"), "#[path = \"../b.rs\"]\nmod b;");
                trial.write(&format!("{place}/ptx/k.ptx.lzma"), "k");
                trial.write(&format!("{place}/b.rs"), "");
            }
            trial
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn remove(&self, name: &str) {
            fs::remove_file(self.dir.path().join(name)).unwrap();
        }

        fn complaints(&self, bytes: u64) -> Vec<String> {
            let root = self.dir.path();
            check(root, &root.join("a"), &root.join("package"), bytes).unwrap()
        }
    }

    #[test]
    fn a_whole_package_is_in_order() {
        assert_eq!(Trial::new().complaints(MOST_BYTES), [""; 0]);
    }

    #[test]
    fn a_package_that_is_too_large_is_refused() {
        let complaints = Trial::new().complaints(MOST_BYTES + 1);
        assert_eq!(complaints, ["10000001 bytes, of which the registry takes 10000000"]);
    }

    #[test]
    fn a_package_without_readme_or_license_is_refused() {
        let trial = Trial::new();
        trial.remove("package/README.md");
        trial.remove("package/LICENSE-MIT");
        // A link that the checkout did not resolve.
        trial.write("package/LICENSE-APACHE", "../../LICENSE-APACHE");
        let license = |name| format!("no {name}, or another than the repository's");
        let expected =
            ["no README.md".to_owned(), license("LICENSE-APACHE"), license("LICENSE-MIT")];
        assert_eq!(trial.complaints(0), expected);
    }

    #[test]
    fn a_package_without_a_source_or_its_ptx_is_refused() {
        let trial = Trial::new();
        trial.remove("package/ptx/k.ptx.lzma");
        trial.write("a/src/new.rs", "");
        let expected = ["src/new.rs", "ptx/k.ptx.lzma"]
            .map(|name| format!("{name} is not what the repository has, or is left out"));
        assert_eq!(trial.complaints(0), expected);
    }

    #[test]
    fn a_package_that_reads_files_from_elsewhere_is_refused() {
        let trial = Trial::new();
        trial.remove("package/b.rs");
        // There it is, in the repository, but who has the package alone does not have it.
        trial.write("docs.md", "D.");
        trial.write(
            "package/tests/c.rs",
            "// include!(\"x\")\nf(include_str!(\n \"../../docs.md\"))",
        );
        let expected = [
            "src/lib.rs reads ../b.rs, which is not in the package",
            "tests/c.rs reads ../../docs.md, which is not in the package",
        ];
        assert_eq!(trial.complaints(0), expected);
    }
}
