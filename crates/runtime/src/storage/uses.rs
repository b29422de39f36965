//! The last uses of a storage by device work.

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};

use super::Marks;
use super::replay_uses::Attached;
use crate::Site;
use crate::race::History;

/// Operation number that stands for use of the memory before it was allocated: all work that its
/// stream has received by the time of the wait.
pub(crate) const FORMER: OpNumber = OpNumber::MAX;

/// One use: the stream, the operation's number, and its op and location.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) op: OpNumber,
    pub(crate) site: Site,
    writes: bool,
}

impl Use {
    /// Returns whether a failed wait for this use can be ignored: a lost device reads no more. The
    /// result of a write stays unknown.
    pub(crate) fn is_moot(&self) -> bool {
        !self.writes && self.stream.raw().driver().lost(self.stream.device_index()).is_some()
    }
}

/// Returns the uses on other streams than `stream`, latest first. A wait for a stream's latest use
/// covers its earlier ones.
pub(crate) fn uses_elsewhere<'a>(
    stream: &Stream,
    uses: impl Iterator<Item = &'a Use>,
) -> SmallVec<[&'a Use; 4]> {
    let mut others: SmallVec<[&Use; 4]> = SmallVec::new();
    uses.filter(|used| used.stream != *stream).for_each(|used| others.push(used));
    others.sort_unstable_by_key(|used| std::cmp::Reverse(used.op));
    others
}

/// The last write, and per stream the last read since.
///
/// A thread that enqueues work holds the lock from before it examines the uses until it has
/// recorded its own, so that no other thread misses that use.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    write: Option<Use>,
    reads: SmallVec<[Use; 1]>,
    /// Streams that the allocator was told of.
    told: SmallVec<[Stream; 2]>,
    /// Marks of bytes that depend on checks that may have failed.
    pub(crate) marks: Marks,
    /// The graph whose last replay is a later use that is not recorded here.
    pub(super) attached: Option<Attached>,
    /// History for the race detector.
    pub(crate) history: Option<Box<History>>,
}

impl Uses {
    /// Returns the uses that an access must come after: the last write, and for a write also the
    /// reads.
    pub(crate) fn conflicting(&self, write: bool) -> impl Iterator<Item = &Use> {
        let reads = if write { self.reads.as_slice() } else { &[] };
        self.write.iter().chain(reads)
    }

    /// Returns [`Uses::conflicting`] as owned values, for waiting without the lock.
    pub(crate) fn conflicts(&self, write: bool) -> SmallVec<[Use; 2]> {
        self.conflicting(write).cloned().collect()
    }

    /// Records an access.
    pub(crate) fn enter(&mut self, stream: &Stream, op: OpNumber, write: bool, site: Site) {
        let slot = if write {
            self.reads.clear();
            self.write.as_mut()
        } else {
            self.reads.iter_mut().find(|r| r.stream == *stream)
        };
        if let Some(slot) = slot {
            // The common case: the same stream again. Its handle need not be counted anew.
            if slot.stream != *stream {
                slot.stream = stream.clone();
            }
            slot.op = op;
            slot.site = site;
            return;
        }
        let entry = Use { stream: stream.clone(), op, site, writes: write };
        if write { self.write = Some(entry) } else { self.reads.push(entry) }
    }

    /// Adds the uses of freed memory as reads, so that a write comes after all of them.
    pub(crate) fn absorb(&mut self, gone: &Uses) {
        for used in gone.conflicting(true) {
            match self.reads.iter_mut().find(|read| read.stream == used.stream) {
                Some(read) if read.op >= used.op => {}
                Some(read) => (read.op, read.site) = (used.op, used.site),
                None => self.reads.push(Use { writes: false, ..used.clone() }),
            }
        }
    }

    /// Records that the allocator is told of the stream. Returns whether this is the first time.
    pub(crate) fn first_on(&mut self, stream: &Stream) -> bool {
        let new = !self.told.contains(stream);
        if new {
            self.told.push(stream.clone());
        }
        new
    }

    /// Returns the streams that the allocator was told of.
    pub(crate) fn told(&self) -> &[Stream] {
        &self.told
    }
}
