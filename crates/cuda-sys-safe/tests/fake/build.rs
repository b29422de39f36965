//! Compiles the fake libraries in this folder.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles `NAME.rs`, and returns the path of the library.
pub(crate) fn library(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    // A unique name: several tests of this process may build the same library at once.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let out = folder.join(format!("libfake_{name}_{process}_{next}.so"));
    // Read at run time, because the checkout may have moved since the build.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let source = package.join(format!("tests/fake/{name}.rs"));
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .args([&out, &source])
        .output()
        .expect("these tests need rustc");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let built = folder.join(format!("libfake_{name}.so"));
    // Renaming is atomic, so other tests never load an incomplete library.
    std::fs::rename(out, &built).unwrap();
    built
}
