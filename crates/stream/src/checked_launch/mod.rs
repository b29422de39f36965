//! Launches of kernels that check indices, and unions of such launches. Data that depends on a
//! launch keeps a reference to it.
//!
//! Invariant: the cost of passing a dependency on does not grow with the number of launches in
//! flight. Bytes depend on at most a few [`CheckedLaunch`]es. An operation that would depend on
//! more creates a *union*, which shares its inputs. A union drops its inputs once its outcome is
//! known, so only work in flight stays in memory. A pending union whose operation is not known to be
//! complete is examined again only if the number of all known failures has changed.

mod resolve;

use std::mem::take;
// From std rather than `warpline_sync`: the counter orders no memory, so shuttle need not switch
// threads at its uses.
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use smallvec::SmallVec;
use warpline_sync::{Mutex, OnceLock};
use warpline_types::CallId;

use self::resolve::Resolution;
use crate::captured_checks::{CapturedChecks, KernelFailures};
use crate::index_check::{FailedCheck, ReportSlot};
use crate::order::StreamProgress;
use crate::{CheckOwner, IndexCheck, KernelSet, OpNumber, Site};

/// The outcome of one or several checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// At least one launch is not known to be complete, and no failure is known.
    Pending,
    /// All indices were in range.
    Passed,
    /// An index was out of range.
    Failed(IndexCheck),
}

/// A launch of a kernel that checks indices, some kernels of a graph's replay, a failed check on the
/// host, or a union of these. The results, and data computed from them, keep a `CheckedLaunch`, which
/// tells whether the check failed. Clones stand for the same launch.
///
/// Unions share their inputs, so that the cost of passing a dependency on does not grow with the
/// number of launches.
#[derive(Clone, Debug)]
pub struct CheckedLaunch {
    node: Arc<LaunchNode>,
    /// Kernels of a replay. `None`: all.
    kernels: Option<KernelSet>,
}

#[derive(Debug)]
struct LaunchNode {
    /// The operation of the launch or replay. For a union, an operation that depends on all inputs.
    /// `None` for a check on the host.
    at: Option<StreamOp>,
    kind: LaunchKind,
}

/// An operation of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamOp {
    pub(crate) progress: Arc<StreamProgress>,
    pub(crate) op: OpNumber,
}

impl StreamOp {
    pub(crate) fn is_known_done(&self) -> bool {
        self.progress.is_known_done(self.op)
    }
}

#[derive(Debug)]
enum LaunchKind {
    /// A failed check on the host.
    Host(Arc<FailedCheck>),
    Launch(SingleLaunch),
    Replay(ReplayLaunch),
    Union(UnionLaunch),
}

#[derive(Debug)]
struct SingleLaunch {
    site: Site,
    slot: ReportSlot,
    /// The number that a failing kernel writes to the first word of its slot.
    number: u64,
    owner: CheckOwner,
    /// The public call that made the launch.
    call: Option<CallId>,
    /// Set once, before the slot is emptied.
    outcome: OnceLock<Option<Arc<FailedCheck>>>,
}

#[derive(Debug)]
struct ReplayLaunch {
    checks: Arc<CapturedChecks>,
    /// Overlapping replays have the same period.
    period: u64,
    owner: CheckOwner,
    /// Set once, before the slots are emptied.
    outcome: OnceLock<KernelFailures>,
}

#[derive(Debug)]
struct UnionLaunch {
    /// Empty once the outcome is known.
    inputs: Mutex<Inputs>,
    outcome: OnceLock<Option<Arc<FailedCheck>>>,
    /// Value of [`FAILURES`](crate::index_check::FAILURES) when the inputs were last examined.
    seen: AtomicU64,
}

type Inputs = SmallVec<[CheckedLaunch; 2]>;

