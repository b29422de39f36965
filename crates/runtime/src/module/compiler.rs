//! Compilation of CUDA source to PTX, by NVRTC.

use warpline_cuda_sys_safe::nvrtc::Nvrtc;

use super::Program;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result};

/// Target architecture of the PTX. Devices of this or a later compute capability run the PTX.
pub const ARCHITECTURE: &str = "compute_75";

/// Options of the compiler. Fast math stays off, because it would change results.
pub(super) fn options() -> [String; 3] {
    [format!("--gpu-architecture={ARCHITECTURE}"), "-std=c++17".into(), "--fmad=true".into()]
}

/// The NVRTC compiler, loaded from the places that [`Nvrtc`] searches.
#[derive(Debug)]
pub struct Compiler(Nvrtc);

impl Compiler {
    /// Loads NVRTC.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if NVRTC is not found. The source lists the places that were searched.
    pub fn find() -> Result<Self> {
        Ok(Self(Nvrtc::load(None).map_err(|e| Error::driver("nvrtc", e))?))
    }

    /// Returns NVRTC's version, as `major.minor`.
    #[must_use]
    pub fn version(&self) -> String {
        let (major, minor) = self.0.version();
        format!("{major}.{minor}")
    }

    /// Compiles a variant to PTX. One version of NVRTC returns the same text for every compilation of
    /// the same source.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the compilation fails. The source has the compiler's messages.
    pub fn ptx(&self, program: &Program, variant: usize) -> Result<String> {
        let name = program.module_name(variant);
        let options = options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let text = program.source(variant).text();
        let ptx = self.0.compile(&text, &format!("{name}.cu"), &options);
        Ok(plain(&ptx.map_err(|e| Error::driver(program.name(), e))?))
    }
}

/// Removes the parts of PTX that vary or are unused: the compiler's header, which names a build;
/// the numbers of calls, which a process counts across compilations; and unused constants.
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

/// Returns the name of a constant that the line defines.
fn constant(line: &str) -> Option<&str> {
    let definition = line.strip_prefix(".global ")?.split(['=', ';', '[']).next()?;
    definition.split_whitespace().last()
}
