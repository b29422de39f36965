//! Launches of kernels that check indices, and unions of them, for the data that depends on them.

use std::fmt;
use std::mem::take;
use std::panic::Location;
// The counter below is a cache key: schedules need not be checked around it.
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use warpline_cuda_sys_safe::owned::MappedWords;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, OnceLock};

use crate::captured_checks::CapturedChecks;
use crate::order::Progress;
use crate::{CheckOwner, KernelSet, OpNumber};

/// The launch number that all replays of a captured kernel report.
pub(crate) const REPLAYED: u64 = u64::MAX;

/// Checks of this process that are known to have failed. A union whose inputs were looked at since
/// the latest failure need not be looked at again.
static FAILURES: AtomicU64 = AtomicU64::new(1);

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

    /// The report of launch `says`, if there is one.
    pub(crate) fn report(&self, says: u64, (op, location): Site) -> Option<IndexCheck> {
        let Self { page, first } = self;
        if page.load(*first) != says {
            return None;
        }
        let [index, dim, size] = [1, 3, 4].map(|word| page.load(first + word));
        let (dim, size) = (dim as usize, size as usize);
        Some(IndexCheck { op, index: index as i64, dim, size, location })
    }
}

/// A failed check, and the thread that has to hear of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) check: IndexCheck,
    pub(crate) owner: CheckOwner,
    /// Whether it was reported.
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

    /// Enters that the failure was reported.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
    }
}

/// The outcome of a check, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// Some launch is not known to be complete.
    Pending,
    /// All indices were in range.
    Passed,
    /// One was not.
    Failed(IndexCheck),
}

/// A launch of a kernel that checks indices, some kernels of a graph's replay, or a union of these.
/// Data that was computed from its result keeps it, to learn the outcome. Clones are the same launch.
///
/// Unions share their inputs, so that the cost of passing a dependency on does not grow with the
/// number of launches behind it.
#[derive(Clone, Debug)]
pub struct CheckedLaunch {
    node: Arc<Node>,
    /// The kernels of a replay; `None`: all.
    kernels: Option<KernelSet>,
}

#[derive(Debug)]
struct Node {
    /// The operation that follows, or is, the last of the launches. `None` on the host.
    at: Option<At>,
    kind: Kind,
}

/// An operation of a stream.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub(crate) progress: Arc<Progress>,
    pub(crate) op: OpNumber,
}

impl At {
    pub(crate) fn is_known_done(&self) -> bool {
        self.progress.is_known_done(self.op)
    }
}

#[derive(Debug)]
enum Kind {
    /// A check on the host that failed.
    Host(Arc<Failure>),
    Launch(Launch),
    Replay(Replay),
    Union(Union),
}

#[derive(Debug)]
struct Launch {
    site: Site,
    place: Place,
    /// The word that the kernel writes to its place first.
    says: u64,
    owner: CheckOwner,
    /// Set once, before the place is emptied.
    outcome: OnceLock<Option<Arc<Failure>>>,
}

#[derive(Debug)]
struct Replay {
    checks: Arc<CapturedChecks>,
    owner: CheckOwner,
    /// Set once, before the places are emptied.
    outcome: OnceLock<Box<[(usize, Arc<Failure>)]>>,
}

#[derive(Debug)]
struct Union {
    /// Empty once the outcome is known.
    inputs: Mutex<Inputs>,
    outcome: OnceLock<Option<Arc<Failure>>>,
    /// [`FAILURES`] as of the last time that all inputs were looked at.
    seen: AtomicU64,
}

type Inputs = SmallVec<[CheckedLaunch; 2]>;

/// What is known of a launch.
#[derive(Clone, Debug)]
enum Known {
    Pending,
    Passed,
    Failed(Arc<Failure>),
}

impl From<Option<&Arc<Failure>>> for Known {
    fn from(failure: Option<&Arc<Failure>>) -> Self {
        failure.map_or(Self::Passed, |failure| Self::Failed(Arc::clone(failure)))
    }
}

