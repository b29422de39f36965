//! Modules and their functions.

use std::sync::Arc;

use crate::*;

pub(crate) struct Module {
    pub(crate) device: usize,
    pub(crate) image: Image,
}

pub(crate) enum Image {
    /// Entry points.
    Ptx(Vec<Entry>),
    /// An ELF file: it has a section `.text.NAME` per kernel.
    Cubin(Vec<u8>),
}

/// A kernel as PTX declares it.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) params: Params,
}

/// The sizes of a kernel's parameters, in bytes; none where a kernel has none, or its code is a cubin.
type Params = Arc<[usize]>;

pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) module: u64,
    pub(crate) params: Params,
    /// Dynamic shared memory that a launch may ask for.
    pub(crate) max_shared: u32,
}

impl Function {
    /// Refuses a launch with other parameters than the kernel's: the driver would read on beyond them.
    /// A kernel without any is taken to be a stand-in, as where there is no code for it.
    pub(crate) fn check_params(&self, launch: &Launch<'_>) -> Result<(), String> {
        let block = Some(launch.params.len()).filter(|&bytes| bytes > 0);
        let given = launch.footprints.iter().map(|_| size_of::<u64>()).chain(block);
        if self.params.is_empty() || given.clone().eq(self.params.iter().copied()) {
            return Ok(());
        }
        let given: Vec<usize> = given.collect();
        Err(format!("parameters of {given:?} bytes for a kernel that takes {:?}", self.params))
    }
}
