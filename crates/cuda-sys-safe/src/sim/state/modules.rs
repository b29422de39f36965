//! Modules and their functions.

use std::sync::Arc;

use crate::*;

pub(crate) struct ModuleState {
    pub(crate) device: usize,
    pub(crate) image: Image,
}

pub(crate) enum Image {
    /// The entry points of PTX text.
    Ptx(Vec<PtxEntry>),
    /// An ELF file, with a section `.text.NAME` per kernel.
    Cubin(Vec<u8>),
}

/// A kernel as PTX declares it.
pub(crate) struct PtxEntry {
    pub(crate) name: String,
    pub(crate) params: ParamSizes,
}

/// The sizes of a kernel's parameters, in bytes. Empty if the kernel has none, or if its code is a
/// cubin.
type ParamSizes = Arc<[usize]>;

pub(crate) struct FunctionState {
    pub(crate) device: usize,
    pub(crate) module: u64,
    pub(crate) params: ParamSizes,
    /// Largest dynamic shared memory of a launch, in bytes.
    pub(crate) max_shared: u32,
}

impl FunctionState {
    /// Returns an error if the parameters of a launch differ from the kernel's, because the driver
    /// would read beyond them. A kernel that declares no parameters accepts any, because PTX that
    /// only names kernels stands in for missing code.
    pub(crate) fn check_params(&self, launch: &Launch<'_>) -> Result<(), String> {
        let block = Some(launch.params.len()).filter(|&bytes| bytes > 0);
        let given = launch.footprints.iter().map(|_| size_of::<u64>()).chain(block);
        if self.params.is_empty() || given.clone().eq(self.params.iter().copied()) {
            return Ok(());
        }
        let given: Vec<usize> = given.collect();
        Err(format!(
            "the launch passes parameters of {given:?} bytes, but the kernel takes {:?}",
            self.params
        ))
    }
}
