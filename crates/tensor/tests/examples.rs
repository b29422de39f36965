//! Tests that the example programs of the documentation run unchanged on simulated GPUs.

use std::env::consts::EXE_EXTENSION;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Programs that the documentation shows. Each has fewer than 80 lines.
const PROGRAMS: [&str; 5] =
    ["overlapped_loader", "server_threads", "simulated_race", "kv_cache", "allocator_backend"];

#[test]
fn the_example_programs_run() {
    let own = std::env::current_exe().expect("this test's file");
    let folder = own.parent().and_then(Path::parent).expect("target folder, profile, deps");
    let target = folder.parent().expect("target folder");
    let profile = match folder.file_name().and_then(OsStr::to_str).expect("a profile") {
        "debug" => "dev",
        other => other,
    };
    // Build with the features of the whole workspace, which `cargo test --workspace` has built
    // already.
    let mut build = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    build.args(["build", "--quiet", "--workspace", "--profile", profile, "--target-dir"]);
    build.arg(target);
    let output = build.args(PROGRAMS.iter().flat_map(|name| ["--example", name])).output();
    let output = output.expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in PROGRAMS {
        let program = folder.join("examples").join(name).with_extension(EXE_EXTENSION);
        let output = Command::new(program)
            .env("WARPLINE_DRIVER", "sim:1")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .expect(name);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}");
    }
}

#[test]
fn the_example_programs_are_short_and_shown() {
    let read = |path: &str| std::fs::read_to_string(path).expect(path);
    for name in PROGRAMS {
        assert!(read(&format!("examples/{name}.rs")).lines().count() < 80, "{name}");
        assert!(read("src/guide.rs").contains(&format!("{name}.rs")), "{name} is in the guide");
    }
}
