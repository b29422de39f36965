//! Launches of kernels that check indices, and unions of them, for the data that depends on them.
//!
//! Invariant: passing a dependency on costs the same, however many launches are outstanding. Bytes
//! depend on at most a few [`CheckedLaunch`]es. If an operation would depend on more, it makes a
//! *union*, which shares its inputs. A settled union drops its inputs, so only work in flight is
//! kept. A count of all failures tells whether a pending union has to be examined again.

mod resolve;

use std::mem::take;
// A cache key: schedules need not be checked around it.
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use warpline_sync::{Mutex, OnceLock};

use self::resolve::Known;
use crate::captured_checks::{CapturedChecks, KernelFailures};
use crate::index_check::{Failure, Place};
use crate::order::Progress;
use crate::{CheckOwner, IndexCheck, KernelSet, OpNumber, Site};

/// The outcome of one or several checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// A launch is not known to be complete.
    Pending,
    /// All indices were in range.
    Passed,
    /// An index was out of range.
    Failed(IndexCheck),
}

/// A launch of a kernel that checks indices, some kernels of a graph's replay, or a union of these.
/// Data computed from the results of the launch keeps a `CheckedLaunch`, to learn the outcome.
/// Clones are the same launch.
///
/// Unions share their inputs, so that the cost of passing a dependency on does not grow with the
/// number of launches.
#[derive(Clone, Debug)]
pub struct CheckedLaunch {
    node: Arc<Node>,
    /// Kernels of a replay. `None`: all.
    kernels: Option<KernelSet>,
}

#[derive(Debug)]
struct Node {
    /// The operation itself for a launch or replay; for a union, the operation that follows its
    /// last launch. `None` on the host.
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
    /// A failed check on the host.
    Host(Arc<Failure>),
    Launch(Launch),
    Replay(Replay),
    Union(Union),
}

#[derive(Debug)]
struct Launch {
    site: Site,
    place: Place,
    /// The number that a failing kernel writes to the first word of its place.
    says: u64,
    owner: CheckOwner,
    /// Set once, before the place is emptied.
    outcome: OnceLock<Option<Arc<Failure>>>,
}

#[derive(Debug)]
struct Replay {
    checks: Arc<CapturedChecks>,
    /// Overlapping replays have the same period.
    period: u64,
    owner: CheckOwner,
    /// Set once, before the places are emptied.
    outcome: OnceLock<KernelFailures>,
}

#[derive(Debug)]
struct Union {
    /// Empty once the outcome is known.
    inputs: Mutex<Inputs>,
    outcome: OnceLock<Option<Arc<Failure>>>,
    /// Value of [`FAILURES`](crate::index_check::FAILURES) when all inputs were last examined.
    seen: AtomicU64,
}

type Inputs = SmallVec<[CheckedLaunch; 2]>;

