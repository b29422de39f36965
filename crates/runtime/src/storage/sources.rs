//! What bytes of a storage depend on: launches that check indices, collectives, other processes.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};

use crate::Error;
use crate::completion::Pending;
use crate::semaphore::Awaited;

/// If work reads bytes that depend on more launches than these, it depends on their union. What it
/// writes may depend on one more: itself.
pub(crate) const LAUNCHES: usize = 2;
/// Lists up to this length are searched for duplicates. Longer ones last for one operation.
const SEARCHED: usize = 16;

/// What bytes depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A launch, a replay, or a union of launches.
    Launch(CheckedLaunch),
    /// A collective, or a replay of some.
    Collective(Pending),
    /// Work of another process.
    Peer(Awaited),
    /// In a capture: kernels, by their numbers among those that check.
    Captured(KernelSet),
    /// In a capture: a collective.
    CapturedCollective(Pending),
    /// In a capture: what the graph finds when it is replayed in what it reads.
    Found,
    /// In a capture: what the same bytes depended on before.
    Before,
}

impl Source {
    /// Its failure, if it is known. That of a launch counts as reported if this thread is its owner.
    pub(super) fn failed(&self) -> Option<Error> {
        match self {
            Self::Launch(launch) => launch.take_failure().map(Error::from),
            Self::Collective(pending) => pending.failed(),
            Self::Peer(awaited) => awaited.failed(),
            _ => None,
        }
    }

    /// The launch, replay or union, if it is one.
    pub(super) fn launch(&self) -> Option<&CheckedLaunch> {
        match self {
            Self::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// Whether `self` says all that `other` does: of collectives the last of a communicator, of another
    /// process' work the last of a semaphore.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Collective(a) | Self::CapturedCollective(a),
                Self::Collective(b) | Self::CapturedCollective(b),
            ) => a.covers(b),
            (Self::Launch(a), Self::Launch(b)) => a.covers(b),
            (Self::Peer(a), Self::Peer(b)) => a.covers(b),
            (Self::Captured(a), Self::Captured(b)) => a.covers(b),
            _ => self == other,
        }
    }

    /// Adds another source, if one can say all that the two do. Returns whether it can.
    fn absorb(&mut self, new: &Self) -> bool {
        match (&mut *self, new) {
            (Self::Launch(own), Self::Launch(new)) => return own.absorb(new),
            (Self::Captured(own), Self::Captured(new)) => {
                own.join(new);
                return true;
            }
            _ => {}
        }
        let covered = new.covers(self);
        if covered {
            self.clone_from(new);
        }
        covered
    }
}

/// Each once. Clones share them, as most of what a program computes depends on the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Option<Arc<SmallVec<[Source; 4]>>>);

impl Sources {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn push(&mut self, source: Source) {
        Arc::make_mut(self.0.get_or_insert_default()).push(source);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    pub(crate) fn join(&mut self, more: &Self) {
        if self.is_same(more) {
            return;
        }
        if self.is_empty() {
            self.clone_from(more);
        } else if self[..] != more[..] {
            more.iter().for_each(|source| self.join_one(source));
        }
    }

    pub(super) fn join_one(&mut self, new: &Source) {
        if matches!(new, Source::Launch(_)) && self.len() > SEARCHED {
            // The union of them all finds duplicates by sorting.
            return self.push(new.clone());
        }
        if self.iter().any(|old| old.covers(new)) {
            return;
        }
        let sources = Arc::make_mut(self.0.get_or_insert_default());
        if !sources.iter_mut().any(|old| old.absorb(new)) {
            sources.push(new.clone());
        }
    }

    /// Replaces the launches by their union if there are more than `most`. Operation `op` of the stream
    /// depends on all.
    pub(crate) fn unite(&mut self, most: usize, stream: &Stream, op: OpNumber) {
        let is_launch = |source: &&Source| matches!(source, Source::Launch(_));
        if self.iter().filter(is_launch).count() <= most {
            return;
        }
        let (mut launches, mut others) = (Vec::new(), Self::new());
        for source in self.iter() {
            match source {
                Source::Launch(launch) => launches.push(launch.clone()),
                source => others.push(source.clone()),
            }
        }
        others.push(Source::Launch(stream.mailbox().union(stream, op, launches)));
        *self = others;
    }

    /// Leaves out what is known to be as it should.
    pub(super) fn forget_passed(&mut self) {
        self.retain(|source| match source {
            Source::Launch(launch) => launch.outcome() != CheckOutcome::Passed,
            Source::Collective(pending) => !pending.is_done(),
            Source::Peer(awaited) => !awaited.is_there(),
            _ => true,
        });
    }

    fn retain(&mut self, keep: impl Fn(&Source) -> bool) {
        if self.iter().all(&keep) {
            return;
        }
        let kept: SmallVec<[Source; 4]> = self.iter().filter(|s| keep(s)).cloned().collect();
        self.0 = (!kept.is_empty()).then(|| Arc::new(kept));
    }
}

impl Deref for Sources {
    type Target = [Source];

    fn deref(&self) -> &[Source] {
        self.0.as_deref().map_or(&[], |sources| sources)
    }
}

impl Extend<Source> for Sources {
    fn extend<I: IntoIterator<Item = Source>>(&mut self, sources: I) {
        sources.into_iter().for_each(|source| self.push(source));
    }
}

impl FromIterator<Source> for Sources {
    fn from_iter<I: IntoIterator<Item = Source>>(sources: I) -> Self {
        let mut all = Self::new();
        all.extend(sources);
        all
    }
}
