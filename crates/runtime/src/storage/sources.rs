//! Dependencies of a storage's bytes: launches that check indices, collectives, and other
//! processes.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};

use crate::Error;
use crate::completion::Pending;
use crate::semaphore::Awaited;

/// Maximum number of launches that an operation's inputs depend on; more are replaced by their
/// union. The operation's results may depend on one more, the operation itself.
pub(crate) const LAUNCHES: usize = 2;
/// Maximum length of a list that is searched for duplicates. Longer lists last for one operation.
const SEARCHED: usize = 16;

/// A dependency of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A launch, a replay, or a union of launches.
    Launch(CheckedLaunch),
    /// A collective, or the replay of collectives.
    Collective(Pending),
    /// Work of another process.
    Peer(Awaited),
    /// In a capture: kernels that check indices, by number.
    Captured(KernelSet),
    /// In a capture: a collective.
    CapturedCollective(Pending),
    /// In a capture: the dependencies, at the time of the replay, of the bytes that it reads.
    Found,
    /// In a capture: the dependencies that the same bytes had before.
    Before,
}

impl Source {
    /// Returns the failure, if it is known. If this thread is the owner of a failed launch, the
    /// failure counts as reported.
    pub(super) fn failed(&self) -> Option<Error> {
        match self {
            Self::Launch(launch) => launch.take_failure().map(Error::from),
            Self::Collective(pending) => pending.failed(),
            Self::Peer(awaited) => awaited.failed(),
            _ => None,
        }
    }

    /// Returns the launch, replay or union, if this is one.
    pub(super) fn launch(&self) -> Option<&CheckedLaunch> {
        match self {
            Self::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// Returns whether `self` implies `other`: a collective implies earlier ones of its
    /// communicator, and a number of another process implies earlier ones of its semaphore.
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

    /// Adds another source if one source can represent both. Returns whether it did.
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

/// A list of dependencies without duplicates. Clones share the list, because most results of a
/// program depend on the same sources.
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

    /// Replaces the launches by their union if there are more than `most`, for operation `op` of
    /// the stream, which depends on all of them.
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

    /// Removes dependencies that are known to have succeeded.
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