impl Union {
    fn inputs(&self) -> Inputs {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the outcome and drops the inputs.
    fn decide(&self, outcome: Option<Arc<Failure>>) {
        let _ = self.outcome.set(outcome); // or another thread has
        drop(take(&mut *self.inputs.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl CheckedLaunch {
    fn new(at: Option<At>, kind: Kind) -> Self {
        Self { node: Arc::new(Node { at, kind }), kernels: None }
    }

    /// Creates a launch on the host whose check failed.
    #[must_use]
    pub fn failed(check: IndexCheck) -> Self {
        Self::new(None, Kind::Host(Failure::new(check, CheckOwner::current())))
    }

    /// Creates the launch of an operation that is about to be enqueued. Reuses the memory of
    /// `former` if no other reference to it exists.
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

    /// Creates a replay of all kernels of a graph that check indices.
    pub(crate) fn replay(checks: &Arc<CapturedChecks>, period: u64, at: At) -> Self {
        let (checks, owner) = (Arc::clone(checks), CheckOwner::current());
        let replay = Replay { checks, period, owner, outcome: OnceLock::new() };
        Self::new(Some(at), Kind::Replay(replay))
    }

    /// Creates a union of launches, for an operation that depends on all of them.
    pub(crate) fn union(inputs: impl IntoIterator<Item = Self>, at: At) -> Self {
        let inputs = Mutex::new(inputs.into_iter().collect());
        // 0, so that the first query examines the inputs: one may have failed meanwhile.
        let union = Union { inputs, outcome: OnceLock::new(), seen: AtomicU64::new(0) };
        Self::new(Some(at), Kind::Union(union))
    }

    /// Returns the given kernels of this replay.
    #[must_use]
    pub fn of_kernels(&self, kernels: &KernelSet) -> Self {
        Self { node: Arc::clone(&self.node), kernels: Some(kernels.clone()) }
    }

    /// Returns a sort key that is equal for kernels of the same replay.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.node).addr()
    }

    /// Adds another launch if one `CheckedLaunch` can represent both: kernels of the same replay,
    /// or launches of which one covers the other. Returns whether it did.
    pub fn absorb(&mut self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.node, &other.node) {
            match (&mut self.kernels, &other.kernels) {
                (Some(own), Some(other)) => own.join(other),
                (own, _) => *own = None,
            }
        } else if other.covers(self) {
            self.clone_from(other);
        } else if !self.covers(other) {
            return false;
        }
        true
    }

    /// Returns whether this launch fails if `other` does. A replay fails with an earlier replay on
    /// its stream that it overlaps, because they share their places. A union fails with its inputs.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let all = |node: &Node| self.kernels.is_none() && std::ptr::eq(&*self.node, node);
        match (&self.node.kind, &other.node.kind) {
            _ if self == other || all(&other.node) => true,
            (Kind::Union(union), _) => {
                let inputs = union.inputs.lock().unwrap_or_else(PoisonError::into_inner);
                inputs.iter().any(|input| input == other || input.covers_replay(other))
            }
            _ => self.covers_replay(other),
        }
    }

    fn covers_replay(&self, other: &Self) -> bool {
        let (Kind::Replay(own), Kind::Replay(earlier)) = (&self.node.kind, &other.node.kind) else {
            return false;
        };
        let (Some(at), Some(before)) = (&self.node.at, &other.node.at) else { return false };
        let kernels = match (&self.kernels, &other.kernels) {
            (None, _) => true,
            (Some(own), Some(other)) => own.covers(other),
            (Some(_), None) => false,
        };
        kernels
            && own.period == earlier.period
            && Arc::ptr_eq(&own.checks, &earlier.checks)
            && Arc::ptr_eq(&at.progress, &before.progress)
            && at.op >= before.op
    }

    /// Records the outcome if it is known. `over` names operations that are complete. Returns
    /// `false` while the operation is not complete.
    pub(crate) fn settle(&self, over: &dyn Fn(&At) -> bool) -> bool {
        let known = !matches!(self.resolve(over), Known::Pending);
        match &self.node.kind {
            // It may be known to fail while it runs.
            Kind::Replay(replay) => replay.outcome.get().is_some(),
            // Inputs may be pending on a stream that nothing orders: readers look at them.
            Kind::Union(_) => known || self.is_done(over),
            Kind::Host(_) | Kind::Launch(_) => known,
        }
    }

    fn is_done(&self, over: &dyn Fn(&At) -> bool) -> bool {
        self.node.at.as_ref().is_none_or(|at| at.is_known_done() || over(at))
    }

    /// Visits the failures of a launch or replay that has an outcome. Visits nothing for a union.
    pub(crate) fn own_failures(&self, mut visit: impl FnMut(&Arc<Failure>)) {
        match &self.node.kind {
            Kind::Launch(launch) => launch.outcome.get().into_iter().flatten().for_each(visit),
            Kind::Replay(replay) => {
                replay.outcome.get().into_iter().flatten().for_each(|(_, failure)| visit(failure));
            }
            Kind::Host(_) | Kind::Union(_) => {}
        }
    }

    /// Returns the place of a single launch.
    pub(crate) fn place(&self) -> Option<&Place> {
        match &self.node.kind {
            Kind::Launch(launch) => Some(&launch.place),
            _ => None,
        }
    }

    /// Ends a replay that has an outcome, or that the driver refused.
    pub(crate) fn end_replay(&self) {
        if let Kind::Replay(replay) = &self.node.kind {
            replay.checks.end_replay();
        }
    }

    pub(crate) fn op(&self) -> OpNumber {
        self.node.at.as_ref().map_or(0, |at| at.op)
    }
}

/// Drops chains of unions without recursion.
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
