//! Which device work used a storage last.

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};

use super::Marks;
use super::replay_uses::Attached;
use crate::Site;
use crate::race::History;

/// Stands for the number of what was there before the memory was allocated: all that its stream was
/// given by the time that somebody waits.
pub(crate) const FORMER: OpNumber = OpNumber::MAX;

/// One use: the stream, the number of the operation there, and what it was.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) op: OpNumber,
    pub(crate) site: Site,
    writes: bool,
}

impl Use {
    /// Whether nobody need wait for it although waiting fails: a lost device reads no more. What
    /// it was to write stays unknown.
    pub(crate) fn is_moot(&self) -> bool {
        !self.writes && self.stream.raw().driver().lost(self.stream.device_index()).is_some()
    }
}

/// The uses on streams other than this one, latest first: a wait covers what comes before it on the
/// same stream, so that one is enough for each.
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
/// Whoever enqueues work holds the lock on this from before it looks at the uses until its own is
/// entered, so that no other thread can miss it.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    write: Option<Use>,
    reads: SmallVec<[Use; 1]>,
    /// Streams that the allocator has been told of.
    told: SmallVec<[Stream; 2]>,
    /// Which bytes depend on checks that may have failed.
    pub(crate) marks: Marks,
    /// The graph whose last replay is a later use, which is not entered here.
    pub(super) attached: Option<Attached>,
    /// What the race detector knows.
    pub(crate) history: Option<Box<History>>,
}

impl Uses {
    /// Uses that an access must come after: the last write, and for a write the reads too.
    pub(crate) fn conflicting(&self, write: bool) -> impl Iterator<Item = &Use> {
        let reads = if write { self.reads.as_slice() } else { &[] };
        self.write.iter().chain(reads)
    }

    /// [`Uses::conflicting`], owned, for waiting without the lock.
    pub(crate) fn conflicts(&self, write: bool) -> SmallVec<[Use; 2]> {
        self.conflicting(write).cloned().collect()
    }

    /// Enters an access.
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

    /// Adds the uses of memory that is gone, as reads: a write comes after them all.
    pub(crate) fn absorb(&mut self, gone: &Uses) {
        for used in gone.conflicting(true) {
            match self.reads.iter_mut().find(|read| read.stream == used.stream) {
                Some(read) if read.op >= used.op => {}
                Some(read) => (read.op, read.site) = (used.op, used.site),
                None => self.reads.push(Use { writes: false, ..used.clone() }),
            }
        }
    }

    /// Whether this is the first the allocator hears of the stream.
    pub(crate) fn first_on(&mut self, stream: &Stream) -> bool {
        let new = !self.told.contains(stream);
        if new {
            self.told.push(stream.clone());
        }
        new
    }

    /// Streams that the allocator has been told of.
    pub(crate) fn told(&self) -> &[Stream] {
        &self.told
    }
}
