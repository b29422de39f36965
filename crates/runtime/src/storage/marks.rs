//! Which bytes of a storage depend on checks of indices, collectives, or work of other processes, that
//! failed or may still fail.

use std::ops::{Deref, Range};
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};

use crate::completion::Pending;
use crate::semaphore::{Awaited, PeerSemaphore};
use crate::{Error, Result};

/// More marks than these of one storage become one, of all bytes between them.
const MOST: usize = 16;
/// More launches than these that the same bytes depend on become one, their union.
const LAUNCHES: usize = 2;
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
    /// What it is known to have failed with.
    fn failed(&self) -> Option<Error> {
        match self {
            Self::Launch(launch) => match launch.outcome() {
                CheckOutcome::Failed(failed) => Some(failed.into()),
                CheckOutcome::Pending | CheckOutcome::Passed => None,
            },
            Self::Collective(pending) => pending.failed(),
            Self::Peer(awaited) => awaited.failed(),
            _ => None,
        }
    }

    /// Whether `self` says all that `other` does: of collectives the last of a communicator, of another
    /// process' work the last of a semaphore.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Collective(a) | Self::CapturedCollective(a),
                Self::Collective(b) | Self::CapturedCollective(b),
            ) => a.covers(b),
            (Self::Peer(a), Self::Peer(b)) => a.covers(b),
            (Self::Captured(a), Self::Captured(b)) => a.covers(b),
            _ => self == other,
        }
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

    fn is_same(&self, other: &Self) -> bool {
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

    fn join_one(&mut self, new: &Source) {
        match new {
            Source::Captured(kernels) => {
                let sources = Arc::make_mut(self.0.get_or_insert_default());
                let mut all = sources.iter_mut();
                match all.find_map(|s| if let Source::Captured(own) = s { Some(own) } else { None })
                {
                    Some(own) => own.join(kernels),
                    None => sources.push(new.clone()),
                }
                return;
            }
            // The union of them all finds duplicates by sorting.
            Source::Launch(_) if self.len() > SEARCHED => return self.push(new.clone()),
            _ => {}
        }
        match self.iter().position(|old| old.covers(new) || new.covers(old)) {
            None => self.push(new.clone()),
            Some(at) if !self[at].covers(new) => {
                Arc::make_mut(self.0.get_or_insert_default())[at] = new.clone();
            }
            Some(_) => {}
        }
    }

    /// Replaces the launches by their union if there are many. Operation `op` of the stream depends
    /// on all.
    pub(crate) fn unite(&mut self, stream: &Stream, op: OpNumber) {
        let is_launch = |source: &&Source| matches!(source, Source::Launch(_));
        if self.iter().filter(is_launch).count() <= LAUNCHES {
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

/// Entered by whoever enters a use, under the same lock. There are none where no kernel that checks
/// was launched lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    marks: SmallVec<[Mark; 1]>,
    /// What other processes are known to be still doing to the storage, or were when they ended: until
    /// it is done, nobody can say of any byte that nothing is written to it any more.
    awaited: Sources,
    /// In a capture: bytes that are read as they are before the replay.
    found: Option<Range<usize>>,
}

impl Marks {
    /// What a storage has in a capture that was there before it.
    pub(crate) fn before(bytes: usize) -> Self {
        let mut marks = Self::default();
        marks.add(&(0..bytes), &Sources::from_iter([Source::Before]));
        marks
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.awaited.is_empty()
    }

    /// See [`crate::Storage::mark_awaited`].
    pub(crate) fn await_peer(&mut self, awaited: Awaited) {
        self.forget_passed();
        self.awaited.join_one(&Source::Peer(awaited));
    }

    /// Adds what other processes may still do to the storage, whichever of its bytes are read.
    pub(crate) fn read_awaited(&mut self, sources: &mut Sources) {
        self.forget_passed();
        sources.join(&self.awaited);
    }

    /// The numbers of other processes that any byte waits for.
    pub(crate) fn awaited(&self) -> Vec<Awaited> {
        let sources = self.marks.iter().flat_map(|mark| mark.sources.iter());
        let awaited = sources.chain(self.awaited.iter()).filter_map(|source| match source {
            Source::Peer(awaited) => Some(awaited.clone()),
            _ => None,
        });
        awaited.collect()
    }

    /// See [`crate::Storage::depends_on_others`].
    pub(crate) fn has_others(&mut self, peers: &[&PeerSemaphore]) -> bool {
        self.forget_passed();
        let marked = self.marks.iter().flat_map(|mark| mark.sources.iter());
        marked.chain(self.awaited.iter()).any(|source| match source {
            Source::Peer(awaited) => !peers.iter().any(|peer| awaited.is_of(peer)),
            _ => true,
        })
    }

    /// Adds what these bytes depend on to `sources`.
    ///
    /// # Errors
    /// [`crate::Error::IndexCheck`], [`crate::Error::Collective`], [`crate::Error::PeerGone`] where that
    /// is known to have failed.
    #[track_caller]
    pub(crate) fn read(&mut self, bytes: &Range<usize>, sources: &mut Sources) -> Result<()> {
        // Those of another storage that was read just now.
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

    /// Why these bytes are not what they should be, all work that writes them being over.
    pub(crate) fn failed(&mut self, bytes: &Range<usize>) -> Option<Error> {
        self.forget_passed();
        let read = self.marks.iter().filter(|mark| !meet(&mark.bytes, bytes).is_empty());
        let sources = read.flat_map(|mark| mark.sources.iter()).chain(self.awaited.iter());
        sources.into_iter().find_map(|source| match source {
            Source::Launch(launch) => launch.take_report().map(Error::from),
            Source::Collective(pending) => pending.failed(),
            Source::Peer(awaited) => awaited.failed(),
            _ => None,
        })
    }

    fn forget_passed(&mut self) {
        self.awaited
            .retain(|source| !matches!(source, Source::Peer(awaited) if awaited.is_there()));
        self.marks.retain_mut(|mark| {
            mark.sources.retain(|source| match source {
                Source::Launch(launch) => launch.outcome() != CheckOutcome::Passed,
                Source::Collective(pending) => !pending.is_done(),
                Source::Peer(awaited) => !awaited.is_there(),
                _ => true,
            });
            !mark.sources.is_empty()
        });
    }

    /// Enters that all these bytes have new values.
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

    /// Enters that these bytes, or some of them, depend on `sources` too.
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

    /// [`Sources::unite`] of each mark.
    pub(crate) fn unite(&mut self, stream: &Stream, op: OpNumber) {
        self.marks.iter_mut().for_each(|mark| mark.sources.unite(stream, op));
    }

    /// Of a capture's notes of a storage: which of its bytes replays read as they find them.
    pub(crate) fn found(&self) -> Option<&Range<usize>> {
        self.found.as_ref()
    }

    /// By a capture's notes of a storage, its marks after a replay: `old` are those before it, `found`
    /// the dependencies of all that it reads, `launches` the replay itself, and as a collective of each
    /// communicator.
    pub(crate) fn replayed(&self, old: &Self, found: &Sources, launches: &[Source]) -> Self {
        let mut new = Self { awaited: old.awaited.clone(), ..Self::default() };
        for Mark { bytes, sources } in &self.marks {
            for source in sources.iter() {
                match source {
                    Source::Before => {
                        let kept = old.marks.iter();
                        kept.for_each(|mark| new.add(&meet(&mark.bytes, bytes), &mark.sources));
                    }
                    Source::Found => new.add(bytes, found),
                    Source::Captured(kernels) => {
                        let replay = launches.iter().find_map(|source| match source {
                            Source::Launch(replay) => Some(replay.of_kernels(kernels)),
                            _ => None,
                        });
                        new.add(bytes, &replay.map(Source::Launch).into_iter().collect());
                    }
                    Source::CapturedCollective(captured) => {
                        let numbered = launches.iter().find_map(|launch| match launch {
                            Source::Collective(replay) => captured.in_replay(replay),
                            _ => None,
                        });
                        new.add(bytes, &numbered.map(Source::Collective).into_iter().collect());
                    }
                    Source::Launch(_) | Source::Collective(_) | Source::Peer(_) => {}
                }
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
    use warpline_stream::{CapturedChecks, Devices};

    use super::*;
    use crate::completion::Completion;
    use crate::launch::TOKEN;

    /// A collective that is not known to be done, of a communicator of this number.
    fn pending(number: usize) -> Source {
        static ALL: std::sync::OnceLock<[Completion; 8]> = std::sync::OnceLock::new();
        let completion = &ALL.get_or_init(Default::default)[number];
        let here = std::panic::Location::caller();
        Source::Collective(Pending::new((completion, 1), "test", here))
    }

    fn source(kernel: usize) -> Sources {
        [pending(kernel)].into_iter().collect()
    }

    fn read(marks: &mut Marks, bytes: Range<usize>) -> Vec<Source> {
        let mut sources = Sources::new();
        marks.read(&bytes, &mut sources).unwrap();
        sources.to_vec()
    }

    #[test]
    fn what_is_overwritten_piece_by_piece_has_no_mark() {
        let mut marks = Marks::default();
        marks.add(&(10..40), &source(0));
        marks.overwrite(&(20..30)); // whose place between the others is not kept
        for (overwritten, left) in [(0..15, 15..40), (35..90, 15..35), (30..35, 15..30)] {
            marks.overwrite(&overwritten);
            let hit = |at| !read(&mut marks.clone(), at..at + 1).is_empty();
            assert!((0..100).all(|at| hit(at) == left.contains(&at)), "{overwritten:?}");
        }
        marks.overwrite(&(0..30));
        assert!(marks.is_empty());
    }

    #[test]
    fn many_marks_become_one_that_has_them_all() {
        let mut marks = Marks::default();
        for i in 0..100 {
            marks.add(&(10 * i..10 * i + 5), &source(i % 5));
        }
        assert!(marks.marks.len() <= MOST + 1);
        for i in 0..100 {
            assert!(read(&mut marks, 10 * i..10 * i + 1).contains(&pending(i % 5)));
        }
        assert!(read(&mut marks, 2000..3000).is_empty());
    }

    #[test]
    fn of_a_communicators_collectives_the_last_counts() {
        let completions = [Completion::default(), Completion::default()];
        let here = std::panic::Location::caller();
        let of = |at: usize, number| {
            Source::Collective(Pending::new((&completions[at], number), "test", here))
        };
        let mut marks = Marks::default();
        for sources in [[of(0, 1), of(1, 1)], [of(0, 3), of(0, 2)]] {
            marks.add(&(0..8), &sources.into_iter().collect());
        }
        assert_eq!(read(&mut marks, 0..8), [of(0, 3), of(1, 1)]);
        completions[1].done_up_to(1);
        assert_eq!(read(&mut marks, 0..8), [of(0, 3)]);
        completions[0].done_up_to(2);
        completions[0].fail(std::sync::Arc::new(std::fmt::Error));
        assert!(matches!(marks.failed(&(7..9)), Some(Error::Collective { .. })));
        assert!(marks.failed(&(8..9)).is_none());
        assert!(marks.read(&(0..1), &mut Sources::new()).is_err());
    }

    #[test]
    fn captured_collectives_are_the_replays_of_their_communicator() {
        let completions = [Completion::default(), Completion::default()];
        let of = |op, at: usize, number| {
            let here = std::panic::Location::caller();
            Pending::new((&completions[at], number), op, here)
        };
        let mut note = Marks::default();
        for (bytes, at, number) in [(0..8, 0, 1), (0..8, 0, 2), (8..16, 1, 1)] {
            note.add(
                &bytes,
                &[Source::CapturedCollective(of("captured", at, number))].into_iter().collect(),
            );
        }
        assert_eq!(read(&mut note, 0..8).len(), 1);
        let replays = [0, 1].map(|at| Source::Collective(of("replay", at, 10 + at as u64)));
        let mut new = note.replayed(&Marks::default(), &Sources::new(), &replays);
        assert_eq!(read(&mut new, 0..8), [Source::Collective(of("captured", 0, 10))]);
        assert_eq!(read(&mut new, 8..16), [Source::Collective(of("captured", 1, 11))]);
        completions[0].fail(std::sync::Arc::new(std::fmt::Error));
        let text = new.failed(&(0..8)).unwrap().to_string();
        assert!(text.contains("what captured at "), "{text}");
        assert!(new.failed(&(8..16)).is_none());
    }

    #[test]
    fn a_replay_keeps_what_it_does_not_overwrite() {
        let (mut old, mut note) = (Marks::default(), Marks::before(100));
        old.add(&(0..60), &source(7));
        note.overwrite(&(0..50));
        let kernel = |number| Source::Captured(KernelSet::of(number));
        note.add(&(0..20), &[kernel(1), Source::Found].into_iter().collect());
        assert_eq!(read(&mut note, 50..60), [Source::Found]);
        assert_eq!(note.found(), Some(&(50..60)));
        let (stream, checks) = captured(2);
        let replay = checks.begin_replay(TOKEN, &stream, 1).unwrap();
        let mut new = note.replayed(&old, &source(3), &[Source::Launch(replay.clone())]);
        let second = Source::Launch(replay.of_kernels(&KernelSet::of(1)));
        assert_eq!(read(&mut new, 0..20), [second, pending(3)]);
        assert_eq!(read(&mut new, 20..50), []);
        assert_eq!(read(&mut new, 50..60), source(7)[..]);
        assert_eq!(read(&mut new, 60..100), []);
    }

    /// A graph's kernels that check, and a stream of a device on which nothing completes by itself.
    fn captured(kernels: usize) -> (Stream, Arc<CapturedChecks>) {
        let driver = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
        let stream = Devices::new(driver).unwrap().get(0).unwrap().exclusive_stream(0).unwrap();
        let checks = Arc::new(CapturedChecks::default());
        for _ in 0..kernels {
            checks.add(&stream, "test", std::panic::Location::caller()).unwrap();
        }
        (stream, checks)
    }

    /// Replays write a part of the storage, and read all of it.
    #[test]
    fn marks_do_not_grow_with_the_replays_that_are_outstanding() {
        let (stream, checks) = captured(100);
        let mut note = Marks::before(100);
        for kernel in 0..100 {
            let sources = [Source::Captured(KernelSet::of(kernel)), Source::Found];
            note.add(&(0..40), &sources.into_iter().collect());
        }
        let mut marks = Marks::default();
        for op in 1..=1000 {
            let mut carried = Sources::new();
            marks.read(&(0..100), &mut carried).unwrap();
            carried.unite(&stream, op);
            let replay = checks.begin_replay(TOKEN, &stream, op).unwrap();
            marks = note.replayed(&marks, &carried, &[Source::Launch(replay)]);
            marks.unite(&stream, op);
            let sources = marks.marks.iter().map(|mark| mark.sources.len());
            assert!(sources.sum::<usize>() <= 2 * LAUNCHES, "{op}");
        }
    }
}
