//! Compiles the GPU code of all ops, by NVRTC; `cargo xtask ptx` runs it with the version that is pinned.
//!
//! `ptx [--check | --rebuild]`: with `--check` no file is written, and one that was made from another
//! source is a failure; with `--rebuild` all are compiled anew and compared.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use warpline_runtime::module::{Change, Compiler, Program, stale, update};

/// The crates that have programs, with those.
fn folders() -> [(PathBuf, Vec<&'static Program>); 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [
        (root.join("../runtime/ptx"), warpline_runtime::module::programs()),
        (root.join("ptx"), warpline_kernels::programs()),
    ]
}

fn main() -> ExitCode {
    let check = std::env::args().any(|arg| arg == "--check");
    match if check { compare() } else { write() } {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> warpline_runtime::Result<ExitCode> {
    let mut wrong = 0;
    for (folder, programs) in folders() {
        for program in stale(&folder, &programs) {
            eprintln!("{}: not made from this source", program.name());
            wrong += 1;
        }
    }
    println!("{wrong} programs are to be compiled");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write() -> warpline_runtime::Result<ExitCode> {
    let compiler = Compiler::find()?;
    for (folder, programs) in folders() {
        for program in programs {
            if update(&folder, program, &compiler)? == Change::Written {
                println!("wrote {}", program.name());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
