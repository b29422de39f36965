//! The kernels that a device has loaded. Only the first lookup of a kernel takes a lock or builds a
//! name.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{Function, Module};
use warpline_cuda_sys_safe::{Driver, FunctionHandle};
use warpline_sync::OnceLock;

use super::{Program, artefact, compiled_ptx, early_launch, newer, single};
use crate::{Error, ErrorKind, Result};

/// Number of variants per chunk.
const CHUNK: usize = 64;
/// Maximum number of chunks. A process has about one variant per op and dtype, far fewer than 16
/// Ki.
const CHUNKS: usize = 256;

/// The kernels of one device, indexed by the numbers of variants.
#[derive(Debug)]
pub(crate) struct KernelCache {
    chunks: Box<[OnceLock<LoadedChunk>]>,
    /// Folder for code compiled at run time, for other processes.
    folder: Option<PathBuf>,
}

type LoadedChunk = Box<[OnceLock<Loaded>]>;

/// A variant's kernels. Each is loaded as a module of its own.
type Loaded = Box<[OnceLock<LoadedKernel>]>;

#[derive(Debug)]
struct LoadedKernel {
    function: Function,
    waits: bool,
}

impl KernelCache {
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { chunks: empty(CHUNKS), folder }
    }

    /// Returns a kernel, and whether it waits for earlier work of its stream itself.
    pub(crate) fn function(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        (program, variant, kernel): (&'static Program, usize, usize),
    ) -> Result<(FunctionHandle, bool)> {
        let id = program.module_id(variant);
        let chunk = self.chunks.get(id / CHUNK).ok_or_else(|| none(program, "are too many"))?;
        let slot = &chunk.get_or_init(|| empty(CHUNK))[id % CHUNK];
        let loaded = slot.get_or_init(|| empty(program.kernels.len()));
        let slot = loaded.get(kernel).ok_or_else(|| none(program, "are fewer"))?;
        if let Some(LoadedKernel { function, waits }) = slot.get() {
            return Ok((function.handle(), *waits));
        }
        let name =
            program.kernel_name(variant, kernel).ok_or_else(|| none(program, "have no name"))?;
        // If two threads load the kernel at once, one of the modules is dropped.
        let ptx = self.code(driver, program, variant)?;
        let found = driver.properties(device).and_then(|properties| {
            let capability = properties.compute_capability;
            let (ptx, waits) =
                loaded_text(&ptx, &name.to_string_lossy(), capability, driver.version()?);
            let function = Module::load_ptx(driver, device, &ptx)?.function(&name)?;
            Ok(LoadedKernel { function, waits })
        });
        let found = found.map_err(|e| Error::driver(program.name(), e))?;
        let LoadedKernel { function, waits } = slot.get_or_init(|| found);
        Ok((function.handle(), *waits))
    }

    /// Returns a variant's PTX, compiled ahead of time or now. Simulated devices run no PTX. If
    /// there is no compiler, or the source lacks a kernel, simulated devices receive PTX that only
    /// names the kernels.
    fn code(
        &self,
        driver: &Arc<dyn Driver>,
        program: &'static Program,
        variant: usize,
    ) -> Result<Cow<'static, str>> {
        if let Some(ptx) = artefact::committed(program, variant) {
            return Ok(Cow::Borrowed(ptx));
        }
        let compiled = compiled_ptx::at_run_time(program, variant, self.folder.as_deref());
        let is_real = driver.name() == "cuda";
        match compiled {
            Ok(ptx) if !is_real && !has_kernels(&ptx, program, variant) => {
                Ok(names_only(program, variant).into())
            }
            Err(error) if !is_real && matches!(error.kind(), ErrorKind::NoGpuCode { .. }) => {
                Ok(names_only(program, variant).into())
            }
            compiled => compiled.map(Cow::Owned),
        }
    }
}

/// Returns the PTX that a device with this capability and driver loads for one kernel of `ptx`, and whether the kernel
/// waits for earlier work of its stream itself.
pub(crate) fn loaded_text(
    ptx: &str,
    kernel: &str,
    capability: (u32, u32),
    version: u32,
) -> (String, bool) {
    early_launch::waiting(newer::specialized(single(ptx, kernel), capability), capability, version)
}

fn has_kernels(ptx: &str, program: &Program, variant: usize) -> bool {
    program.kernels(variant).all(|kernel| ptx.contains(&format!(".entry {kernel}(")))
}

fn empty<T>(count: usize) -> Box<[OnceLock<T>]> {
    std::iter::repeat_with(OnceLock::new).take(count).collect()
}

fn names_only(program: &Program, variant: usize) -> String {
    let mut ptx = String::from(".version 8.0\n.target sm_75\n.address_size 64\n");
    for kernel in program.kernels(variant) {
        ptx += &format!(".visible .entry {kernel}() {{ ret; }}\n");
    }
    ptx
}

#[cold]
fn none(program: &Program, why: &str) -> Error {
    let reason = format!("the program's modules or kernels {why}");
    Error::unlocated(ErrorKind::NoGpuCode { reason }).of(program.name())
}
