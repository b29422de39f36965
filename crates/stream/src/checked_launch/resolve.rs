//! Finds the outcomes of launches from the reports in their slots, and the outcomes of unions from
//! their inputs.

use std::collections::HashSet;
use std::sync::Arc;

use warpline_sync::atomic::Ordering;

use super::{CheckOutcome, CheckedLaunch, Inputs, LaunchKind, StreamOp};
use crate::index_check::{FAILURES, FailedCheck};
use crate::{CheckOwner, IndexCheck, KernelSet};

/// The known outcome of a launch.
#[derive(Clone, Debug)]
pub(super) enum Resolution {
    Pending,
    Passed,
    Failed(Arc<FailedCheck>),
}

impl From<Option<&Arc<FailedCheck>>> for Resolution {
    fn from(failure: Option<&Arc<FailedCheck>>) -> Self {
        failure.map_or(Self::Passed, |failure| Self::Failed(Arc::clone(failure)))
    }
}

impl CheckedLaunch {
    /// Returns the known outcome. Does not query the device.
    #[must_use]
    pub fn outcome(&self) -> CheckOutcome {
        match self.resolve(&StreamOp::is_known_done) {
            Resolution::Pending => CheckOutcome::Pending,
            Resolution::Passed => CheckOutcome::Passed,
            Resolution::Failed(failure) => CheckOutcome::Failed(failure.check.clone()),
        }
    }

    /// Returns the failure, if it is known. If this thread is the failure's owner, the failure
    /// counts as reported, and `synchronize` does not report it again.
    #[must_use]
    pub fn take_failure(&self) -> Option<IndexCheck> {
        match self.resolve(&StreamOp::is_known_done) {
            Resolution::Failed(failure) => Some(take_check(&failure)),
            _ => None,
        }
    }

    /// Returns the failure as [`CheckedLaunch::take_failure`] does, and also examines the reports
    /// of launches that are not known to be complete; a failure found in such a report does not count
    /// as reported. Call this after a silent wait, because such a wait does not record that work is
    /// complete.
    #[must_use]
    pub fn take_report(&self) -> Option<IndexCheck> {
        let mut open = vec![self.clone()];
        let mut seen = HashSet::new();
        while let Some(launch) = open.pop() {
            match launch.resolve(&StreamOp::is_known_done) {
                Resolution::Failed(failure) => return Some(take_check(&failure)),
                Resolution::Passed => {}
                Resolution::Pending => match &launch.node.kind {
                    LaunchKind::Host(_) => {}
                    LaunchKind::Launch(own) => {
                        let report = own.slot.report(own.number, own.site);
                        // Read the outcome after the slot. The outcome is set before the slot is
                        // emptied, so at least one of the two reads finds the failure.
                        let known = own.outcome.get().map(|f| f.as_ref().map(|f| f.check.clone()));
                        if let Some(check) = known.unwrap_or(report) {
                            return Some(check);
                        }
                    }
                    LaunchKind::Replay(own) => {
                        let reports = own.checks.reports();
                        let known = own.outcome.get().map(|outcome| {
                            outcome.iter().map(|(k, f)| (*k, f.check.clone())).collect()
                        });
                        let mut all: Vec<_> = known.unwrap_or(reports);
                        all.retain(|(kernel, _)| launch.includes(*kernel));
                        if let Some((_, check)) = all.into_iter().next() {
                            return Some(check);
                        }
                    }
                    LaunchKind::Union(own) => {
                        let new = own.inputs().into_iter().filter(|i| seen.insert(i.visit_key()));
                        open.extend(new);
                    }
                },
            }
        }
        None
    }

    fn visit_key(&self) -> (usize, Option<usize>) {
        (self.key(), self.kernels.as_ref().map(KernelSet::key))
    }

    fn includes(&self, kernel: usize) -> bool {
        self.kernels.as_ref().is_none_or(|kernels| kernels.contains(kernel))
    }

