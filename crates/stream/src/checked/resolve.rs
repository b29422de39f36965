//! Resolution of outcomes: of launches by the reports in their places, of unions by their inputs.

use std::collections::HashSet;
use std::sync::Arc;

use warpline_sync::atomic::Ordering;

use super::{At, CheckOutcome, CheckedLaunch, Inputs, Kind};
use crate::index_check::{FAILURES, Failure};
use crate::{CheckOwner, IndexCheck, KernelSet};

/// Known state of a launch.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Pending,
    Passed,
    Failed(Arc<Failure>),
}

impl From<Option<&Arc<Failure>>> for Known {
    fn from(failure: Option<&Arc<Failure>>) -> Self {
        failure.map_or(Self::Passed, |failure| Self::Failed(Arc::clone(failure)))
    }
}

impl CheckedLaunch {
    /// Returns the known outcome. Does not query the device.
    #[must_use]
    pub fn outcome(&self) -> CheckOutcome {
        match self.resolve(&At::is_known_done) {
            Known::Pending => CheckOutcome::Pending,
            Known::Passed => CheckOutcome::Passed,
            Known::Failed(failure) => CheckOutcome::Failed(failure.check.clone()),
        }
    }

    /// Returns the failure, if it is known. If this thread is the failure's owner, the failure
    /// counts as reported, and `synchronize` does not report it again.
    #[must_use]
    pub fn take_failure(&self) -> Option<IndexCheck> {
        match self.resolve(&At::is_known_done) {
            Known::Failed(failure) => Some(read(&failure)),
            _ => None,
        }
    }

    /// Returns the failure as [`CheckedLaunch::take_failure`] does, and also looks at reports that
    /// have arrived for launches not known to be complete. For a reader that waited silently,
    /// without recording the order.
    #[must_use]
    pub fn take_report(&self) -> Option<IndexCheck> {
        let mut open = vec![self.clone()];
        let mut seen = HashSet::new();
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

    /// Returns the known state, or `None` if the inputs of a union have to be examined.
    fn known(&self, over: &dyn Fn(&At) -> bool) -> Option<Known> {
        let done = || self.is_done(over);
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
                let has = |(kernel, _): &&(usize, _)| self.has(*kernel);
                if replay.outcome.get().is_none() && !done() {
                    // It will fail with the earlier replays that it overlaps: their reports stay.
                    let known = replay.checks.known_failures(replay.period);
                    return Some(known.iter().find(has).map_or(Known::Pending, |(_, failure)| {
                        Known::Failed(Arc::clone(failure))
                    }));
                }
                let failures = || replay.checks.failures(&replay.owner);
                let outcome = replay.outcome.get_or_init(failures);
                outcome.iter().find(has).map(|(_, failure)| failure).into()
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

    /// Returns the known state. `over` names operations that are complete.
    pub(super) fn resolve(&self, over: &dyn Fn(&At) -> bool) -> Known {
        if let Some(known) = self.known(over) {
            return known;
        }
        let epoch = FAILURES.load(Ordering::Relaxed);
        // The path from `self`: each union, its inputs not yet examined, and whether an input was
        // pending.
        let mut way: Vec<(Self, Inputs, bool)> = vec![(self.clone(), self.inputs(), false)];
        let mut result = Known::Passed;
        // Unions found pending so far. Several unions may have one of them as an input.
        let mut open: HashSet<usize> = HashSet::new();
        while let Some((launch, inputs, pending)) = way.last_mut() {
            let Some(next) = inputs.pop() else {
                result = match std::mem::replace(pending, false) {
                    true => Known::Pending,
                    false => Known::Passed,
                };
                if let Kind::Union(union) = &launch.node.kind {
                    // Another thread may have set the outcome and dropped the inputs.
                    match (&result, union.outcome.get()) {
                        (_, Some(outcome)) => result = outcome.as_ref().into(),
                        (Known::Pending, None) => {
                            union.seen.store(epoch, Ordering::Relaxed);
                            open.insert(launch.key());
                        }
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
                None if open.contains(&next.key()) => {
                    result = Known::Pending;
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

/// Passes the result of an input to the union above. A failure applies to all unions above.
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

/// Returns the failed check and marks it as reported if this thread is its owner.
fn read(failure: &Failure) -> IndexCheck {
    if !failure.was_told() && failure.owner == CheckOwner::current() {
        failure.tell();
    }
    failure.check.clone()
}
