//! The last uses of a storage by device work.

use smallvec::SmallVec;
use warpline_stream::{OpNumber, Stream};

use super::StorageMarks;
use super::replay_uses::Attachment;
use crate::Site;
use crate::race::History;

/// Operation number for uses of the previous storage in this memory. A wait for this number covers
/// all work enqueued on the stream before the wait.
pub(crate) const PRIOR_STORAGE: OpNumber = OpNumber::MAX;

/// A use of a storage by an operation on a stream.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) stream: Stream,
    pub(crate) op: OpNumber,
    pub(crate) site: Site,
    writes: bool,
}

impl Use {
    /// Returns whether this is a read by a lost device. A failed wait for such a use can be
    /// ignored, because a lost device no longer reads. After a failed wait for a write, the bytes
    /// are unknown.
    pub(crate) fn is_read_on_lost_device(&self) -> bool {
        !self.writes && self.stream.raw().driver().lost(self.stream.device_index()).is_some()
    }
}

/// Returns the uses on streams other than `stream`, latest first, because a wait for a stream's
/// latest use covers its earlier uses.
pub(crate) fn uses_elsewhere<'a>(
    stream: &Stream,
    uses: impl Iterator<Item = &'a Use>,
) -> SmallVec<[&'a Use; 4]> {
    let mut others: SmallVec<[&Use; 4]> = SmallVec::new();
    uses.filter(|used| used.stream != *stream).for_each(|used| others.push(used));
    others.sort_unstable_by_key(|used| std::cmp::Reverse(used.op));
    others
}

/// The last write of a storage, and each stream's last read since that write.
///
/// A thread that enqueues work holds the lock from the time when it examines the uses until it has
/// recorded its own use. Otherwise another thread could enqueue conflicting work in between.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    write: Option<Use>,
    reads: SmallVec<[Use; 1]>,
    /// Streams that the allocator has been told of.
    allocator_streams: SmallVec<[Stream; 2]>,
    /// Marks of bytes whose values depend on work that may fail.
    pub(crate) marks: StorageMarks,
    /// The graph whose last replay is the storage's last use. Replays after the one that attached the
    /// storage are not recorded here.
    pub(super) attached: Option<Attachment>,
    /// History for the race detector.
    pub(crate) history: Option<Box<History>>,
}

impl Uses {
    /// Returns the uses of new memory: the work on the previous storage in this memory. `stream` is the stream of the
    /// allocation. The allocator orders the reuse of memory only with that stream, so other streams must wait for the
    /// work that it has received so far.
    #[inline]
    #[track_caller]
    pub(crate) fn after_prior_storage(stream: &Stream) -> Self {
        let site = Site::here("empty");
        let write = Use { stream: stream.clone(), op: PRIOR_STORAGE, site, writes: true };
        Self { write: Some(write), ..Self::default() }
    }

    /// Returns the uses that an access must wait for: the last write, and for a write also the
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
    pub(crate) fn record(&mut self, stream: &Stream, op: OpNumber, write: bool, site: Site) {
        let slot = if write {
            self.reads.clear();
            self.write.as_mut()
        } else {
            self.reads.iter_mut().find(|r| r.stream == *stream)
        };
        if let Some(slot) = slot {
            // Usually the stream is the same, and cloning its handle would cost an atomic
            // increment.
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

    /// Adds the uses in `gone`, of freed memory, as reads, so that the next write waits for all of
    /// them.
    pub(crate) fn absorb(&mut self, gone: &Uses) {
        for used in gone.conflicting(true) {
            match self.reads.iter_mut().find(|read| read.stream == used.stream) {
                Some(read) if read.op >= used.op => {}
                Some(read) => (read.op, read.site) = (used.op, used.site),
                None => self.reads.push(Use { writes: false, ..used.clone() }),
            }
        }
    }

    /// Replaces uses by the twins of a finished body by uses by the body's node: operation `node` of
    /// `outer`. `twin` is one of the body's twins.
    pub(crate) fn end_body(&mut self, twin: &Stream, (outer, node): (&Stream, OpNumber)) {
        for used in self.write.iter_mut().chain(&mut self.reads) {
            if used.stream.shares_capture(twin) {
                (used.stream, used.op) = (outer.clone(), node);
            }
        }
        // The node is the last operation of `outer`, so its reads include the earlier ones.
        let mut kept: SmallVec<[Use; 1]> = SmallVec::new();
        for read in self.reads.drain(..) {
            match kept.iter_mut().find(|kept| kept.stream == read.stream) {
                Some(kept) if kept.op >= read.op => {}
                Some(kept) => *kept = read,
                None => kept.push(read),
            }
        }
        self.reads = kept;
        for access in self.history.iter_mut().flat_map(|history| &mut history.accesses) {
            if access.stream.shares_capture(twin) {
                (access.stream, access.op) = (outer.clone(), node);
            }
        }
    }

    /// Adds a stream that the allocator is told of. Returns whether the stream is new.
    pub(crate) fn add_allocator_stream(&mut self, stream: &Stream) -> bool {
        let new = !self.allocator_streams.contains(stream);
        if new {
            self.allocator_streams.push(stream.clone());
        }
        new
    }

    /// Returns the streams that the allocator has been told of.
    pub(crate) fn allocator_streams(&self) -> &[Stream] {
        &self.allocator_streams
    }
}
