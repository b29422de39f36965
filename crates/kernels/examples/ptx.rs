//! Compiles the GPU code of all ops with NVRTC. `cargo xtask ptx` runs this program with the pinned
//! version of NVRTC.
//!
//! Usage: `ptx [--check | --rebuild] [NAME]...`. `NAME` is the name of a program; without names,
//! all programs are processed. With `--check`, nothing is compiled, and the run fails if a file was
//! compiled from a source that has changed since. With `--rebuild`, all programs are compiled again
//! and compared with the files.

use std::path::PathBuf;
use std::process::ExitCode;

use warpline_runtime::Result;
use warpline_runtime::module::{self, Compiler, Program, UpdateOutcome};

/// Returns the `ptx` folders of the crates that have programs, each with the programs in `names`,
/// or with all of its programs if `names` is empty.
fn folders(names: &[String]) -> Vec<(PathBuf, Vec<&'static Program>)> {
    // Read the variable at run time, because the checkout may have moved since the build.
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    let root = root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let all = [
        (root.join("../runtime/ptx"), module::programs()),
        (root.join("ptx"), warpline_kernels::programs()),
    ];
    let wanted = |program: &&Program| names.is_empty() || names.iter().any(|n| n == program.name());
    let some = |(folder, programs): (PathBuf, Vec<_>)| {
        (folder, programs.into_iter().filter(wanted).collect())
    };
    all.into_iter().map(some).collect()
}

fn main() -> ExitCode {
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let folders = folders(&names);
    let count: usize = folders.iter().map(|(_, programs)| programs.len()).sum();
    let wrong = match options.first().map(String::as_str) {
        None => write(&folders),
        Some("--check") => Ok(stale(&folders)),
        Some("--rebuild") => differing(&folders),
        Some(other) => {
            eprintln!("{other}: neither --check nor --rebuild");
            return ExitCode::FAILURE;
        }
    };
    match wrong {
        Ok(wrong) if wrong.is_empty() => {
            println!("{count} programs agree with their sources");
            ExitCode::SUCCESS
        }
        Ok(wrong) => {
            eprintln!("not made from their sources: {}; run `cargo xtask ptx`", wrong.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Folders = [(PathBuf, Vec<&'static Program>)];

fn write(folders: &Folders) -> Result<Vec<&'static str>> {
    let compiler = Compiler::find()?;
    for (folder, programs) in folders {
        for program in programs {
            if module::update(folder, program, &compiler)? == UpdateOutcome::Written {
                println!("wrote {}", program.name());
            }
        }
    }
    Ok(Vec::new())
}

fn stale(folders: &Folders) -> Vec<&'static str> {
    let stale = folders.iter().flat_map(|(folder, programs)| module::stale(folder, programs));
    stale.map(Program::name).collect()
}

fn differing(folders: &Folders) -> Result<Vec<&'static str>> {
    let compiler = Compiler::find()?;
    let mut differing = Vec::new();
    for (folder, programs) in folders {
        for program in programs {
            if !module::agrees(folder, program, &compiler)? {
                differing.push(program.name());
            }
        }
    }
    Ok(differing)
}
