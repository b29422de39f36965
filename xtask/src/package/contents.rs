//! Checks of a package's files, so that the package builds outside the repository.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, anyhow};
use proc_macro2::{TokenStream, TokenTree};
use syn::{Expr, ExprLit, Lit, LitStr, MetaNameValue};

use crate::workspace;

/// Maximum compressed size of a package on the registry, in bytes.
const MAX_BYTES: u64 = 10_000_000;
/// Files of the repository's root that every package contains.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// Folders of a crate that its package must contain completely. A build does not reveal every missing file:
/// `warpline-kernels` builds without its PTX, but has no kernels then.
const COMPLETE_FOLDERS: [&str; 3] = ["src", "ptx", "docs"];
/// Macros that read the file that their argument names.
const INCLUDES: [&str; 3] = ["include_str", "include_bytes", "include"];

/// Returns the faults of the package of the crate in `dir`. `package` is the folder that the package is unpacked into,
/// and `bytes` is its compressed size.
pub(super) fn check(root: &Path, dir: &Path, package: &Path, bytes: u64) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    if bytes > MAX_BYTES {
        complaints.push(format!("it has {bytes} bytes; the registry accepts at most {MAX_BYTES}"));
    }
    if !package.join("README.md").is_file() {
        complaints.push("README.md is missing".to_owned());
    }
    for name in LICENSES {
        let text = fs::read(package.join(name)).ok();
        // On systems without symbolic links, a checkout has a file with the link's target as its text.
        if text.is_none() || text != fs::read(root.join(name)).ok() {
            complaints.push(format!("{name} is missing or differs from the repository's"));
        }
    }
    for folder in COMPLETE_FOLDERS {
        for file in workspace::files(&dir.join(folder), &[])? {
            let name = workspace::relative(dir, &file);
            if fs::read(package.join(&name)).ok() != fs::read(&file).ok() {
                complaints.push(format!("{name} is missing or differs from the repository's"));
            }
        }
    }
    for file in workspace::files(package, &["rs"])? {
        let name = workspace::relative(package, &file);
        let source = workspace::read(&file)?.parse().map_err(|error| anyhow!("{name}: {error}"))?;
        for named in referenced_files(source) {
            let path = resolve(&file, &named);
            if !path.as_deref().is_some_and(|p| p.starts_with(package) && p.is_file()) {
                complaints.push(format!("{name} reads {named}, which is not in the package"));
            }
        }
    }
    Ok(complaints)
}

/// Returns the paths that a source file references as string literals, also in the arguments of macros.
fn referenced_files(source: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = source.into_iter().collect();
    let mut paths = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let path = match &tokens[..at] {
            [.., TokenTree::Ident(name), TokenTree::Punct(mark)]
                if mark.as_char() == '!' && INCLUDES.iter().any(|include| name == include) =>
            {
                let argument = group.stream().into_iter().next().map(TokenStream::from);
                argument.and_then(|argument| syn::parse2::<LitStr>(argument).ok())
            }
            [.., TokenTree::Punct(mark)] if mark.as_char() == '#' => path_attribute(group.stream()),
            _ => None,
        };
        match path {
            Some(path) => paths.push(path.value()),
            None => paths.extend(referenced_files(group.stream())),
        }
    }
    paths
}

/// Returns the value of the attribute `path = ".."`.
fn path_attribute(attribute: TokenStream) -> Option<LitStr> {
    let attribute: MetaNameValue = syn::parse2(attribute).ok()?;
    match attribute.value {
        Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) if attribute.path.is_ident("path") => {
            Some(path)
        }
        _ => None,
    }
}

/// Resolves a path relative to a source file. `None` if the path leads above the root of the file system.
fn resolve(source: &Path, named: &str) -> Option<PathBuf> {
    let mut path = source.parent()?.to_path_buf();
    for part in Path::new(named).components() {
        match part {
            Component::ParentDir => path.pop().then_some(())?,
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one crate, and the unpacked package of the crate.
    struct TestRepository {
        dir: xshell::TempDir,
    }

    impl TestRepository {
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
    fn a_complete_package_has_no_faults() {
        assert_eq!(TestRepository::new().complaints(MAX_BYTES), [""; 0]);
    }

    #[test]
    fn a_package_that_is_too_large_is_refused() {
        let complaints = TestRepository::new().complaints(MAX_BYTES + 1);
        assert_eq!(complaints, ["it has 10000001 bytes; the registry accepts at most 10000000"]);
    }

    #[test]
    fn a_package_without_readme_or_license_is_refused() {
        let trial = TestRepository::new();
        trial.remove("package/README.md");
        trial.remove("package/LICENSE-MIT");
        // A symbolic link that was checked out as a text file.
        trial.write("package/LICENSE-APACHE", "../../LICENSE-APACHE");
        let license = |name| format!("{name} is missing or differs from the repository's");
        let expected =
            ["README.md is missing".to_owned(), license("LICENSE-APACHE"), license("LICENSE-MIT")];
        assert_eq!(trial.complaints(0), expected);
    }

    #[test]
    fn a_package_without_a_source_or_its_ptx_is_refused() {
        let trial = TestRepository::new();
        trial.remove("package/ptx/k.ptx.lzma");
        trial.write("a/src/new.rs", "");
        let expected = ["src/new.rs", "ptx/k.ptx.lzma"]
            .map(|name| format!("{name} is missing or differs from the repository's"));
        assert_eq!(trial.complaints(0), expected);
    }

    #[test]
    fn a_package_that_references_files_outside_is_refused() {
        let trial = TestRepository::new();
        trial.remove("package/b.rs");
        // The file exists in the repository, but not in the package.
        trial.write("docs.md", "D.");
        trial.write(
            "package/tests/c.rs",
            "// include!(\"x\")\n/* include!(\"y\") */ f(\"include!(\\\"z\\\")\", include_str!(\n \"../../docs.md\",))",
        );
        let expected = [
            "src/lib.rs reads ../b.rs, which is not in the package",
            "tests/c.rs reads ../../docs.md, which is not in the package",
        ];
        assert_eq!(trial.complaints(0), expected);
    }
}
