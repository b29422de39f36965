//! Compiles the libraries of this folder.

use std::path::PathBuf;
use std::process::Command;

/// The library that `NAME.rs` becomes.
pub(crate) fn library(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let out = folder.join(format!("libfake_{name}_{}.so", std::process::id()));
    let source = format!("{}/tests/fake/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", &source, "-o"])
        .arg(&out)
        .output()
        .expect("these tests need rustc");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let built = folder.join(format!("libfake_{name}.so"));
    // At once: other tests may load it.
    std::fs::rename(out, &built).unwrap();
    built
}
