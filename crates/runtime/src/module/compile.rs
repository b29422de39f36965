//! From CUDA source to PTX, by NVRTC.

use std::path::Path;
use std::sync::{LazyLock, PoisonError};

use dashmap::DashMap;
use warpline_cuda_sys_safe::nvrtc::Nvrtc;
use warpline_sync::Mutex;

use super::{Program, artefact};
use crate::{Error, Result};

/// What PTX is made for; every device of that capability or a later one runs it.
pub const ARCHITECTURE: &str = "compute_75";

/// Fast math stays off: results must not depend on the compiler's liberties.
const OPTIONS: [&str; 2] = ["-std=c++17", "--fmad=true"];

/// NVRTC, where [`Nvrtc`] looks for it.
#[derive(Debug)]
pub struct Compiler(Nvrtc);

impl Compiler {
    /// Loads it.
    ///
    /// # Errors
    /// [`Error::Driver`], which says where it was looked for.
    pub fn find() -> Result<Self> {
        Ok(Self(Nvrtc::load(None).map_err(|e| Error::driver("nvrtc", e))?))
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> String {
        let (major, minor) = self.0.version();
        format!("{major}.{minor}")
    }

    /// A variant's PTX, without what changes from one compilation of it to the next.
    ///
    /// # Errors
    /// [`Error::Driver`] with the compiler's messages.
    pub fn ptx(&self, program: &Program, variant: usize) -> Result<String> {
        let name = program.module_name(variant);
        let architecture = format!("--gpu-architecture={ARCHITECTURE}");
        let options = [architecture.as_str(), OPTIONS[0], OPTIONS[1]];
        let text = program.source(variant).text();
        let ptx = self.0.compile(&text, &format!("{name}.cu"), &options);
        Ok(plain(&ptx.map_err(|e| Error::driver(program.name(), e))?))
    }
}

/// Without the compiler's header, which names a build, and without the numbers of calls, which count
/// on through all that one process compiles.
fn plain(ptx: &str) -> String {
    let mut out = String::new();
    let body = ptx.lines().skip_while(|line| line.trim().is_empty() || line.starts_with("//"));
    for line in body {
        out += line.split("// callseq").next().unwrap_or(line).trim_end();
        out.push('\n');
    }
    out
}

/// What was compiled in this process, by the hash of its source.
static COMPILED: LazyLock<DashMap<String, String>> = LazyLock::new(DashMap::new);

/// One compilation at a time: the second who wants the same finds it.
static COMPILING: Mutex<()> = Mutex::new(());

/// A variant's PTX, compiled in this process, by an earlier one that kept it in `folder`, or now.
pub(super) fn at_run_time(
    program: &Program,
    variant: usize,
    folder: Option<&Path>,
) -> Result<String> {
    let hash = artefact::hash(program, variant);
    let known = || COMPILED.get(&hash).map(|ptx| ptx.clone());
    if let Some(ptx) = known() {
        return Ok(ptx);
    }
    let _turn = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ptx) = known() {
        return Ok(ptx);
    }
    let file = folder.map(|folder| folder.join(format!("{hash}.ptx")));
    let kept = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
    let ptx = match kept.filter(|ptx| whole(ptx, program, variant)) {
        Some(ptx) => ptx,
        None => {
            let ptx = Compiler::find()?.ptx(program, variant)?;
            if let Some(file) = &file {
                keep(file, &ptx);
            }
            ptx
        }
    };
    COMPILED.insert(hash, ptx.clone());
    Ok(ptx)
}

/// Whether a file has all kernels: it may be another program's, cut off, or changed by hand.
fn whole(ptx: &str, program: &Program, variant: usize) -> bool {
    program.kernels(variant).all(|kernel| ptx.contains(&format!(".entry {kernel}(")))
}

/// Written aside and renamed, so that nobody finds half of it. Without a place it is compiled again
/// by the next process.
fn keep(file: &Path, ptx: &str) {
    let aside = file.with_extension(format!("{}.tmp", std::process::id()));
    let written = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if written.and_then(|()| std::fs::write(&aside, ptx)).is_ok() {
        let _ = std::fs::rename(&aside, file);
    }
}
