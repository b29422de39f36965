//! Launches of kernels that check indices, as what depends on them remembers them.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::OnceLock;
use warpline_sync::atomic::{AtomicBool, Ordering};

use crate::OpNumber;
use crate::order::Progress;

/// Stands for the number of a captured launch, which runs whenever its graph is replayed.
pub(crate) const REPLAYED: u64 = u64::MAX;

/// A kernel met an index that its dimension does not have.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op}: index {index} is out of range for dimension {dim} with size {size}, in the call at {location}"
)]
pub struct IndexCheck {
    /// The op.
    pub op: &'static str,
    /// The index; one of them where several are out of range.
    pub index: i64,
    /// The dimension that it was to index.
    pub dim: usize,
    /// That dimension's size.
    pub size: usize,
    /// Where the op was called.
    pub location: &'static Location<'static>,
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for IndexCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The call that launched a kernel: the op, and where it was called.
pub(crate) type Site = (&'static str, &'static Location<'static>);

/// Where a kernel says that its check failed, words of mapped memory: launch, index, call, dimension,
/// size. The first is 0 while it is empty.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) page: Arc<MappedWords>,
    pub(crate) first: usize,
}

impl Place {
    /// The words of one.
    pub(crate) const WORDS: usize = 8;

    pub(crate) fn address(&self) -> u64 {
        self.page.address(self.first)
    }

    /// Makes it empty, once what it says is kept elsewhere.
    pub(crate) fn clear(&self) {
        if self.page.load(self.first) != 0 {
            self.page.store(self.first, 0);
        }
    }
}

/// What is known of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome<'a> {
    /// The launch is not known to be complete.
    Pending,
    /// All indices were in range.
    Passed,
    /// One was not.
    Failed(&'a IndexCheck),
}

/// One launch of a kernel that checks indices, or one replay of a captured one. What was computed
/// from its result keeps it, to learn how the check went. Clones are the same launch.
#[derive(Clone, Debug)]
pub struct CheckedLaunch(Arc<Checked>);

#[derive(Debug)]
struct Checked {
    site: Site,
    /// `None` if it ran on the host.
    on: Option<OnStream>,
    /// Set once, when it is known; before its place is made empty.
    outcome: OnceLock<Option<IndexCheck>>,
    /// Whether somebody was told who waited for it.
    told: AtomicBool,
}

#[derive(Debug)]
struct OnStream {
    progress: Arc<Progress>,
    op: OpNumber,
    place: Place,
    /// What it writes to its place first.
    says: u64,
}

impl CheckedLaunch {
    /// A launch on the host whose check failed.
    #[must_use]
    pub fn failed(check: IndexCheck) -> Self {
        let (site, outcome) = ((check.op, check.location), OnceLock::new());
        let _ = outcome.set(Some(check)); // of which nobody knows yet
        Self(Arc::new(Checked { site, on: None, outcome, told: AtomicBool::new(false) }))
    }

    /// Operation `op` of a stream, which is about to be enqueued; in the memory of a former one that
    /// nobody keeps, if there is one.
    pub(crate) fn on(
        former: Option<Self>,
        site: Site,
        progress: &Arc<Progress>,
        op: OpNumber,
        (place, says): (&Place, u64),
    ) -> Self {
        let on = Some(OnStream { progress: Arc::clone(progress), op, place: place.clone(), says });
        let (outcome, told) = (OnceLock::new(), AtomicBool::new(false));
        let checked = Checked { site, on, outcome, told };
        if let Some(mut former) = former
            && let Some(slot) = Arc::get_mut(&mut former.0)
        {
            *slot = checked;
            return former;
        }
        Self(Arc::new(checked))
    }

    /// What is known of it. Asks nobody.
    #[must_use]
    pub fn outcome(&self) -> CheckOutcome<'_> {
        if self.0.outcome.get().is_none() && !self.is_known_done() {
            return CheckOutcome::Pending;
        }
        match self.settle() {
            Some(failed) => CheckOutcome::Failed(failed),
            None => CheckOutcome::Passed,
        }
    }

    /// What it has said by now, for whoever has seen it done in a way that counts as no order.
    #[must_use]
    pub fn said(&self) -> Option<IndexCheck> {
        // In this order: the place is made empty once the outcome is set.
        let here = self.in_place();
        self.0.outcome.get().cloned().unwrap_or(here)
    }

    /// Enters that the failure was reported: waits need not do it any more.
    pub fn tell(&self) {
        self.0.told.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }

    /// What it says, which is final, as it is done.
    pub(crate) fn settle(&self) -> Option<&IndexCheck> {
        self.0.outcome.get_or_init(|| self.in_place()).as_ref()
    }

    pub(crate) fn is_known_done(&self) -> bool {
        self.0.on.as_ref().is_none_or(|on| on.progress.is_known_done(on.op))
    }

    /// Its stream and number there.
    pub(crate) fn number(&self) -> Option<(u64, OpNumber)> {
        self.0.on.as_ref().map(|on| (on.progress.stream, on.op))
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        self.0.on.as_ref().map(|on| &on.place)
    }

    fn in_place(&self) -> Option<IndexCheck> {
        let OnStream { place: Place { page, first }, says, .. } = self.0.on.as_ref()?;
        if page.load(*first) != *says {
            return None;
        }
        let [index, dim, size] = [1, 3, 4].map(|word| page.load(first + word));
        let (op, location) = self.0.site;
        let (dim, size) = (dim as usize, size as usize);
        Some(IndexCheck { op, index: index as i64, dim, size, location })
    }
}

impl PartialEq for CheckedLaunch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CheckedLaunch {}
