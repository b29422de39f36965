//! An op's GPU code: its CUDA source, the PTX compiled from it, and the loaded modules of a device.
//!
//! An op has a [`Program`] with variants, mostly one per dtype, which have the same kernels. The op
//! produces the source text. The structs that its kernels take are generated from the Rust structs
//! ([`CudaType`]), so each is written only once. The source is compiled ahead of time ([`update`])
//! into one compressed PTX file per program, or at run time if NVRTC is found.
//!
//! A kernel is loaded on first use, as a module of its own (`single.rs`), so the driver compiles
//! only kernels that are launched. The PTX targets compute capability 7.5 and runs on all later
//! devices. If a newer device has an instruction for a sequence in the PTX, the loader substitutes
//! it (`newer.rs`; for `bf16` see `cuda/element.cuh`). From compute capability 9.0 on, kernels wait for
//! earlier work themselves, which lets the driver launch them early (`early_launch.rs`).

mod artefact;
mod cache;
mod compiled_ptx;
mod compiler;
mod cuda_type;
pub(crate) mod disk;
mod early_launch;
mod newer;
mod single;
mod source;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use artefact::{UpdateOutcome, agrees, stale, update};
pub(crate) use cache::KernelCache;
#[cfg(any(test, feature = "testing"))]
pub(crate) use cache::loaded_text;
pub use compiler::{ARCHITECTURE, Compiler};
pub use cuda_type::{CudaType, Definitions};
#[doc(hidden)]
pub use cuda_type::{declaration, field, is_report};
pub use newer::specialized;
pub use single::single;
pub use source::{ELEMENT, PHILOX, REPORT, SPACE, Source, WALK};

/// The GPU code of an op, or of several ops that share kernels: CUDA source in variants that differ
/// in one thing, mostly the dtype, and have the same kernels. The driver compiles each kernel
/// separately, on first use.
///
/// A kernel's name is `NAME_VARIANT_KERNEL`; empty parts are left out.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    variants: &'static [&'static str],
    kernels: &'static [&'static str],
    source: fn(&Program, &str) -> Source,
    committed: fn(&str) -> Option<&'static [u8]>,
    /// The committed file, unpacked on first use and kept for the program's other kernels.
    unpacked: OnceLock<Option<String>>,
    /// Number of the program's first variant, assigned on first use. 0: not assigned yet.
    id: AtomicUsize,
}

impl Program {
    /// Creates a program. `name` must be unique in the crate. `source` returns the text of a
    /// variant. The text must define `kernels`.
    #[must_use]
    pub const fn new(
        name: &'static str,
        variants: &'static [&'static str],
        kernels: &'static [&'static str],
        source: fn(&Program, &str) -> Source,
    ) -> Self {
        const fn none(_: &str) -> Option<&'static [u8]> {
            None
        }
        Self {
            name,
            variants,
            kernels,
            source,
            committed: none,
            unpacked: OnceLock::new(),
            id: AtomicUsize::new(0),
        }
    }

    /// Adds the PTX compiled ahead of time. `committed` returns the file that [`update`] wrote, for
    /// the program's name. An empty file counts as no PTX, so that a crate builds before its first
    /// update.
    #[must_use]
    pub const fn with_ptx(mut self, committed: fn(&str) -> Option<&'static [u8]>) -> Self {
        self.committed = committed;
        self
    }

    /// Returns the program's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the program's variants.
    #[must_use]
    pub fn variants(&self) -> &'static [&'static str] {
        self.variants
    }

    /// Returns the names of a variant's kernels.
    pub fn kernels(&self, variant: usize) -> impl Iterator<Item = String> {
        let variant = self.variants[variant];
        self.kernels.iter().map(move |kernel| joined([self.name, variant, kernel]))
    }

    /// Returns a variant's CUDA source.
    #[must_use]
    pub fn source(&self, variant: usize) -> Source {
        (self.source)(self, self.variants[variant])
    }

    /// Returns a variant's PTX that was compiled ahead of time, if there is any.
    #[must_use]
    pub fn ptx(&self, variant: usize) -> Option<&str> {
        artefact::committed(self, variant)
    }

    /// Returns the index of the kernel with this name in the list passed to `new`.
    pub(crate) const fn kernel_number(&self, name: &str) -> Option<usize> {
        position(self.kernels, name)
    }

    /// Returns the number of the variant with this name.
    pub(crate) const fn variant_number(&self, name: &str) -> Option<usize> {
        position(self.variants, name)
    }

    /// Returns the name of a variant for messages and files.
    fn module_name(&self, variant: usize) -> String {
        joined([self.name, self.variants[variant], ""])
    }

    fn kernel_name(&self, variant: usize, kernel: usize) -> Option<CString> {
        CString::new(self.kernels(variant).nth(kernel)?).ok()
    }

    /// Returns a variant's number, unique in the process.
    fn module_id(&self, variant: usize) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let id = self.id.load(Ordering::Acquire);
        if id != 0 {
            return id + variant;
        }
        let new = NEXT.fetch_add(self.variants.len(), Ordering::Relaxed);
        match self.id.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new + variant,
            Err(theirs) => theirs + variant,
        }
    }
}

/// Returns the programs of this crate.
#[must_use]
pub fn programs() -> Vec<&'static Program> {
    vec![&crate::graph::PHILOX, &crate::graph::CONDITION]
}

/// Returns the index of a name in a list. Uses only loops that a constant evaluation supports.
const fn position(names: &[&str], name: &str) -> Option<usize> {
    let mut at = 0;
    while at < names.len() {
        let (own, name) = (names[at].as_bytes(), name.as_bytes());
        let mut alike = 0;
        while alike < own.len() && alike < name.len() && own[alike] == name[alike] {
            alike += 1;
        }
        if alike == own.len() && alike == name.len() {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn joined(parts: [&str; 3]) -> String {
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("_")
}
