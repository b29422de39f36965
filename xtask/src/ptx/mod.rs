//! `cargo xtask ptx`: compiles CUDA sources with the pinned version of NVRTC.
//!
//! `crates/kernels/examples/ptx.rs` compiles the programs of all ops. This module compiles the CUDA sources of the
//! driver's tests to a `.ptx` and a `.sm90.cubin` file beside each source. The header of the `.ptx` file has the hashes
//! of the source and of the machine code.

mod nvrtc;
mod source;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use warpline_files::NewFile;

use self::nvrtc::PinnedCompiler;
use self::source::PtxModule;
use crate::workspace;

/// Folders with CUDA sources of the driver's tests.
const SOURCES: &[&str] = &["crates/cuda-sys-safe/tests"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compile only the programs with these names
    names: Vec<String>,
    /// Write nothing; fail if the hash of a source does not match its PTX
    #[arg(long)]
    check: bool,
    /// With --check: also compile every source and compare the result
    #[arg(long, requires = "check")]
    rebuild: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let modules = modules(&root)?;
    let compiler =
        (!args.check || args.rebuild).then(|| PinnedCompiler::find(&root)).transpose()?;
    let mode = match (args.check, args.rebuild) {
        (false, _) => None,
        (true, false) => Some("--check"),
        (true, true) => Some("--rebuild"),
    };
    run_programs(&root, mode, &args.names, compiler.as_ref())?;
    match &compiler {
        _ if !args.names.is_empty() => Ok(()),
        Some(compiler) if !args.check => write_all(&root, &modules, compiler),
        compiler => check(&root, &modules, compiler.as_ref()),
    }
}

/// Compiles or checks the programs of all ops. Builds the example `ptx` with the options of the workspace's tests, so
/// that the two share their compiled crates.
fn run_programs(
    root: &Path,
    mode: Option<&str>,
    names: &[String],
    compiler: Option<&PinnedCompiler>,
) -> Result<()> {
    let sh = xshell::Shell::new()?;
    sh.change_dir(root);
    let own = std::env::current_exe()?;
    let Some(target) = own.ancestors().nth(2) else {
        bail!("{} is not in a target folder", own.display());
    };
    let cargo = workspace::cargo();
    // Cargo compiles dependencies of procedural macros that `ptx` alone needs with other options than
    // for the tests. With `ports`, the options are equal, and both builds share all crates.
    let examples = ["--example", "ptx", "--example", "ports"];
    xshell::cmd!(sh, "{cargo} build --quiet --workspace {examples...} --target-dir {target}")
        .run()?;
    let program = target.join("debug/examples/ptx").with_extension(std::env::consts::EXE_EXTENSION);
    // The program writes to the folder that `CARGO_MANIFEST_DIR` names. Cargo set this variable to
    // the folder of `xtask`.
    let mut command = xshell::cmd!(sh, "{program} {mode...} {names...}")
        .env("CARGO_MANIFEST_DIR", root.join("crates/kernels"));
    if let Some(compiler) = compiler {
        command = command.env("WARPLINE_NVRTC", compiler.library());
    }
    Ok(command.run()?)
}

fn write_all(root: &Path, modules: &[PtxModule], compiler: &PinnedCompiler) -> Result<()> {
    for module in modules {
        let (text, cubin) = compile(compiler, module)?;
        write(root, &module.ptx_path(), text.as_bytes())?;
        write(root, &module.cubin_path(), &cubin)?;
    }
    Ok(())
}

/// Reads the modules of the driver's tests.
fn modules(root: &Path) -> Result<Vec<PtxModule>> {
    let mut modules = Vec::new();
    for sources in SOURCES.iter().map(|sources| root.join(sources)) {
        for path in workspace::files(&sources, &["cu"])? {
            modules.push(PtxModule::read(&sources, &path)?);
        }
    }
    Ok(modules)
}

fn write(root: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let same = fs::read(path).is_ok_and(|old| old == bytes);
    let name = workspace::relative(root, path);
    println!("{:<9} {name}", if same { "unchanged" } else { "wrote" });
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    Ok(file.commit()?)
}

/// Returns the PTX with its header, and the machine code.
fn compile(compiler: &PinnedCompiler, module: &PtxModule) -> Result<(String, Vec<u8>)> {
    let (ptx, cubin) = compiler.compile(module)?;
    Ok((source::with_header(module, &ptx, &cubin), cubin))
}

