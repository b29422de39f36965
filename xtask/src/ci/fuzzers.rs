//! Runs of the fuzzers of `tests/fuzz`, a minute for each parser.

use std::fs;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use super::CiStep;
use crate::workspace;

/// The fuzzers.
const TARGETS: [&str; 13] = [
    "allocator_options",
    "channel",
    "device",
    "disk_cache",
    "einsum",
    "ptx",
    "safetensors",
    "settings",
    "snapshot",
    "store_client",
    "store_file",
    "store_server",
    "trace",
];
/// Parent of the folders for inputs that runs find, so that the committed corpora do not change.
const FOUND: &str = "target/fuzz/found";

/// Returns a step for each fuzzer, or a message if cargo-fuzz is not installed.
pub(super) fn steps(sh: &Shell) -> Result<(Vec<CiStep>, Vec<String>)> {
    let version = cmd!(sh, "rustup run nightly cargo fuzz --version");
    if version.quiet().ignore_stdout().ignore_stderr().run().is_err() {
        return Ok((Vec::new(), vec![skipped()]));
    }
    let root = workspace::root()?;
    for target in TARGETS {
        let found = root.join(FOUND).join(target);
        fs::create_dir_all(&found).with_context(|| format!("cannot create {}", found.display()))?;
    }
    Ok((TARGETS.map(step).into(), Vec::new()))
}

fn step(target: &'static str) -> CiStep {
    // The steps under AddressSanitizer cover the memory errors. Without it, a fuzzer runs twice as many inputs.
    let args = ["fuzz", "run", "--fuzz-dir", "tests/fuzz", "--target-dir", "target/fuzz"];
    // The arguments of steps live as long as the program.
    let found = format!("{FOUND}/{target}").leak();
    let corpus = format!("tests/fuzz/corpus/{target}").leak();
    let args = [&args[..], &["--sanitizer", "none", target, found, corpus]].concat();
    let limits = ["--", "-max_total_time=60", "-timeout=10", "-max_len=4096"];
    let args = [&args[..], &limits].concat();
    CiStep { toolchain: Some("nightly"), ..CiStep::new(format!("fuzz {target}"), &args, &[]) }
}

fn skipped() -> String {
    format!("{:<40} SKIPPED  needs the nightly toolchain and `cargo install cargo-fuzz`", "fuzz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fuzzer_is_a_step_with_its_corpus() {
        let root = workspace::root().unwrap();
        let files = workspace::files(&root.join("tests/fuzz/fuzz_targets"), &["rs"]).unwrap();
        let names = files.iter().map(|file| file.file_stem().unwrap().to_string_lossy());
        assert!(names.eq(TARGETS), "{files:?}");
        for target in TARGETS {
            let corpus = format!("tests/fuzz/corpus/{target}");
            assert!(step(target).args.contains(&&*corpus) && root.join(corpus).is_dir());
        }
    }
}
