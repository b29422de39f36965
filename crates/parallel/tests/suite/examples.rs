//! The training examples run under `warpline-run` on two ranks.
#![cfg(unix)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// The examples, with arguments for a short run, a text that rank 0 prints, and the backends. Two processes with
/// simulated GPUs need minutes to learn the digits.
const PROGRAMS: [(&str, &str, &str, &[&str]); 3] = [
    ("train_digits_ddp", "--epochs 3", "rank 0: ", &["cpu"]),
    (
        "train_gpt_ddp",
        "--steps 10 --batch-size 2 --context 8 --width 16 --layers 1",
        "step 10: loss",
        &["cpu", "nccl"],
    ),
    (
        "resnet_ddp",
        "--steps 1 --batch-size 2 --size 32 --workers 0",
        "step 1: loss",
        &["cpu", "nccl"],
    ),
];

#[test]
fn the_training_examples_run_on_two_ranks() {
    let own = std::env::current_exe().expect("this test's file");
    let folder = own.parent().and_then(Path::parent).expect("target folder, profile, deps");
    let profile = match folder.file_name().and_then(OsStr::to_str).expect("a profile") {
        "debug" => "dev",
        other => other,
    };
    // Build what `cargo test --workspace` has built already. An example of `warpline-nn` is needed for the same features
    // of dependencies.
    let mut build = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    build.args(["build", "--quiet", "--workspace", "--profile", profile, "--target-dir"]);
    build.arg(folder.parent().expect("target folder"));
    build.args(["--example", "resnet"]);
    build.args(PROGRAMS.iter().flat_map(|(name, ..)| ["--example", name]));
    let output = build.output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, args, expected, backends) in PROGRAMS {
        for &backend in backends {
            let output = Command::new(env!("CARGO_BIN_EXE_warpline-run"))
                .args(["--nproc", "2", "--driver", "sim", "--"])
                .arg(folder.join("examples").join(name))
                .args(args.split(' '))
                .args(["--backend", backend])
                .output()
                .expect("warpline-run starts");
            let [out, err] = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
            assert!(output.status.success(), "{name} on {backend}: {out}{err}");
            assert!(out.contains(expected), "{name} on {backend}: {out}{err}");
        }
    }
}
