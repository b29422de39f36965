//! Tests this crate's build script in a package whose folder moves between two builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_moved_checkout_builds_with_its_target_folder() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("moved_checkout_{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let (before, after) = (folder.join("before"), folder.join("after"));
    for name in ["src", "ptx"] {
        fs::create_dir_all(before.join(name)).unwrap();
    }
    // The package declares its own workspace, because its folder is inside this workspace.
    let manifest = "[package]\nname = \"moved\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(before.join("Cargo.toml"), manifest).unwrap();
    fs::write(before.join("build.rs"), include_str!("../../build.rs")).unwrap();
    fs::write(before.join("ptx/first.ptx.lzma"), "code").unwrap();
    assert_eq!(built(&before, "built"), "built first code");

    fs::rename(&before, &after).unwrap();
    assert_eq!(built(&after, "moved"), "moved first code");

    fs::write(after.join("ptx/second.ptx.lzma"), "more").unwrap();
    assert_eq!(built(&after, "added"), "added first code second more");
    fs::remove_dir_all(&folder).unwrap();
}

/// Writes a program that prints `word`, so that cargo compiles it again, and returns the program's
/// output.
fn built(package: &Path, word: &str) -> String {
    let program = format!(
        "const PTX: &[(&str, &[u8])] = include!(concat!(env!(\"OUT_DIR\"), \"/ptx.rs\"));\n\
         fn main() {{\n\
             print!(\"{word}\");\n\
             for (name, bytes) in PTX {{\n\
                 print!(\" {{name}} {{}}\", String::from_utf8_lossy(bytes));\n\
             }}\n\
         }}\n"
    );
    fs::write(package.join("src/main.rs"), program).unwrap();
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .env_remove("RUSTC_WRAPPER")
        .args(["run", "--quiet", "--offline", "--target-dir", "target"])
        .current_dir(package)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}