impl Union {
    fn inputs(&self) -> Inputs {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the outcome, and lets go of the inputs.
    fn decide(&self, outcome: Option<Arc<Failure>>) {
        let _ = self.outcome.set(outcome); // or another thread has
        drop(take(&mut *self.inputs.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl CheckedLaunch {
    fn new(at: Option<At>, kind: Kind) -> Self {
        Self { node: Arc::new(Node { at, kind }), kernels: None }
    }

    /// A launch on the host whose check failed.
    #[must_use]
    pub fn failed(check: IndexCheck) -> Self {
        Self::new(None, Kind::Host(Failure::new(check, CheckOwner::current())))
    }

    /// An operation that is about to be enqueued. Reuses the memory of a former launch that nobody
    /// keeps.
    pub(crate) fn on(former: Option<Self>, site: Site, at: At, place: Place, says: u64) -> Self {
        let (owner, outcome) = (CheckOwner::current(), OnceLock::new());
        let launch = Kind::Launch(Launch { site, place, says, owner, outcome });
        if let Some(mut former) = former
            && let Some(node) = Arc::get_mut(&mut former.node)
        {
            *node = Node { at: Some(at), kind: launch };
            return former;
        }
        Self::new(Some(at), launch)
    }

    /// A replay of all of a graph's kernels that check.
    pub(crate) fn replay(checks: &Arc<CapturedChecks>, at: At) -> Self {
        let (checks, owner) = (Arc::clone(checks), CheckOwner::current());
        Self::new(Some(at), Kind::Replay(Replay { checks, owner, outcome: OnceLock::new() }))
    }

    /// A union of launches, of which an operation depends on all.
    pub(crate) fn union(inputs: impl IntoIterator<Item = Self>, at: At) -> Self {
        let inputs = Mutex::new(inputs.into_iter().collect());
        // Not looked at yet: an input may have failed meanwhile.
        let union = Union { inputs, outcome: OnceLock::new(), seen: AtomicU64::new(0) };
        Self::new(Some(at), Kind::Union(union))
    }

    /// Of a replay: some of its kernels.
    #[must_use]
    pub fn of_kernels(&self, kernels: &KernelSet) -> Self {
        Self { node: Arc::clone(&self.node), kernels: Some(kernels.clone()) }
    }

    /// A number by which equal launches lie next to each other once they are sorted.
    #[must_use]
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.node).addr()
    }

    /// What is known of it. Asks no device.
    #[must_use]
    pub fn outcome(&self) -> CheckOutcome {
        match self.resolve(&At::is_known_done) {
            Known::Pending => CheckOutcome::Pending,
            Known::Passed => CheckOutcome::Passed,
            Known::Failed(failure) => CheckOutcome::Failed(failure.check.clone()),
        }
    }

    /// The failure, if it is known. It counts as reported if this thread is its owner: `synchronize`
    /// need not report it any more.
    #[must_use]
    pub fn take_failure(&self) -> Option<IndexCheck> {
        match self.resolve(&At::is_known_done) {
            Known::Failed(failure) => Some(read(&failure)),
            _ => None,
        }
    }

    /// [`CheckedLaunch::take_failure`] by a reader that has seen the work done in a way that counts
    /// as no order: reports that are there by now count.
    #[must_use]
    pub fn take_report(&self) -> Option<IndexCheck> {
        let mut open = vec![self.clone()];
        let mut seen = std::collections::HashSet::new();
        while let Some(launch) = open.pop() {
            match launch.resolve(&At::is_known_done) {
                Known::Failed(failure) => return Some(read(&failure)),
                Known::Passed => {}
                Known::Pending => match &launch.node.kind {
                    Kind::Host(_) => {}
                    Kind::Launch(own) => {
                        let report = own.place.report(own.says, own.site);
                        // In this order: the outcome is set before the place is emptied.
                        let known = own.outcome.get().map(|f| f.as_ref().map(|f| f.check.clone()));
                        if let Some(check) = known.unwrap_or(report) {
                            return Some(check);
                        }
                    }
                    Kind::Replay(own) => {
                        let reports = own.checks.reports();
                        let known = own.outcome.get().map(|outcome| {
                            outcome.iter().map(|(k, f)| (*k, f.check.clone())).collect()
                        });
                        let mut all: Vec<_> = known.unwrap_or(reports);
                        all.retain(|(kernel, _)| launch.has(*kernel));
                        if let Some((_, check)) = all.into_iter().next() {
                            return Some(check);
                        }
                    }
                    Kind::Union(own) => {
                        let new = own.inputs().into_iter().filter(|i| seen.insert(i.key_of_part()));
                        open.extend(new);
                    }
                },
            }
        }
        None
    }

    fn key_of_part(&self) -> (usize, Option<usize>) {
        (self.key(), self.kernels.as_ref().map(KernelSet::key))
    }

    fn has(&self, kernel: usize) -> bool {
        self.kernels.as_ref().is_none_or(|kernels| kernels.contains(kernel))
    }

    /// Takes up the outcome as far as it is known, work being done of which `over` says so. `false`
    /// while some is not.
    pub(crate) fn settle(&self, over: &dyn Fn(&At) -> bool) -> bool {
        !matches!(self.resolve(over), Known::Pending)
    }

    /// Its own failures, if it is a launch or a replay that is settled.
    pub(crate) fn own_failures(&self) -> SmallVec<[Arc<Failure>; 1]> {
        match &self.node.kind {
            Kind::Launch(launch) => launch.outcome.get().cloned().flatten().into_iter().collect(),
            Kind::Replay(replay) => {
                replay.outcome.get().into_iter().flatten().map(|(_, f)| Arc::clone(f)).collect()
            }
            Kind::Host(_) | Kind::Union(_) => SmallVec::new(),
        }
    }

    /// The place of a single launch.
    pub(crate) fn place(&self) -> Option<&Place> {
        match &self.node.kind {
            Kind::Launch(launch) => Some(&launch.place),
            _ => None,
        }
    }

    /// The graph's kernels that a replay replays.
    pub(crate) fn captured(&self) -> Option<&Arc<CapturedChecks>> {
        match &self.node.kind {
            Kind::Replay(replay) => Some(&replay.checks),
            _ => None,
        }
    }

    pub(crate) fn op(&self) -> OpNumber {
        self.node.at.as_ref().map_or(0, |at| at.op)
    }

    /// What is known, unless the inputs of a union have to be looked at.
    fn known(&self, over: &dyn Fn(&At) -> bool) -> Option<Known> {
        let done = || self.node.at.as_ref().is_none_or(|at| at.is_known_done() || over(at));
        Some(match &self.node.kind {
            Kind::Host(failure) => Known::Failed(Arc::clone(failure)),
            Kind::Launch(launch) => {
                if launch.outcome.get().is_none() && !done() {
                    return Some(Known::Pending);
                }
                let failed = |check| Failure::new(check, launch.owner.clone());
                let outcome = launch
                    .outcome
                    .get_or_init(|| launch.place.report(launch.says, launch.site).map(failed));
                outcome.as_ref().into()
            }
            Kind::Replay(replay) => {
                if replay.outcome.get().is_none() && !done() {
                    return Some(Known::Pending);
                }
                let outcome = replay.outcome.get_or_init(|| {
                    let reports = replay.checks.reports().into_iter();
                    let owner = &replay.owner;
                    reports
                        .map(|(kernel, check)| (kernel, Failure::new(check, owner.clone())))
                        .collect()
                });
                outcome.iter().find(|(kernel, _)| self.has(*kernel)).map(|(_, f)| f).into()
            }
            Kind::Union(union) => match union.outcome.get() {
                Some(outcome) => outcome.as_ref().into(),
                None if !done()
                    && union.seen.load(Ordering::Relaxed) == FAILURES.load(Ordering::Relaxed) =>
                {
                    Known::Pending
                }
                None => return None,
            },
        })
    }

    /// What is known, work being done of which `over` says so.
    fn resolve(&self, over: &dyn Fn(&At) -> bool) -> Known {
        if let Some(known) = self.known(over) {
            return known;
        }
        let epoch = FAILURES.load(Ordering::Relaxed);
        // The way down from `self`: each union, its inputs yet to look at, and whether one was pending.
        let mut way: Vec<(Self, Inputs, bool)> = vec![(self.clone(), self.inputs(), false)];
        let mut result = Known::Passed;
        while let Some((launch, inputs, pending)) = way.last_mut() {
            let Some(next) = inputs.pop() else {
                result = match std::mem::replace(pending, false) {
                    true => Known::Pending,
                    false => Known::Passed,
                };
                if let Kind::Union(union) = &launch.node.kind {
                    // Another thread may have let go of the inputs, and so decided.
                    match (&result, union.outcome.get()) {
                        (_, Some(outcome)) => result = outcome.as_ref().into(),
                        (Known::Pending, None) => union.seen.store(epoch, Ordering::Relaxed),
                        (_, None) => union.decide(None),
                    }
                }
                way.pop();
                give(&mut way, &mut result);
                continue;
            };
            match next.known(over) {
                Some(known) => {
                    result = known;
                    give(&mut way, &mut result);
                }
                None => {
                    let inputs = next.inputs();
                    way.push((next, inputs, false));
                }
            }
        }
        result
    }

    fn inputs(&self) -> Inputs {
        match &self.node.kind {
            Kind::Union(union) => union.inputs(),
            _ => Inputs::new(),
        }
    }
}

/// Gives the result for an input to the union above it. A failure is that of all unions above.
fn give(way: &mut Vec<(CheckedLaunch, Inputs, bool)>, result: &mut Known) {
    match result {
        Known::Passed => {}
        Known::Pending => {
            if let Some((.., pending)) = way.last_mut() {
                *pending = true;
            }
        }
        Known::Failed(failure) => {
            for (launch, ..) in way.drain(..) {
                if let Kind::Union(union) = &launch.node.kind {
                    union.decide(Some(Arc::clone(failure)));
                }
            }
        }
    }
}

/// The failed check, which counts as reported if this thread is its owner.
fn read(failure: &Failure) -> IndexCheck {
    if !failure.was_told() && failure.owner == CheckOwner::current() {
        failure.tell();
    }
    failure.check.clone()
}

/// Chains of unions are dropped without recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let Kind::Union(union) = &mut self.kind else { return };
        let mut open = take(union.inputs.get_mut().unwrap_or_else(PoisonError::into_inner));
        while let Some(launch) = open.pop() {
            if let Some(mut node) = Arc::into_inner(launch.node)
                && let Kind::Union(union) = &mut node.kind
            {
                open.extend(take(union.inputs.get_mut().unwrap_or_else(PoisonError::into_inner)));
            }
        }
    }
}

impl PartialEq for CheckedLaunch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.kernels == other.kernels
    }
}

impl Eq for CheckedLaunch {}
