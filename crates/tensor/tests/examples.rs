//! The programs that are there to be copied run as they are, on simulated GPUs.

use std::process::Command;

/// Each is under 80 lines, and shown in the documentation.
const PROGRAMS: [&str; 5] =
    ["overlapped_loader", "server_threads", "simulated_race", "kv_cache", "allocator_backend"];

#[test]
fn they_run() {
    for name in PROGRAMS {
        let cargo = option_env!("CARGO").unwrap_or("cargo");
        let output = Command::new(cargo)
            .args(["run", "--quiet", "--example", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("WARPLINE_DRIVER", "sim:1")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .expect("cargo starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}");
    }
}

#[test]
fn they_are_short_and_shown() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let read = |path: &str| std::fs::read_to_string(format!("{folder}{path}")).expect(path);
    for name in PROGRAMS {
        assert!(read(&format!("examples/{name}.rs")).lines().count() < 80, "{name}");
        assert!(read("src/guide.rs").contains(&format!("{name}.rs")), "{name} is in the guide");
    }
}
