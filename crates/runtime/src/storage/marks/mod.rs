//! Marks on the bytes of a storage that depend on index checks, collectives, or work of other
//! processes that failed or may still fail.

use std::ops::Range;

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};

use super::sources::{LAUNCHES, Source, Sources};
use crate::semaphore::{Awaited, PeerSemaphore};
use crate::{Error, Result};

/// Maximum number of marks per storage. Beyond that, they merge into one mark that covers their
/// range.
const MOST: usize = 16;
fn hull(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

#[derive(Clone, Debug)]
struct Mark {
    bytes: Range<usize>,
    sources: Sources,
}

/// Marks of a storage. Changed together with its uses, under the same lock. Empty unless a kernel
/// that checks indices was launched lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    marks: SmallVec<[Mark; 1]>,
    /// Pending work of other processes on the storage, or work that was pending when they ended.
    /// Until it is complete, every byte may still be written.
    awaited: Sources,
    /// Only in a capture: bytes that a replay reads before it writes them.
    found: Option<Range<usize>>,
}

impl Marks {
    /// Creates the marks, in a capture, of a storage that existed before the capture.
    pub(crate) fn before(bytes: usize) -> Self {
        let mut marks = Self::default();
        marks.add(&(0..bytes), &Sources::from_iter([Source::Before]));
        marks
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.awaited.is_empty()
    }

    /// Implements [`crate::Storage::mark_awaited`].
    pub(crate) fn await_peer(&mut self, awaited: Awaited) {
        self.forget_passed();
        self.awaited.join_one(&Source::Peer(awaited));
    }

    /// Adds pending work of other processes on the storage to `sources`, for a read of any of its
    /// bytes.
    pub(crate) fn read_awaited(&mut self, sources: &mut Sources) {
        self.forget_passed();
        sources.join(&self.awaited);
    }

    /// Returns the numbers of other processes that any byte depends on.
    pub(crate) fn awaited(&self) -> Vec<Awaited> {
        let sources = self.marks.iter().flat_map(|mark| mark.sources.iter());
        let awaited = sources.chain(self.awaited.iter()).filter_map(|source| match source {
            Source::Peer(awaited) => Some(awaited.clone()),
            _ => None,
        });
        awaited.collect()
    }

    /// Implements [`crate::Storage::depends_on_others`].
    pub(crate) fn has_others(&mut self, peers: &[&PeerSemaphore]) -> bool {
        self.forget_passed();
        let marked = self.marks.iter().flat_map(|mark| mark.sources.iter());
        marked.chain(self.awaited.iter()).any(|source| match source {
            Source::Peer(awaited) => !peers.iter().any(|peer| awaited.is_of(peer)),
            _ => true,
        })
    }

    /// Adds the dependencies of these bytes to `sources`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::IndexCheck`], [`crate::ErrorKind::Collective`] or
    /// [`crate::ErrorKind::PeerGone`] if one of the dependencies is known to have failed.
    #[track_caller]
    pub(crate) fn read(&mut self, bytes: &Range<usize>, sources: &mut Sources) -> Result<()> {
        // The sources of another storage that was read just now.
        if self.awaited.is_empty() && self.marks.iter().all(|mark| mark.sources.is_same(sources)) {
            return Ok(());
        }
        self.forget_passed();
        self.awaited.iter().find_map(Source::failed).map_or(Ok(()), Err)?;
        sources.join(&self.awaited);
        for mark in &self.marks {
            let read = meet(&mark.bytes, bytes);
            if read.is_empty() {
                continue;
            }
            mark.sources.iter().find_map(Source::failed).map_or(Ok(()), Err)?;
            if !mark.sources.contains(&Source::Before) {
                sources.join(&mark.sources);
                continue;
            }
            let found = self.found.get_or_insert_with(|| read.clone());
            *found = hull(found, &read);
            for source in mark.sources.iter() {
                sources.join_one(if *source == Source::Before { &Source::Found } else { source });
            }
        }
        Ok(())
    }

