//! The host's own sanitizers, over what needs no GPU: CPU kernels, layouts, the allocator, streams and
//! the simulator.

use std::path::Path;

use xshell::{Shell, cmd};

use super::{Step, step};

/// The target must be named: build scripts and macros are then built without the sanitizer.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Under AddressSanitizer, all tests of these crates that make no program of their own.
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
    "safe_code_cannot_vouch_for_work",
];

/// Under valgrind, which takes some thirty times as long: what reads and writes raw memory.
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
    "--",
    "--test-threads=2",
];

/// The steps, and what to say of those whose tool is not here.
pub(super) fn steps(sh: &Shell) -> (Vec<Step>, Vec<String>) {
    let libdir = cmd!(sh, "rustup run nightly rustc --print target-libdir --target {TARGET}");
    let libdir = libdir.quiet().ignore_stderr().read().unwrap_or_default();
    let has_address = Path::new(&libdir).join("librustc-nightly_rt.asan.a").is_file();
    let has_valgrind = cmd!(sh, "valgrind --version").quiet().ignore_stdout().run().is_ok();
    chosen(cfg!(all(target_os = "linux", target_arch = "x86_64")), has_address, has_valgrind)
}

fn chosen(here: bool, has_address: bool, has_valgrind: bool) -> (Vec<Step>, Vec<String>) {
    let address = Step {
        toolchain: Some("nightly"),
        ..step(
            "AddressSanitizer",
            ADDRESS,
            // A test that forks ends its child at once, with what the parent had allocated.
            &[("RUSTFLAGS", "-Zsanitizer=address"), ("ASAN_OPTIONS", "detect_leaks=0")],
        )
    };
    let runner = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";
    let valgrind = step(
        "valgrind",
        VALGRIND,
        &[(runner, "valgrind --quiet --error-exitcode=9 --leak-check=no"), ("WARPLINE_SLOW", "1")],
    );
    let all = [
        (has_address, address, "the nightly toolchain with its AddressSanitizer"),
        (has_valgrind, valgrind, "valgrind"),
    ];
    let (mut steps, mut skipped) = (Vec::new(), Vec::new());
    for (has, step, needs) in all {
        match here && has {
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
    fn each_sanitizer_runs_where_it_is_and_is_skipped_aloud_elsewhere() {
        let names = |steps: &[Step]| steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let (steps, skipped) = chosen(true, true, true);
        assert_eq!((names(&steps).len(), skipped.len()), (2, 0));
        assert!(steps.iter().all(|step| step.args.contains(&TARGET)));
        let (steps, skipped) = chosen(true, false, true);
        assert_eq!(names(&steps), ["valgrind"]);
        assert!(skipped[0].contains("SKIPPED  needs the nightly"), "{skipped:?}");
        assert_eq!(chosen(false, true, true).1.len(), 2);
    }
}
