//! From CUDA source to PTX, by NVRTC.

use warpline_cuda_sys_safe::nvrtc::Nvrtc;

use super::Program;
use crate::{Error, Result};

/// What PTX is made for; every device of that capability or a later one runs it.
pub const ARCHITECTURE: &str = "compute_75";

/// What the compiler is told. Fast math stays off: results must not depend on its liberties.
pub(super) fn options() -> [String; 3] {
    [format!("--gpu-architecture={ARCHITECTURE}"), "-std=c++17".into(), "--fmad=true".into()]
}

/// NVRTC, where [`Nvrtc`] looks for it.
#[derive(Debug)]
pub struct Compiler(Nvrtc);

impl Compiler {
    /// Loads it.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`], which says where it was looked for.
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
    /// [`ErrorKind::Driver`] with the compiler's messages.
    pub fn ptx(&self, program: &Program, variant: usize) -> Result<String> {
        let name = program.module_name(variant);
        let options = options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let text = program.source(variant).text();
        let ptx = self.0.compile(&text, &format!("{name}.cu"), &options);
        Ok(plain(&ptx.map_err(|e| Error::driver(program.name(), e))?))
    }
}

/// Without the compiler's header, which names a build, without the numbers of calls, which count
/// on through all that one process compiles, and without constants that nothing uses.
fn plain(ptx: &str) -> String {
    let mut out = String::new();
    let body = ptx.lines().skip_while(|line| line.trim().is_empty() || line.starts_with("//"));
    for line in body.filter(|line| constant(line).is_none_or(|name| ptx.matches(name).count() > 1))
    {
        out += line.split("// callseq").next().unwrap_or(line).trim_end();
        out.push('\n');
    }
    out
}

/// The name that a line defines outside of functions.
fn constant(line: &str) -> Option<&str> {
    let definition = line.strip_prefix(".global ")?.split(['=', ';', '[']).next()?;
    definition.split_whitespace().last()
}
