//! Search for the library.

use std::path::{Path, PathBuf};

use libloading::Library;

use crate::dylib::{LibrarySearch, StatusCode};
use crate::system;

pub(super) const SEARCH: LibrarySearch = LibrarySearch {
    library: "NCCL",
    variable: "WARPLINE_NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    folders: &["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64"],
};

/// Returns the paths to try, in order.
pub(super) fn candidates() -> Vec<PathBuf> {
    let named = SEARCH.named_in_env();
    let mut all = SEARCH.candidates(named.as_deref());
    if named.is_none() {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let mut roots: Vec<PathBuf> = vec!["/usr/local".into(), "/usr".into()];
        // A program with elevated rights must not load a library from a folder that its caller
        // chose.
        if !system::has_elevated_rights() {
            let own = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
            roots.splice(0..0, own.map(PathBuf::from));
        }
        // There may be many wheels. Only existing files are tried, to keep error messages short.
        all.extend(roots.iter().flat_map(|root| in_wheels(root)).filter(|file| file.is_file()));
    }
    all
}

/// Returns the paths of the library in Python wheels below a folder.
fn in_wheels(root: &Path) -> Vec<PathBuf> {
    let lib = root.join("lib");
    let mut pythons: Vec<PathBuf> = std::fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        })
        .collect();
    pythons.sort_unstable();
    let packages = ["site-packages", "dist-packages"];
    let folders = pythons.iter().flat_map(|python| packages.map(|p| python.join(p)));
    folders
        .flat_map(|packages| {
            SEARCH.names.iter().map(move |n| packages.join("nvidia/nccl/lib").join(n))
        })
        .collect()
}

/// Formats a version as `major.minor.patch`.
pub(super) fn text(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Returns the version that a library reports, as text.
pub(super) fn version_text(library: &Library) -> String {
    type GetVersion = unsafe extern "C" fn(*mut std::ffi::c_int) -> StatusCode;
    // SAFETY: nccl.h declares this signature in all versions.
    let Ok(get) = (unsafe { library.get::<GetVersion>(b"ncclGetVersion\0") }) else {
        return "unknown".to_owned();
    };
    let mut version = 0;
    // SAFETY: the pointer is valid for writes.
    let status = unsafe { get(&mut version) };
    if status == 0 { text(version as u32) } else { "unknown".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_found_in_the_folder_of_a_python_version() {
        let root = std::env::temp_dir().join(format!("warpline-wheels-{}", std::process::id()));
        let lib = root.join("lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&lib).unwrap();
        let found = in_wheels(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(found.contains(&lib.join("libnccl.so.2")), "{found:?}");
        assert_eq!(text(21_805), "2.18.5");
    }
}
