//! The marks of a storage.
//!
//! A *mark* is a range of bytes together with the work whose failure would make these bytes wrong:
//! launches that check indices, collectives, and work of other processes. A mark is removed when
//! all of this work has succeeded, or when the bytes are overwritten. `launch/result_marks.rs` describes
//! how marks spread from the inputs of work to its results.

use std::ops::Range;

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};

use super::dependencies::{Dependencies, Dependency, MAX_LAUNCHES};
use crate::semaphore::{AwaitedSignal, PeerSemaphore};
use crate::{Error, Result};

/// Maximum number of marks per storage. More marks are merged into one mark that covers all their
/// bytes.
const MAX_MARKS: usize = 16;

fn hull(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// A range of bytes and the dependencies of their values.
#[derive(Clone, Debug)]
struct Mark {
    bytes: Range<usize>,
    dependencies: Dependencies,
}

/// The marks of a storage. Changed together with the storage's uses, under the same lock. Empty
/// while the storage's bytes depend on no work that may fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct StorageMarks {
    marks: SmallVec<[Mark; 1]>,
    /// Work of other processes that has not completed, or had not completed when its process ended.
    /// Until the work completes, it may write any byte of the storage.
    awaited: Dependencies,
    /// In a capture: the range of bytes that a replay reads before it writes them.
    replay_inputs: Option<Range<usize>>,
}

impl StorageMarks {
    /// Creates the marks that a capture gives a storage that was not made in the capture: all bytes
    /// depend on their values before the replay.
    pub(crate) fn before_replay(bytes: usize) -> Self {
        let mut marks = Self::default();
        marks.add(&(0..bytes), &Dependencies::from_iter([Dependency::BeforeReplay]));
        marks
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.awaited.is_empty()
    }

    /// Implements [`crate::Storage::mark_awaited`].
    pub(crate) fn add_awaited(&mut self, awaited: AwaitedSignal) {
        self.remove_passed();
        self.awaited.insert(&Dependency::Peer(awaited));
    }

    /// Adds the signals of other processes that are still awaited to `dependencies`, for a read of
    /// any byte of the storage.
    pub(crate) fn read_awaited(&mut self, dependencies: &mut Dependencies) {
        self.remove_passed();
        dependencies.merge(&self.awaited);
    }

    /// Returns the signals of other processes that any byte depends on.
    pub(crate) fn awaited(&self) -> Vec<AwaitedSignal> {
        let dependencies = self.marks.iter().flat_map(|mark| mark.dependencies.iter());
        let awaited =
            dependencies.chain(self.awaited.iter()).filter_map(|dependency| match dependency {
                Dependency::Peer(awaited) => Some(awaited.clone()),
                _ => None,
            });
        awaited.collect()
    }

    /// Implements [`crate::Storage::depends_on_others`].
    pub(crate) fn depends_on_others(&mut self, peers: &[&PeerSemaphore]) -> bool {
        self.remove_passed();
        let marked = self.marks.iter().flat_map(|mark| mark.dependencies.iter());
        marked.chain(self.awaited.iter()).any(|dependency| match dependency {
            Dependency::Peer(awaited) => !peers.iter().any(|peer| awaited.is_of(peer)),
            _ => true,
        })
    }

    /// Adds the dependencies of these bytes to `dependencies`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::IndexCheck`], [`crate::ErrorKind::Collective`] or
    /// [`crate::ErrorKind::PeerGone`] if one of the dependencies is known to have failed.
    #[track_caller]
    pub(crate) fn read(
        &mut self,
        bytes: &Range<usize>,
        dependencies: &mut Dependencies,
    ) -> Result<()> {
        // In the common case, the previous input of the same op had the same list.
        if self.awaited.is_empty()
            && self.marks.iter().all(|mark| mark.dependencies.is_same(dependencies))
        {
            return Ok(());
        }
        self.remove_passed();
        self.awaited.iter().find_map(Dependency::failed).map_or(Ok(()), Err)?;
        dependencies.merge(&self.awaited);
        for mark in &self.marks {
            let read = intersection(&mark.bytes, bytes);
            if read.is_empty() {
                continue;
            }
            mark.dependencies.iter().find_map(Dependency::failed).map_or(Ok(()), Err)?;
            if !mark.dependencies.contains(&Dependency::BeforeReplay) {
                dependencies.merge(&mark.dependencies);
                continue;
            }
            let replay_inputs = self.replay_inputs.get_or_insert_with(|| read.clone());
            *replay_inputs = hull(replay_inputs, &read);
            for dependency in mark.dependencies.iter() {
                dependencies.insert(if *dependency == Dependency::BeforeReplay {
                    &Dependency::ReplayInputs
                } else {
                    dependency
                });
            }
        }
        Ok(())
    }

    /// Returns the failure of a dependency of these bytes. All work that writes the bytes must be
    /// complete.
    pub(crate) fn failed(&mut self, bytes: &Range<usize>) -> Option<Error> {
        self.remove_passed();
        self.dependencies(bytes).chain(self.awaited.iter()).find_map(
            |dependency| match dependency {
                Dependency::Launch(launch) => launch.take_report().map(Error::from),
                Dependency::Collective(pending) => pending.failed(),
                Dependency::Peer(awaited) => awaited.failed(),
                _ => None,
            },
        )
    }

