//! Failed index checks: the kernel's report, its place in memory, and the thread that is told.

use std::panic::Location;
// A cache key: schedules need not be checked around it.
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};

use crate::{CheckOwner, Error, ErrorKind, Site};

/// The launch number that all replays of a captured kernel report.
pub(crate) const REPLAYED: u64 = u64::MAX;

/// Number of checks of this process that are known to have failed. A pending union is examined
/// again only if this number has changed.
pub(crate) static FAILURES: AtomicU64 = AtomicU64::new(1);

/// A failed index check: an index that is out of range for its dimension. Converts into
/// [`ErrorKind::IndexCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCheck {
    /// Name of the op.
    pub op: &'static str,
    /// The index; one of them if several are out of range.
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

/// The words of mapped memory in which a kernel reports a failed check: launch, index, call,
/// dimension, size. The first word of an empty place is 0.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) page: Arc<MappedWords>,
    pub(crate) first: usize,
}

impl Place {
    /// Words per place.
    pub(crate) const WORDS: usize = 8;

    pub(crate) fn address(&self) -> u64 {
        self.page.address(self.first)
    }

    /// Empties the place. Its report must be kept elsewhere by then.
    pub(crate) fn clear(&self) {
        if self.page.load(self.first) != 0 {
            self.page.store(self.first, 0);
        }
    }

    /// Returns the report of the launch with number `says`, if the place has one.
    pub(crate) fn report(&self, says: u64, Site { op, location }: Site) -> Option<IndexCheck> {
        let Self { page, first } = self;
        if page.load(*first) != says {
            return None;
        }
        let [index, dim, size] = [1, 3, 4].map(|word| page.load(first + word));
        let (dim, size) = (dim as usize, size as usize);
        Some(IndexCheck { op, index: index as i64, dim, size, location })
    }
}

/// A failed check and the thread that is told of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) check: IndexCheck,
    pub(crate) owner: CheckOwner,
    /// Whether the failure was reported.
    told: AtomicBool,
}

impl Failure {
    pub(crate) fn new(check: IndexCheck, owner: CheckOwner) -> Arc<Self> {
        FAILURES.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { check, owner, told: AtomicBool::new(false) })
    }

    pub(crate) fn was_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Marks the failure as reported.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }
}