    /// Returns the outcome, or `None` if the inputs of a union must be examined first.
    fn resolve_directly(&self, is_complete: &dyn Fn(&StreamOp) -> bool) -> Option<Resolution> {
        let done = || self.is_done(is_complete);
        Some(match &self.node.kind {
            LaunchKind::Host(failure) => Resolution::Failed(Arc::clone(failure)),
            LaunchKind::Launch(launch) => {
                if launch.outcome.get().is_none() && !done() {
                    return Some(Resolution::Pending);
                }
                let failed = |check| FailedCheck::new(check, launch.owner.clone(), launch.call);
                let outcome = launch
                    .outcome
                    .get_or_init(|| launch.slot.report(launch.number, launch.site).map(failed));
                outcome.as_ref().into()
            }
            LaunchKind::Replay(replay) => {
                let has = |(kernel, _): &&(usize, _)| self.includes(*kernel);
                if replay.outcome.get().is_none() && !done() {
                    // The replay will fail with the earlier replays that it overlaps, because their
                    // reports stay in the shared slots.
                    let known = replay.checks.known_failures(replay.period);
                    return Some(
                        known.iter().find(has).map_or(Resolution::Pending, |(_, failure)| {
                            Resolution::Failed(Arc::clone(failure))
                        }),
                    );
                }
                let failures = || replay.checks.failures(&replay.owner);
                let outcome = replay.outcome.get_or_init(failures);
                outcome.iter().find(has).map(|(_, failure)| failure).into()
            }
            LaunchKind::Union(union) => match union.outcome.get() {
                Some(outcome) => outcome.as_ref().into(),
                None if !done()
                    && union.seen.load(Ordering::Relaxed) == FAILURES.load(Ordering::Relaxed) =>
                {
                    Resolution::Pending
                }
                None => return None,
            },
        })
    }

    /// Returns the known outcome. Operations count as complete if they are known to be complete
    /// ([`StreamOp::is_known_done`]) or if `is_complete` returns `true`.
    pub(super) fn resolve(&self, is_complete: &dyn Fn(&StreamOp) -> bool) -> Resolution {
        if let Some(known) = self.resolve_directly(is_complete) {
            return known;
        }
        let epoch = FAILURES.load(Ordering::Relaxed);
        // The path from `self` down: each union, its remaining inputs, and whether an examined
        // input is pending.
        let mut path: Vec<(Self, Inputs, bool)> = vec![(self.clone(), self.inputs(), false)];
        let mut result = Resolution::Passed;
        // Unions that were found pending. A union may be an input of several others.
        let mut open: HashSet<usize> = HashSet::new();
        while let Some((launch, inputs, pending)) = path.last_mut() {
            let Some(next) = inputs.pop() else {
                result = match std::mem::replace(pending, false) {
                    true => Resolution::Pending,
                    false => Resolution::Passed,
                };
                if let LaunchKind::Union(union) = &launch.node.kind {
                    // Another thread may have set the outcome and dropped the inputs.
                    match (&result, union.outcome.get()) {
                        (_, Some(outcome)) => result = outcome.as_ref().into(),
                        (Resolution::Pending, None) => {
                            union.seen.store(epoch, Ordering::Relaxed);
                            open.insert(launch.key());
                        }
                        (_, None) => union.decide(None),
                    }
                }
                path.pop();
                propagate(&mut path, &mut result);
                continue;
            };
            match next.resolve_directly(is_complete) {
                Some(known) => {
                    result = known;
                    propagate(&mut path, &mut result);
                }
                None if open.contains(&next.key()) => {
                    result = Resolution::Pending;
                    propagate(&mut path, &mut result);
                }
                None => {
                    let inputs = next.inputs();
                    path.push((next, inputs, false));
                }
            }
        }
        result
    }

    fn inputs(&self) -> Inputs {
        match &self.node.kind {
            LaunchKind::Union(union) => union.inputs(),
            _ => Inputs::new(),
        }
    }
}

/// Passes the outcome of an input to the last union of the path. A failure is the outcome of all
/// unions of the path, and no union is left in the path then.
fn propagate(path: &mut Vec<(CheckedLaunch, Inputs, bool)>, result: &mut Resolution) {
    match result {
        Resolution::Passed => {}
        Resolution::Pending => {
            if let Some((.., pending)) = path.last_mut() {
                *pending = true;
            }
        }
        Resolution::Failed(failure) => {
            for (launch, ..) in path.drain(..) {
                if let LaunchKind::Union(union) = &launch.node.kind {
                    union.decide(Some(Arc::clone(failure)));
                }
            }
        }
    }
}

/// Returns the failed check and marks it as reported if this thread is its owner.
fn take_check(failure: &FailedCheck) -> IndexCheck {
    if !failure.is_reported() && failure.owner == CheckOwner::current() {
        failure.mark_reported();
    }
    failure.check.clone()
}
