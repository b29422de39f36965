//! Failed index checks, and the report slots that kernels write to.

use std::panic::Location;
// From std rather than `warpline_sync`: the counter orders no memory, so shuttle need not switch
// threads at its uses.
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_types::CallId;

use crate::{CheckOwner, Error, ErrorKind, Site};

/// The launch number that a captured kernel reports in every replay.
pub(crate) const REPLAYED: u64 = u64::MAX;

/// One more than the number of failed index checks that this process knows. A pending union whose
/// operation is not known to be complete is examined again only if the counter has changed.
pub(crate) static FAILURES: AtomicU64 = AtomicU64::new(1);

/// A failed index check: an index that is out of range for its dimension. Converts into
/// [`ErrorKind::IndexCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCheck {
    /// Name of the op.
    pub op: &'static str,
    /// The index that is out of range, or one of several such indices.
    pub index: i64,
    /// The indexed dimension.
    pub dim: usize,
    /// Size of that dimension.
    pub size: usize,
    /// Location of the call of the op.
    pub location: &'static Location<'static>,
}

impl IndexCheck {
    /// Returns the failed check that an error of [`ErrorKind::IndexCheck`] reports. `None` for
    /// other errors.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        match (error.kind(), error.location()) {
            (&ErrorKind::IndexCheck { index, dim, size }, Some(location)) => {
                Some(Self { op: error.op(), index, dim, size, location })
            }
            _ => None,
        }
    }
}

impl From<IndexCheck> for Error {
    fn from(IndexCheck { op, index, dim, size, location }: IndexCheck) -> Self {
        Self::new(ErrorKind::IndexCheck { index, dim, size }, Site { op, location })
    }
}

/// Words of mapped memory in which a kernel reports a failed check: the launch's number, the index,
/// a word that the caller chose, the dimension and its size. The first word of an empty slot is 0.
#[derive(Clone, Debug)]
pub(crate) struct ReportSlot {
    pub(crate) page: Arc<MappedWords>,
    /// Index of the slot's first word in the page.
    pub(crate) first: usize,
}

impl ReportSlot {
    /// Words per slot.
    pub(crate) const WORDS: usize = 8;

    pub(crate) fn address(&self) -> u64 {
        self.page.address(self.first)
    }

    /// Empties the slot. The caller has stored the report elsewhere.
    pub(crate) fn clear(&self) {
        if self.page.load(self.first) != 0 {
            self.page.store(self.first, 0);
        }
    }

    /// Returns the report of launch `number`. `None` if the slot has none.
    pub(crate) fn report(&self, number: u64, Site { op, location }: Site) -> Option<IndexCheck> {
        let Self { page, first } = self;
        if page.load(*first) != number {
            return None;
        }
        let [index, dim, size] = [1, 3, 4].map(|word| page.load(first + word));
        let (dim, size) = (dim as usize, size as usize);
        Some(IndexCheck { op, index: index as i64, dim, size, location })
    }
}

/// A failed check and its owner, the thread that it is reported to.
#[derive(Debug)]
pub(crate) struct FailedCheck {
    pub(crate) check: IndexCheck,
    pub(crate) owner: CheckOwner,
    /// The public call that made the launch. For a replay, a new identifier that the failed kernels of one captured
    /// call share. One report counts for all failures of a call.
    pub(crate) call: Option<CallId>,
    /// Whether the failure itself was reported.
    reported: AtomicBool,
}

impl FailedCheck {
    pub(crate) fn new(check: IndexCheck, owner: CheckOwner, call: Option<CallId>) -> Arc<Self> {
        FAILURES.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { check, owner, call, reported: AtomicBool::new(false) })
    }

    /// Returns whether the failure, or another failure of the same call, was reported.
    pub(crate) fn is_reported(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
            || self.call.is_some_and(|call| self.owner.has_report_of(call))
    }

    /// Marks the failures of the call as reported.
    pub(crate) fn mark_reported(&self) {
        if !self.reported.swap(true, Ordering::Relaxed)
            && let Some(call) = self.call
        {
            self.owner.add_report_of(call);
        }
    }
}
