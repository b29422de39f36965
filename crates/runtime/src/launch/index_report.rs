//! The report of a kernel that checks indices.
//!
//! The parameters of such a kernel begin with a [`Report`], which has the address of a slot for the
//! failure. For a launch on a stream, the slot lies in the stream's mailbox. For a captured launch,
//! it lies in memory that the graph keeps. On the CPU, it lies in a local variable of the call,
//! which returns the error.
//!
//! The error names the public call that made the launch. The kernels of a gradient run in the scope of
//! the forward call, whose indices they read.

use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use warpline_cuda_sys_safe::DriverError;
use warpline_stream::{IndexCheck, KernelSet, Stream};

use super::{Call, TOKEN};
use crate::graph::GraphLog;
use crate::storage::Dependency;
use crate::{Site, cuda_struct};

/// A slot of a mailbox: launch, index, site, dimension, size. The first word is 0 while the slot is
/// empty.
type MailboxSlot = [AtomicU64; 5];

/// The first parameters of a kernel that checks indices: the size to check against, and the place
/// for the report of an index out of range.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Report {
    /// Address of a [`MailboxSlot`].
    mailbox: u64,
    launch: u64,
    site: u64,
    dim: u64,
    size: u64,
}

cuda_struct!(@impl [] Report, [], true, (), { mailbox, launch, site, dim, size });

/// A parameter block for the driver.
pub(super) type ParameterBlock = SmallVec<[u8; 512]>;

impl Report {
    /// Creates a report for indices of dimension `dim`, whose size is `size`. The launch sets the
    /// other fields.
    pub fn new(dim: usize, size: usize) -> Self {
        Self { dim: dim as u64, size: size as u64, ..Self::zeroed() }
    }

    /// Returns the size that indices are checked against.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Returns a copy of parameters that begin with a report, and sets the report's first three
    /// words: the slot's address, the launch and the site.
    fn fill(params: &[u8], words: [u64; 3]) -> ParameterBlock {
        let mut params = ParameterBlock::from_slice(params);
        for (to, word) in params.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        params
    }

    /// Prepares the launch that a closure passed to [`Stream::submit`] is about to enqueue. Returns
    /// the launch's parameters and the dependency that marks its results.
    #[track_caller]
    pub(super) fn on_stream(
        call: &Call<'_>,
        stream: &Stream,
    ) -> Result<(ParameterBlock, Dependency), DriverError> {
        let site = call.site().or_public();
        // The caller holds the submit lock of the stream or of its twin, so no other thread can begin
        // or end a capture of the stream.
        let (mailbox_words, dependency) = match GraphLog::of(stream) {
            None => {
                let (launch, words) = stream.mailbox().launch(TOKEN, stream, site)?;
                (words, Dependency::Launch(launch))
            }
            Some(log) => {
                let (kernel, words) = log.checks().add(stream, site)?;
                (words, Dependency::CapturedKernels(KernelSet::of(kernel)))
            }
        };
        Ok((Self::fill(call.params, mailbox_words), dependency))
    }

    /// Returns whether an index is in range. If not, writes the report.
    ///
    /// # Safety
    /// The report must be from the parameters of a CPU implementation that is running, because the
    /// report's mailbox need not live longer than the launch.
    pub unsafe fn check_index(&self, index: i64) -> bool {
        if (index as u64) < self.size {
            return true;
        }
        let words = std::ptr::with_exposed_provenance::<MailboxSlot>(self.mailbox as usize);
        // SAFETY: the caller received this report from a running launch, so the slot is live. It is
        // aligned, its address was exposed, and all threads access its words as atomics.
        let words = unsafe { &*words };
        if words[0].load(Ordering::Acquire) == 0 {
            let fields = [index as u64, self.site, self.dim, self.size];
            for (word, value) in words[1..].iter().zip(fields) {
                word.store(value, Ordering::Relaxed);
            }
            words[0].store(self.launch, Ordering::Release);
        }
        false
    }
}

/// A mailbox of a launch that runs immediately.
#[derive(Debug, Default)]
pub(super) struct LocalMailbox(MailboxSlot);

impl LocalMailbox {
    /// Returns the call's parameters, with this mailbox for the report.
    pub(super) fn params(&self, call: &Call<'_>) -> ParameterBlock {
        Report::fill(call.params, [(&raw const self.0).expose_provenance() as u64, 1, 0])
    }

    /// Returns the reported failure.
    pub(super) fn failed(&self, call: &Call<'_>) -> Option<IndexCheck> {
        let [launch, index, _, dim, size] =
            [0, 1, 2, 3, 4].map(|i| self.0[i].load(Ordering::Acquire));
        if launch == 0 {
            return None;
        }
        let Site { op, location } = call.site().or_public();
        Some(IndexCheck {
            op,
            index: index as i64,
            dim: dim as usize,
            size: size as usize,
            location,
        })
    }
}