impl UnionLaunch {
    fn inputs(&self) -> Inputs {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the outcome and drops the inputs.
    fn decide(&self, outcome: Option<Arc<FailedCheck>>) {
        // The call fails if another thread has already set an outcome. That outcome stays.
        let _ = self.outcome.set(outcome);
        drop(take(&mut *self.inputs.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl CheckedLaunch {
    fn new(at: Option<StreamOp>, kind: LaunchKind) -> Self {
        Self { node: Arc::new(LaunchNode { at, kind }), kernels: None }
    }

    /// Creates a launch on the host whose check failed.
    #[must_use]
    pub fn failed(check: IndexCheck) -> Self {
        let failure = FailedCheck::new(check, CheckOwner::current(), CallId::current());
        Self::new(None, LaunchKind::Host(failure))
    }

    /// Creates the launch of an operation that is about to be enqueued. Reuses the memory of
    /// `former` if no other reference to it exists.
    pub(crate) fn single(
        former: Option<Self>,
        site: Site,
        at: StreamOp,
        slot: ReportSlot,
        number: u64,
    ) -> Self {
        let launch = LaunchKind::Launch(SingleLaunch {
            site,
            slot,
            number,
            owner: CheckOwner::current(),
            call: CallId::current(),
            outcome: OnceLock::new(),
        });
        if let Some(mut former) = former
            && let Some(node) = Arc::get_mut(&mut former.node)
        {
            *node = LaunchNode { at: Some(at), kind: launch };
            return former;
        }
        Self::new(Some(at), launch)
    }

    /// Creates a replay of all kernels of a graph that check indices.
    pub(crate) fn replay(checks: &Arc<CapturedChecks>, period: u64, at: StreamOp) -> Self {
        let (checks, owner) = (Arc::clone(checks), CheckOwner::current());
        let replay = ReplayLaunch { checks, period, owner, outcome: OnceLock::new() };
        Self::new(Some(at), LaunchKind::Replay(replay))
    }

    /// Creates a union of launches, for an operation that depends on all of them.
    pub(crate) fn union(inputs: impl IntoIterator<Item = Self>, at: StreamOp) -> Self {
        let inputs = Mutex::new(inputs.into_iter().collect());
        // The counter starts at 1, so 0 makes the first query examine the inputs.
        let union = UnionLaunch { inputs, outcome: OnceLock::new(), seen: AtomicU64::new(0) };
        Self::new(Some(at), LaunchKind::Union(union))
    }

    /// Returns a launch that stands for the given kernels of this replay only.
    #[must_use]
    pub fn of_kernels(&self, kernels: &KernelSet) -> Self {
        Self { node: Arc::clone(&self.node), kernels: Some(kernels.clone()) }
    }

    /// Returns a sort key that is equal for kernels of the same replay.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.node).addr()
    }

    /// Adds another launch if one `CheckedLaunch` can represent both: kernels of the same replay,
    /// or two launches if one covers the other. Returns whether `other` was added.
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

    /// Returns whether this launch is known to fail if `other` fails. If a replay fails, so does each
    /// later replay that overlaps it on the same stream, because the replays share their slots. A union
    /// fails if one of its inputs fails. If an input is itself a union, its inputs are not searched.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let all = |node: &LaunchNode| self.kernels.is_none() && std::ptr::eq(&*self.node, node);
        match (&self.node.kind, &other.node.kind) {
            _ if self == other || all(&other.node) => true,
            (LaunchKind::Union(union), _) => {
                let inputs = union.inputs.lock().unwrap_or_else(PoisonError::into_inner);
                inputs.iter().any(|input| input == other || input.covers_replay(other))
            }
            _ => self.covers_replay(other),
        }
    }

    fn covers_replay(&self, other: &Self) -> bool {
        let (LaunchKind::Replay(own), LaunchKind::Replay(earlier)) =
            (&self.node.kind, &other.node.kind)
        else {
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

    /// Records the outcome if it is known. Operations count as complete if they are known to be
    /// complete ([`StreamOp::is_known_done`]) or if `is_complete` returns `true`. Returns whether the
    /// launch has settled. A union also settles when its operation is complete, even if its outcome is
    /// not known.
    pub(crate) fn settle(&self, is_complete: &dyn Fn(&StreamOp) -> bool) -> bool {
        let known = !matches!(self.resolve(is_complete), Resolution::Pending);
        match &self.node.kind {
            // A running replay may be known to fail, but it settles only when it is complete.
            LaunchKind::Replay(replay) => replay.outcome.get().is_some(),
            // An input may still be pending on a stream that is not ordered with this stream. Code
            // that asks for the union's outcome examines such inputs.
            LaunchKind::Union(_) => known || self.is_done(is_complete),
            LaunchKind::Host(_) | LaunchKind::Launch(_) => known,
        }
    }

    fn is_done(&self, is_complete: &dyn Fn(&StreamOp) -> bool) -> bool {
        self.node.at.as_ref().is_none_or(|at| at.is_known_done() || is_complete(at))
    }

    /// Visits the failures of a launch or replay that has an outcome. Visits nothing for a union or a
    /// check on the host.
    pub(crate) fn own_failures(&self, mut visit: impl FnMut(&Arc<FailedCheck>)) {
        match &self.node.kind {
            LaunchKind::Launch(launch) => {
                launch.outcome.get().into_iter().flatten().for_each(visit)
            }
            LaunchKind::Replay(replay) => {
                replay.outcome.get().into_iter().flatten().for_each(|(_, failure)| visit(failure));
            }
            LaunchKind::Host(_) | LaunchKind::Union(_) => {}
        }
    }

    /// Returns the slot of a single launch.
    pub(crate) fn slot(&self) -> Option<&ReportSlot> {
        match &self.node.kind {
            LaunchKind::Launch(launch) => Some(&launch.slot),
            _ => None,
        }
    }

    /// Ends a replay that has an outcome or that the driver refused. Does nothing for
    /// other kinds of launches.
    pub(crate) fn end_replay(&self) {
        if let LaunchKind::Replay(replay) = &self.node.kind {
            replay.checks.end_replay();
        }
    }

    pub(crate) fn op(&self) -> OpNumber {
        self.node.at.as_ref().map_or(0, |at| at.op)
    }
}

/// Drops chains of unions without recursion.
impl Drop for LaunchNode {
    fn drop(&mut self) {
        let LaunchKind::Union(union) = &mut self.kind else { return };
        let mut open = take(union.inputs.get_mut().unwrap_or_else(PoisonError::into_inner));
        while let Some(launch) = open.pop() {
            if let Some(mut node) = Arc::into_inner(launch.node)
                && let LaunchKind::Union(union) = &mut node.kind
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