/// Returns the fault of a module's committed files. `None` if they agree with the source.
fn find_fault(
    module: &PtxModule,
    compiler: Option<&PinnedCompiler>,
) -> Result<Option<&'static str>> {
    let (Ok(text), Ok(cubin)) =
        (workspace::read(&module.ptx_path()), fs::read(module.cubin_path()))
    else {
        return Ok(Some("this file or its .cubin is missing"));
    };
    if source::hash_in(&text) != Some(&module.hash()) {
        return Ok(Some("the source or the compiler's options have changed"));
    }
    if source::cubin_hash_in(&text) != Some(&source::cubin_hash(&cubin)) {
        return Ok(Some("the .cubin comes from a different compilation"));
    }
    if let Some(compiler) = compiler
        && compile(compiler, module)? != (text, cubin)
    {
        return Ok(Some("a new compilation gives a different result"));
    }
    Ok(None)
}

/// Compares every module with its committed PTX.
fn check(root: &Path, modules: &[PtxModule], compiler: Option<&PinnedCompiler>) -> Result<()> {
    let mut wrong = Vec::new();
    let mut expected: Vec<PathBuf> = Vec::new();
    for module in modules {
        if let Some(fault) = find_fault(module, compiler)? {
            wrong.push(format!("{}: {fault}", workspace::relative(root, &module.ptx_path())));
        }
        expected.extend([module.ptx_path(), module.cubin_path()]);
    }
    for sources in SOURCES {
        for path in workspace::files(&root.join(sources), &["ptx", "cubin"])? {
            let by_hand =
                || fs::read(&path).is_ok_and(|text| text.starts_with(b"// Written by hand"));
            if !expected.contains(&path) && !by_hand() {
                wrong.push(format!("{}: it has no source", workspace::relative(root, &path)));
            }
        }
    }
    if wrong.is_empty() {
        println!("{} modules agree with their sources", modules.len());
        return Ok(());
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    bail!("{} compiled files do not match their sources; run `cargo xtask ptx`", wrong.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a workspace with one source, its header file, and PTX with the right hash.
    fn test_workspace() -> (xshell::TempDir, PathBuf) {
        let dir = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let sources = dir.path().join(SOURCES[0]);
        fs::create_dir_all(sources.join("unary")).unwrap();
        fs::write(sources.join("unary/common.cuh"), "#define ONE 1\n").unwrap();
        fs::write(sources.join("unary/neg.cu"), "#include \"common.cuh\"\n").unwrap();
        for module in modules(dir.path()).unwrap() {
            let text = source::with_header(&module, ".version 8.0\n", b"code");
            fs::write(module.ptx_path(), text).unwrap();
            fs::write(module.cubin_path(), b"code").unwrap();
        }
        (dir, sources)
    }

    fn checks(root: &Path) -> bool {
        check(root, &modules(root).unwrap(), None).is_ok()
    }

    #[test]
    fn unchanged_ptx_passes_the_check_and_other_machine_code_fails() {
        let (dir, sources) = test_workspace();
        assert!(checks(dir.path()));
        assert!(sources.join("unary/neg.ptx").exists());
        assert!(sources.join("unary/neg.sm90.cubin").exists());
        fs::write(sources.join("unary/neg.sm90.cubin"), b"other").unwrap();
        assert!(!checks(dir.path()), "the machine code comes from a different compilation");
    }

    #[test]
    fn a_changed_header_file_fails_the_check() {
        let (dir, sources) = test_workspace();
        fs::write(sources.join("unary/common.cuh"), "#define ONE 2\n").unwrap();
        assert!(!checks(dir.path()));
    }

    #[test]
    fn missing_and_orphaned_ptx_fail_the_check() {
        let (dir, sources) = test_workspace();
        fs::rename(sources.join("unary/neg.ptx"), sources.join("unary/old.ptx")).unwrap();
        assert!(!checks(dir.path()));
        fs::copy(sources.join("unary/old.ptx"), sources.join("unary/neg.ptx")).unwrap();
        assert!(!checks(dir.path()), "old.ptx has no source");
        fs::remove_file(sources.join("unary/old.ptx")).unwrap();
        assert!(checks(dir.path()));
    }
}
