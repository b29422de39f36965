//! Dependencies of a storage's bytes: launches that check indices, collectives, and other
//! processes.

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};

use crate::Error;
use crate::completion::PendingCollective;
use crate::semaphore::AwaitedSignal;

/// Maximum number of launches in the dependencies of an operation's inputs. More launches are
/// replaced by their union. The results may also depend on the operation itself, which is one more
/// launch.
pub(crate) const MAX_LAUNCHES: usize = 2;
/// Maximum length of a list that is searched for duplicates. Longer lists exist only until their
/// operation merges them.
const MAX_SEARCHED: usize = 16;

/// Work on whose success the value of some bytes depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dependency {
    /// A launch, a replay, or a union of launches.
    Launch(CheckedLaunch),
    /// A collective, or the replay of a graph's collectives on one communicator.
    Collective(PendingCollective),
    /// Work of another process.
    Peer(AwaitedSignal),
    /// In a capture: kernels that check indices, by number.
    CapturedKernels(KernelSet),
    /// In a capture: a collective.
    CapturedCollective(PendingCollective),
    /// In a capture: the dependencies of the replay's inputs, which are known at the replay.
    ReplayInputs,
    /// In a capture: the dependencies that the same bytes had before the replay.
    BeforeReplay,
}

impl Dependency {
    /// Returns the failure, if it is known. A failed launch counts as reported if this thread is the
    /// launch's check owner.
    pub(super) fn failed(&self) -> Option<Error> {
        match self {
            Self::Launch(launch) => launch.take_failure().map(Error::from),
            Self::Collective(pending) => pending.failed(),
            Self::Peer(awaited) => awaited.failed(),
            _ => None,
        }
    }

    /// Returns whether `self` implies `other`. A collective implies the earlier collectives of its
    /// communicator. A number of another process implies the earlier numbers of its semaphore.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Collective(a) | Self::CapturedCollective(a),
                Self::Collective(b) | Self::CapturedCollective(b),
            ) => a.covers(b),
            (Self::Launch(a), Self::Launch(b)) => a.covers(b),
            (Self::Peer(a), Self::Peer(b)) => a.covers(b),
            (Self::CapturedKernels(a), Self::CapturedKernels(b)) => a.covers(b),
            _ => self == other,
        }
    }

    /// Merges `new` into this dependency if one dependency can represent both. Returns whether it
    /// can.
    fn absorb(&mut self, new: &Self) -> bool {
        match (&mut *self, new) {
            (Self::Launch(own), Self::Launch(new)) => return own.absorb(new),
            (Self::CapturedKernels(own), Self::CapturedKernels(new)) => {
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
/// program have the same dependencies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dependencies(Option<Arc<SmallVec<[Dependency; 4]>>>);

impl Dependencies {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn push(&mut self, dependency: Dependency) {
        Arc::make_mut(self.0.get_or_insert_default()).push(dependency);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    pub(crate) fn merge(&mut self, more: &Self) {
        if self.is_same(more) {
            return;
        }
        if self.is_empty() {
            self.clone_from(more);
        } else if self[..] != more[..] {
            more.iter().for_each(|dependency| self.insert(dependency));
        }
    }

    pub(super) fn insert(&mut self, new: &Dependency) {
        if matches!(new, Dependency::Launch(_)) && self.len() > MAX_SEARCHED {
            // `merge_launches` replaces a long list by a union, which removes duplicates by
            // sorting.
            return self.push(new.clone());
        }
        if self.iter().any(|old| old.covers(new)) {
            return;
        }
        let dependencies = Arc::make_mut(self.0.get_or_insert_default());
        if !dependencies.iter_mut().any(|old| old.absorb(new)) {
            dependencies.push(new.clone());
        }
    }

    /// Replaces the launches by their union if there are more than `most`. Operation `op` of the
    /// stream must depend on all of them.
    pub(crate) fn merge_launches(&mut self, most: usize, stream: &Stream, op: OpNumber) {
        let is_launch = |dependency: &&Dependency| matches!(dependency, Dependency::Launch(_));
        if self.iter().filter(is_launch).count() <= most {
            return;
        }
        let (mut launches, mut others) = (Vec::new(), Self::new());
        for dependency in self.iter() {
            match dependency {
                Dependency::Launch(launch) => launches.push(launch.clone()),
                dependency => others.push(dependency.clone()),
            }
        }
        others.push(Dependency::Launch(stream.mailbox().union(stream, op, launches)));
        *self = others;
    }

    /// Removes dependencies that are known to have succeeded.
    pub(super) fn remove_passed(&mut self) {
        self.retain(|dependency| match dependency {
            Dependency::Launch(launch) => launch.outcome() != CheckOutcome::Passed,
            Dependency::Collective(pending) => !pending.is_done(),
            Dependency::Peer(awaited) => !awaited.is_there(),
            _ => true,
        });
    }

    fn retain(&mut self, keep: impl Fn(&Dependency) -> bool) {
        if self.iter().all(&keep) {
            return;
        }
        let kept: SmallVec<[Dependency; 4]> = self.iter().filter(|s| keep(s)).cloned().collect();
        self.0 = (!kept.is_empty()).then(|| Arc::new(kept));
    }
}

impl Deref for Dependencies {
    type Target = [Dependency];

    fn deref(&self) -> &[Dependency] {
        self.0.as_deref().map_or(&[], |dependencies| dependencies)
    }
}

impl Extend<Dependency> for Dependencies {
    fn extend<I: IntoIterator<Item = Dependency>>(&mut self, dependencies: I) {
        dependencies.into_iter().for_each(|dependency| self.push(dependency));
    }
}

impl FromIterator<Dependency> for Dependencies {
    fn from_iter<I: IntoIterator<Item = Dependency>>(dependencies: I) -> Self {
        let mut all = Self::new();
        all.extend(dependencies);
        all
    }
}
