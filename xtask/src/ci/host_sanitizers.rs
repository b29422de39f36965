//! Host sanitizers, for code that needs no GPU: CPU kernels, layouts, the allocator, streams and the simulator.

use std::path::Path;

use xshell::{Shell, cmd};

use super::CiStep;

/// The host's target. Cargo builds build scripts and macros without the sanitizer only if `--target` is given.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests that run under AddressSanitizer: all tests of these crates except one, which checks that some programs do
/// not compile.
const ADDRESS: &[&str] = &[
    "test",
    "--target",
    TARGET,
    "--target-dir",
    "target/asan",
    "-p",
    "warpline-cuda-sys-safe",
    "-p",
    "warpline-alloc",
    "-p",
    "warpline-stream",
    "-p",
    "warpline-kernels",
    "--lib",
    "--tests",
    "--",
    "--skip",
    "safe_code_cannot_make_claims_about_work",
];

/// The tests that run under valgrind, which is about thirty times slower: unit tests of two crates that access raw
/// memory, and the tests of ops.
const VALGRIND: &[&str] = &[
    "test",
    "--target",
    TARGET,
    "--target-dir",
    "target/valgrind",
    "-p",
    "warpline-cuda-sys-safe",
    "-p",
    "warpline-kernels",
    "--lib",
    "--test",
    "ops",
    "--",
    "--test-threads=2",
];

/// Returns the steps whose tool is installed, and a message for each skipped step.
pub(super) fn steps(sh: &Shell) -> (Vec<CiStep>, Vec<String>) {
    let libdir = cmd!(sh, "rustup run nightly rustc --print target-libdir --target {TARGET}");
    let libdir = libdir.quiet().ignore_stderr().read().unwrap_or_default();
    let has_address = Path::new(&libdir).join("librustc-nightly_rt.asan.a").is_file();
    let has_valgrind = cmd!(sh, "valgrind --version").quiet().ignore_stdout().run().is_ok();
    available(cfg!(all(target_os = "linux", target_arch = "x86_64")), has_address, has_valgrind)
}

fn available(is_target: bool, has_address: bool, has_valgrind: bool) -> (Vec<CiStep>, Vec<String>) {
    let address = CiStep {
        toolchain: Some("nightly"),
        ..CiStep::new(
            "AddressSanitizer",
            ADDRESS,
            // A test forks, and its child exits without freeing the parent's allocations.
            &[("RUSTFLAGS", "-Zsanitizer=address"), ("ASAN_OPTIONS", "detect_leaks=0")],
        )
    };
    let runner = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";
    let valgrind = CiStep::new(
        "valgrind",
        VALGRIND,
        &[(runner, "valgrind --quiet --error-exitcode=9 --leak-check=no"), ("WARPLINE_SLOW", "1")],
    );
    let all = [
        (has_address, address, "the nightly toolchain with AddressSanitizer"),
        (has_valgrind, valgrind, "valgrind"),
    ];
    let (mut steps, mut skipped) = (Vec::new(), Vec::new());
    for (has, step, needs) in all {
        match is_target && has {
            true => steps.push(step),
            false => skipped.push(format!("{:<40} SKIPPED  needs {needs}", step.name)),
        }
    }
    (steps, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sanitizer_that_is_not_installed_is_skipped_with_a_message() {
        let names = |steps: &[CiStep]| steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let (steps, skipped) = available(true, true, true);
        assert_eq!((names(&steps).len(), skipped.len()), (2, 0));
        assert!(steps.iter().all(|step| step.args.contains(&TARGET)));
        let (steps, skipped) = available(true, false, true);
        assert_eq!(names(&steps), ["valgrind"]);
        assert!(skipped[0].contains("SKIPPED  needs the nightly"), "{skipped:?}");
        assert_eq!(available(false, true, true).1.len(), 2);
    }
}
