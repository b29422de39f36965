//! `cargo xtask ptx`: compiles the programs of all ops, which `crates/kernels/examples/ptx.rs` knows, with
//! the NVRTC that is pinned; and the CUDA sources of the driver's tests, to a `.ptx` and a
//! `.sm90.cubin` beside each, whose hashes are in the `.ptx`'s header.

mod nvrtc;
mod source;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use warpline_files::NewFile;

use self::nvrtc::Compiler;
use self::source::Module;
use crate::workspace;

/// Where the driver's tests have CUDA sources.
const SOURCES: &[&str] = &["crates/cuda-sys-safe/tests"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the programs of these names
    names: Vec<String>,
    /// Write nothing; fail when a source and its PTX do not agree, by their hashes
    #[arg(long)]
    check: bool,
    /// With --check: compile again and compare the text
    #[arg(long, requires = "check")]
    rebuild: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root()?;
    let modules = modules(&root)?;
    let compiler = (!args.check || args.rebuild).then(|| Compiler::find(&root)).transpose()?;
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

/// The programs of all ops. What knows them is built as the workspace's tests are, for which it then need not be built
/// again.
fn run_programs(
    root: &Path,
    mode: Option<&str>,
    names: &[String],
    compiler: Option<&Compiler>,
) -> Result<()> {
    let sh = xshell::Shell::new()?;
    sh.change_dir(root);
    let own = std::env::current_exe()?;
    let Some(target) = own.ancestors().nth(2) else {
        bail!("{} is in no target folder", own.display());
    };
    let cargo = workspace::cargo();
    xshell::cmd!(sh, "{cargo} build --quiet --workspace --example ptx --target-dir {target}")
        .run()?;
    let program = target.join("debug/examples/ptx").with_extension(std::env::consts::EXE_EXTENSION);
    // As cargo would set it: this process has the folder of its own package.
    let mut command = xshell::cmd!(sh, "{program} {mode...} {names...}")
        .env("CARGO_MANIFEST_DIR", root.join("crates/kernels"));
    if let Some(compiler) = compiler {
        command = command.env("WARPLINE_NVRTC", compiler.library());
    }
    Ok(command.run()?)
}

fn write_all(root: &Path, modules: &[Module], compiler: &Compiler) -> Result<()> {
    for module in modules {
        let (text, cubin) = compile(compiler, module)?;
        write(root, &module.ptx_path(), text.as_bytes())?;
        write(root, &module.cubin_path(), &cubin)?;
    }
    Ok(())
}

/// The modules of the driver's tests.
fn modules(root: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for sources in SOURCES.iter().map(|sources| root.join(sources)) {
        for path in workspace::files(&sources, &["cu"])? {
            modules.push(Module::read(&sources, &path)?);
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

/// The text and the machine code to be committed.
fn compile(compiler: &Compiler, module: &Module) -> Result<(String, Vec<u8>)> {
    let (ptx, cubin) = compiler.compile(module)?;
    Ok((source::with_header(module, &ptx, &cubin), cubin))
}

/// What is wrong with a module's committed files, if something is.
fn fault(module: &Module, compiler: Option<&Compiler>) -> Result<Option<&'static str>> {
    let (Ok(text), Ok(cubin)) =
        (workspace::read(&module.ptx_path()), fs::read(module.cubin_path()))
    else {
        return Ok(Some("missing"));
    };
    if source::hash_in(&text) != Some(&module.hash()) {
        return Ok(Some("made from another source or with other options"));
    }
    if source::cubin_hash_in(&text) != Some(&source::cubin_hash(&cubin)) {
        return Ok(Some("machine code that was not made with it"));
    }
    if let Some(compiler) = compiler
        && compile(compiler, module)? != (text, cubin)
    {
        return Ok(Some("not what compiling its source gives"));
    }
    Ok(None)
}

/// Compares every module with its committed PTX.
fn check(root: &Path, modules: &[Module], compiler: Option<&Compiler>) -> Result<()> {
    let mut wrong = Vec::new();
    let mut expected: Vec<PathBuf> = Vec::new();
    for module in modules {
        if let Some(fault) = fault(module, compiler)? {
            wrong.push(format!("{}: {fault}", workspace::relative(root, &module.ptx_path())));
        }
        expected.extend([module.ptx_path(), module.cubin_path()]);
    }
    for sources in SOURCES {
        for path in workspace::files(&root.join(sources), &["ptx", "cubin"])? {
            let by_hand =
                || fs::read(&path).is_ok_and(|text| text.starts_with(b"// Written by hand"));
            if !expected.contains(&path) && !by_hand() {
                wrong.push(format!("{}: no source for it", workspace::relative(root, &path)));
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
    bail!("{} PTX files are wrong; run `cargo xtask ptx`", wrong.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with one source and its header, and PTX of the right hash.
    fn scene() -> (xshell::TempDir, PathBuf) {
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
    fn a_module_agrees_with_its_ptx_and_machine_code() {
        let (dir, sources) = scene();
        assert!(checks(dir.path()));
        assert!(sources.join("unary/neg.ptx").exists());
        assert!(sources.join("unary/neg.sm90.cubin").exists());
        fs::write(sources.join("unary/neg.sm90.cubin"), b"other").unwrap();
        assert!(!checks(dir.path()), "the machine code is not the one it was made with");
    }

    #[test]
    fn a_changed_header_file_fails_the_check() {
        let (dir, sources) = scene();
        fs::write(sources.join("unary/common.cuh"), "#define ONE 2\n").unwrap();
        assert!(!checks(dir.path()));
    }

    #[test]
    fn missing_and_orphaned_ptx_fail_the_check() {
        let (dir, sources) = scene();
        fs::rename(sources.join("unary/neg.ptx"), sources.join("unary/old.ptx")).unwrap();
        assert!(!checks(dir.path()));
        fs::copy(sources.join("unary/old.ptx"), sources.join("unary/neg.ptx")).unwrap();
        assert!(!checks(dir.path()), "old.ptx has no source");
        fs::remove_file(sources.join("unary/old.ptx")).unwrap();
        assert!(checks(dir.path()));
    }
}