    /// Returns the failure of a dependency of these bytes, after all work that writes them is
    /// complete.
    pub(crate) fn failed(&mut self, bytes: &Range<usize>) -> Option<Error> {
        self.forget_passed();
        self.sources(bytes).chain(self.awaited.iter()).find_map(|source| match source {
            Source::Launch(launch) => launch.take_report().map(Error::from),
            Source::Collective(pending) => pending.failed(),
            Source::Peer(awaited) => awaited.failed(),
            _ => None,
        })
    }

    fn forget_passed(&mut self) {
        self.awaited.forget_passed();
        self.marks.retain_mut(|mark| {
            mark.sources.forget_passed();
            !mark.sources.is_empty()
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

    /// Records that some of these bytes also depend on `sources`.
    pub(crate) fn add(&mut self, bytes: &Range<usize>, sources: &Sources) {
        if bytes.is_empty() || sources.is_empty() {
            return;
        }
        if let Some(mark) = self.marks.iter_mut().find(|mark| mark.bytes == *bytes) {
            return mark.sources.join(sources);
        }
        self.marks.push(Mark { bytes: bytes.clone(), sources: sources.clone() });
        if self.marks.len() > MOST {
            let mut marks = std::mem::take(&mut self.marks).into_iter();
            let Some(mut all) = marks.next() else { return };
            for mark in marks {
                all.bytes = hull(&all.bytes, &mark.bytes);
                all.sources.join(&mark.sources);
            }
            self.marks.push(all);
        }
    }

    /// Applies [`Sources::unite`] to each mark.
    pub(crate) fn unite(&mut self, stream: &Stream, op: OpNumber) {
        self.marks.iter_mut().for_each(|mark| mark.sources.unite(LAUNCHES + 1, stream, op));
    }

    /// Returns the dependencies of these bytes.
    pub(super) fn sources(&self, bytes: &Range<usize>) -> impl Iterator<Item = &Source> {
        let read = self.marks.iter().filter(|mark| !meet(&mark.bytes, bytes).is_empty());
        read.flat_map(|mark| mark.sources.iter())
    }

    /// Returns the bytes that a replay reads before it writes them. Only for marks of a capture.
    pub(crate) fn found(&self) -> Option<&Range<usize>> {
        self.found.as_ref()
    }

    /// Returns a storage's marks after a replay: `self` are its marks in the capture, `old` its
    /// marks before the replay.
    pub(crate) fn replayed(&self, old: &Self, replay: &mut Replaying<'_>) -> Self {
        let mut new = Self { awaited: old.awaited.clone(), ..Self::default() };
        for Mark { bytes, sources } in &self.marks {
            if sources.contains(&Source::Before) {
                let kept = old.marks.iter();
                kept.for_each(|mark| new.add(&meet(&mark.bytes, bytes), &mark.sources));
            }
            new.add(bytes, replay.sources(sources));
        }
        new
    }
}

/// A replay that marks its results.
pub(crate) struct Replaying<'a> {
    /// Dependencies of all bytes that the replay reads.
    found: &'a Sources,
    /// The replay itself, and its collectives on each communicator.
    own: &'a [Source],
    /// The latest sources of the capture with their equivalents in this replay. Many storages have
    /// the same sources.
    latest: (Sources, Sources),
}

impl<'a> Replaying<'a> {
    pub(crate) fn new(found: &'a Sources, own: &'a [Source]) -> Self {
        Self { found, own, latest: Default::default() }
    }

    /// Returns the equivalents, in this replay, of sources of the capture.
    fn sources(&mut self, captured: &Sources) -> &Sources {
        if !self.latest.0.is_same(captured) && self.latest.0[..] != captured[..] {
            let mut live = Sources::new();
            for source in captured.iter() {
                match self.live(source) {
                    Some(source) => live.join_one(&source),
                    None if *source == Source::Found => live.join(self.found),
                    None => {}
                }
            }
            self.latest = (captured.clone(), live);
        }
        &self.latest.1
    }

    /// Returns the replay of a captured kernel or collective.
    fn live(&self, captured: &Source) -> Option<Source> {
        self.own.iter().find_map(|own| match (own, captured) {
            (Source::Launch(replay), Source::Captured(kernels)) => {
                Some(Source::Launch(replay.of_kernels(kernels)))
            }
            (Source::Collective(replay), Source::CapturedCollective(captured)) => {
                captured.in_replay(replay).map(Source::Collective)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
