//! The report of a kernel that checks indices.
//!
//! The parameters of such a kernel begin with a [`Report`]. A launch enters the address of its
//! place in the stream's mailbox. A capture enters a place that its graph keeps. On the CPU the
//! call itself has the place, and returns the error.
//!
//! The error names the launch's op and call. The kernels of a gradient read the indices of the
//! forward op, so while a gradient is computed, the error names the forward op and its call
//! (`report_as`).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_cuda_sys_safe::DriverError;
use warpline_stream::{IndexCheck, KernelSet, Stream};

use super::{Call, TOKEN};
use crate::Site;
use crate::graph::Log;
use crate::module::{CudaType, Definitions, field};
use crate::storage::Source;

thread_local! {
    /// The call that reports of this thread's launches name. `None`: each launch's own.
    static NAMED: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Runs `f` with `call` as the call that index errors of its launches name. `None`: each launch's
/// own call. A gradient reads the indices of its forward op, and the program knows the forward op's
/// call.
pub fn report_as<R>(call: Option<Site>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Site>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NAMED.set(self.0);
        }
    }
    let _restore = Restore(NAMED.replace(call));
    f()
}

/// Returns the call that a launch's report names.
fn named(call: &Call<'_>) -> Site {
    NAMED.get().unwrap_or(Site { op: call.op, location: call.location })
}

/// A place in a mailbox: launch, index, site, dimension, size. The first word is 0 while the place
/// is empty.
type Words = [AtomicU64; 5];

/// The first parameters of a kernel that checks indices
/// ([`checks_indices`](super::Call::checks_indices)): the size to check against, and the place for
/// the report of an index out of range.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Report {
    /// Address of [`Words`].
    mailbox: u64,
    launch: u64,
    site: u64,
    dim: u64,
    size: u64,
}

// By hand for the constant alone.
impl CudaType for Report {
    const BEGINS_WITH_REPORT: bool = true;

    fn declare(name: &str) -> String {
        format!("Report {name}")
    }

    fn define(definitions: &mut Definitions) {
        definitions.structure::<Self>(
            "Report",
            &[
                field("mailbox", |own: &Self| &own.mailbox),
                field("launch", |own: &Self| &own.launch),
                field("site", |own: &Self| &own.site),
                field("dim", |own: &Self| &own.dim),
                field("size", |own: &Self| &own.size),
            ],
        );
    }
}

/// A parameter block for the driver.
pub(super) type Params = SmallVec<[u8; 512]>;

impl Report {
    /// Creates a report for indices of dimension `dim`, whose size is `size`. The launch sets the
    /// place for the report.
    pub fn new(dim: usize, size: usize) -> Self {
        Self { dim: dim as u64, size: size as u64, ..Self::zeroed() }
    }

    /// Returns the size that indices are checked against.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Returns a copy of parameters that begin with a report, with the place and the launch's
    /// number set.
    fn fill(params: &[u8], told: [u64; 3]) -> Params {
        let mut params = Params::from_slice(params);
        for (to, word) in params.chunks_exact_mut(8).zip(told) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        params
    }

    /// Prepares the operation that a stream's closure is about to enqueue. Returns its parameters
    /// and the source that marks its results.
    #[track_caller]
    pub(super) fn on_stream(
        call: &Call<'_>,
        stream: &Stream,
    ) -> Result<(Params, Source), DriverError> {
        let site = named(call);
        // By now no other thread begins a capture of the stream, or ends it.
        let (told, source) = match Log::of(stream) {
            None => {
                let (launch, told) = stream.mailbox().launch(TOKEN, stream, site)?;
                (told, Source::Launch(launch))
            }
            Some(log) => {
                let (kernel, told) = log.checks().add(stream, site)?;
                (told, Source::Captured(KernelSet::of(kernel)))
            }
        };
        Ok((Self::fill(call.params, told), source))
    }

    /// Returns whether an index is in range. If not, writes the report.
    ///
    /// # Safety
    /// The report must be from the parameters that a running CPU implementation received, because
    /// its mailbox exists only that long.
    pub unsafe fn check_index(&self, index: i64) -> bool {
        if (index as u64) < self.size {
            return true;
        }
        let words = std::ptr::with_exposed_provenance::<Words>(self.mailbox as usize);
        // SAFETY: the caller's promise; a mailbox is aligned words whose address was exposed, and
        // all who touch them do so as atomics.
        let words = unsafe { &*words };
        if words[0].load(Ordering::Acquire) == 0 {
            let said = [index as u64, self.site, self.dim, self.size];
            for (word, value) in words[1..].iter().zip(said) {
                word.store(value, Ordering::Relaxed);
            }
            words[0].store(self.launch, Ordering::Release);
        }
        false
    }
}

/// A mailbox of a launch that runs immediately.
#[derive(Debug, Default)]
pub(super) struct Local(Words);

impl Local {
    /// Returns the call's parameters, with this mailbox as the place for the report.
    pub(super) fn params(&self, call: &Call<'_>) -> Params {
        Report::fill(call.params, [(&raw const self.0).expose_provenance() as u64, 1, 0])
    }

    /// Returns the reported failure.
    pub(super) fn failed(&self, call: &Call<'_>) -> Option<IndexCheck> {
        let [launch, index, _, dim, size] =
            [0, 1, 2, 3, 4].map(|i| self.0[i].load(Ordering::Acquire));
        if launch == 0 {
            return None;
        }
        let Site { op, location } = named(call);
        Some(IndexCheck {
            op,
            index: index as i64,
            dim: dim as usize,
            size: size as usize,
            location,
        })
    }
}
