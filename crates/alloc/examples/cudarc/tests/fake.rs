//! Tests of the program without a GPU. They use the same cudarc, backend and program, over the fake
//! `libcuda` of `fake/libcuda.rs`, and check that these parts work together and that their calls
//! are in order. `gpu.rs` tests the behaviour of a GPU.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the fake library. Returns its folder.
fn fake(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2024", "--crate-type=cdylib", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg("tests/fake/libcuda.rs")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
}

fn program(options: &str, libraries: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_alloc-over-cudarc"))
        .arg(options)
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap()
}

#[test]
fn the_program_runs_on_a_fake_driver_under_both_policies() {
    let folder = fake("fake-driver");
    for options in ["policy:default", "policy:torch"] {
        let output = program(options, &folder);
        let (text, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&errors));
        let expected = [
            "wrong results: 0",
            "kept while another stream used it: true",
            "used again after that: true",
        ];
        assert_eq!(text.lines().take(3).collect::<Vec<_>>(), expected, "{options}");
        // Blocks up to 1 MiB share a segment of 2 MiB on each stream.
        assert!(text.contains("\nblocks: 404, driver allocations: 2\n"), "{options}: {text}");
        assert!(text.contains("served from the cache: 99.5 %\n"), "{options}: {text}");
        assert!(text.ends_with("in the end 0\n"), "{options}: {text}");
    }
}

#[test]
fn a_machine_without_a_driver_is_an_error_and_no_panic() {
    let output = program("", Path::new("/nowhere"));
    let errors = String::from_utf8(output.stderr).unwrap();
    let refused = errors.contains("there is no CUDA driver (libcuda) here");
    assert!(output.status.success() || refused, "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}