    fn remove_passed(&mut self) {
        self.awaited.remove_passed();
        self.marks.retain_mut(|mark| {
            mark.dependencies.remove_passed();
            !mark.dependencies.is_empty()
        });
    }

    /// Records that all these bytes have new values.
    pub(crate) fn overwrite(&mut self, bytes: &Range<usize>) {
        self.marks.retain_mut(|Mark { bytes: marked, .. }| {
            if bytes.start <= marked.start {
                marked.start = marked.start.max(bytes.end);
            } else if bytes.end >= marked.end {
                marked.end = marked.end.min(bytes.start);
            }
            marked.start < marked.end
        });
    }

    /// Records that some of these bytes also depend on `dependencies`.
    pub(crate) fn add(&mut self, bytes: &Range<usize>, dependencies: &Dependencies) {
        if bytes.is_empty() || dependencies.is_empty() {
            return;
        }
        if let Some(mark) = self.marks.iter_mut().find(|mark| mark.bytes == *bytes) {
            return mark.dependencies.merge(dependencies);
        }
        self.marks.push(Mark { bytes: bytes.clone(), dependencies: dependencies.clone() });
        if self.marks.len() > MAX_MARKS {
            let mut marks = std::mem::take(&mut self.marks).into_iter();
            let Some(mut all) = marks.next() else { return };
            for mark in marks {
                all.bytes = hull(&all.bytes, &mark.bytes);
                all.dependencies.merge(&mark.dependencies);
            }
            self.marks.push(all);
        }
    }

    /// Adds the marks that the storage had before work that may not run.
    pub(crate) fn add_all(&mut self, former: &Self) {
        former.marks.iter().for_each(|mark| self.add(&mark.bytes, &mark.dependencies));
    }

    /// Applies [`Dependencies::merge_launches`] to each mark.
    pub(crate) fn merge_launches(&mut self, stream: &Stream, op: OpNumber) {
        self.marks
            .iter_mut()
            .for_each(|mark| mark.dependencies.merge_launches(MAX_LAUNCHES + 1, stream, op));
    }

    /// Returns the dependencies of these bytes.
    pub(super) fn dependencies(&self, bytes: &Range<usize>) -> impl Iterator<Item = &Dependency> {
        let read = self.marks.iter().filter(|mark| !intersection(&mark.bytes, bytes).is_empty());
        read.flat_map(|mark| mark.dependencies.iter())
    }

    /// Returns the range of bytes that a replay reads before it writes them. `None` for marks
    /// outside a capture.
    pub(crate) fn replay_inputs(&self) -> Option<&Range<usize>> {
        self.replay_inputs.as_ref()
    }

    /// Returns a storage's marks after a replay, given its marks in the capture (`self`) and before
    /// the replay (`old`).
    pub(crate) fn after_replay(&self, old: &Self, replay: &mut ReplayDependencies<'_>) -> Self {
        let mut new = Self { awaited: old.awaited.clone(), ..Self::default() };
        for Mark { bytes, dependencies } in &self.marks {
            if dependencies.contains(&Dependency::BeforeReplay) {
                let former = old.marks.iter();
                former.for_each(|mark| {
                    new.add(&intersection(&mark.bytes, bytes), &mark.dependencies)
                });
            }
            new.add(bytes, replay.dependencies(dependencies));
        }
        new
    }
}

/// Translates dependencies of captured work into dependencies of one replay.
pub(crate) struct ReplayDependencies<'a> {
    /// Dependencies of all bytes that the replay reads before it writes them.
    replay_inputs: &'a Dependencies,
    /// The replay, and its collectives on each communicator.
    own: &'a [Dependency],
    /// The list translated last, and its translation. Many storages have the same list.
    latest: (Dependencies, Dependencies),
}

impl<'a> ReplayDependencies<'a> {
    pub(crate) fn new(replay_inputs: &'a Dependencies, own: &'a [Dependency]) -> Self {
        Self { replay_inputs, own, latest: Default::default() }
    }

    /// Translates a list of captured dependencies.
    fn dependencies(&mut self, captured: &Dependencies) -> &Dependencies {
        if !self.latest.0.is_same(captured) && self.latest.0[..] != captured[..] {
            let mut replayed = Dependencies::new();
            for dependency in captured.iter() {
                match self.replay_of(dependency) {
                    Some(dependency) => replayed.insert(&dependency),
                    None if *dependency == Dependency::ReplayInputs => {
                        replayed.merge(self.replay_inputs)
                    }
                    None => {}
                }
            }
            self.latest = (captured.clone(), replayed);
        }
        &self.latest.1
    }

    /// Translates a captured kernel or collective.
    fn replay_of(&self, captured: &Dependency) -> Option<Dependency> {
        self.own.iter().find_map(|own| match (own, captured) {
            (Dependency::Launch(replay), Dependency::CapturedKernels(kernels)) => {
                Some(Dependency::Launch(replay.of_kernels(kernels)))
            }
            (Dependency::Collective(replay), Dependency::CapturedCollective(captured)) => {
                captured.in_replay(replay).map(Dependency::Collective)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
