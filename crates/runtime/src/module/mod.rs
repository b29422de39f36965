//! An op's GPU code: its CUDA source, the PTX compiled from it, and the loaded modules of a device.
//!
//! An op has a [`Program`] with variants, mostly one for each dtype, which have the same kernels.
//! Its source is text that the op makes; the structs that its kernels take are generated from the
//! Rust ones ([`CudaType`]), so that nothing is written down twice. The source is compiled ahead of
//! time ([`update`]) into one compressed PTX file for each program, or at run time where NVRTC is
//! found.
//!
//! A kernel is loaded on first use, as a module of its own (`single.rs`), so that the driver
//! compiles only kernels that are launched. PTX is made for compute capability 7.5 and runs on all
//! later devices. Where a newer device has an instruction for something that the PTX does by hand,
//! the loader substitutes it (`newer.rs`; for `bf16` see `cuda/element.cuh`).

mod artefact;
mod cache;
mod compile;
mod compiled;
mod disk;
mod layout;
mod newer;
mod single;
mod source;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use artefact::{Change, agrees, stale, update};
pub(crate) use cache::KernelCache;
pub use compile::{ARCHITECTURE, Compiler};
#[doc(hidden)]
pub use layout::is_report;
pub use layout::{CudaType, Definitions, field};
pub use newer::specialized;
pub use single::single;
pub use source::{ELEMENT, PHILOX, REPORT, SPACE, Source, WALK};

/// The GPU code of an op, or of several that are one kernel: CUDA source for modules that differ in
/// one thing, mostly the dtype, with the same kernels each. A kernel is compiled by the driver when it
/// is first used, without the module's others.
///
/// A kernel is called `NAME_VARIANT_KERNEL`; parts that are empty are left out.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    variants: &'static [&'static str],
    kernels: &'static [&'static str],
    source: fn(&Program, &str) -> Source,
    committed: fn(&str) -> Option<&'static [u8]>,
    /// The number of its first variant, given on first use; 0 is none yet.
    id: AtomicUsize,
}

impl Program {
    /// A program of this name, which no other may have in its crate. `source` gives the text of a
    /// variant, in which `kernels` are defined.
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
        Self { name, variants, kernels, source, committed: none, id: AtomicUsize::new(0) }
    }

    /// With what it was compiled to ahead of time: the file that [`update`] wrote, by the program's
    /// name. An empty one, with which to begin, is as good as none.
    #[must_use]
    pub const fn with_ptx(self, committed: fn(&str) -> Option<&'static [u8]>) -> Self {
        Self { committed, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its variants.
    #[must_use]
    pub fn variants(&self) -> &'static [&'static str] {
        self.variants
    }

    /// The names of a variant's kernels.
    pub fn kernels(&self, variant: usize) -> impl Iterator<Item = String> {
        let variant = self.variants[variant];
        self.kernels.iter().map(move |kernel| joined([self.name, variant, kernel]))
    }

    /// A variant's CUDA source.
    #[must_use]
    pub fn source(&self, variant: usize) -> Source {
        (self.source)(self, self.variants[variant])
    }

    /// A variant's PTX as it was compiled ahead of time, if it was.
    #[must_use]
    pub fn ptx(&self, variant: usize) -> Option<String> {
        artefact::committed(self, variant)
    }

    /// The number of the kernel of this name, as `new` was given it.
    pub(crate) const fn kernel_number(&self, name: &str) -> Option<usize> {
        position(self.kernels, name)
    }

    /// The number of the variant of this name.
    pub(crate) const fn variant_number(&self, name: &str) -> Option<usize> {
        position(self.variants, name)
    }

    /// A name for messages and files.
    fn module_name(&self, variant: usize) -> String {
        joined([self.name, self.variants[variant], ""])
    }

    fn kernel_name(&self, variant: usize, kernel: usize) -> Option<CString> {
        CString::new(self.kernels(variant).nth(kernel)?).ok()
    }

    /// A variant's number in the process.
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

/// The programs of this crate.
#[must_use]
pub fn programs() -> Vec<&'static Program> {
    vec![&crate::graph::PHILOX]
}

/// Returns the index of a name in a list. Its loops are those that a constant's value can be computed with.
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
