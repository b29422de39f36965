//! The backend's allocations and their free parts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Use of an allocation of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// Cut into blocks.
    Shared,
    /// Serves one block at a time, so that no small block can keep a large allocation alive.
    Whole,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentPart {
    segment: u32,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

pub(super) struct Segments<M> {
    slots: Vec<Option<HostSegment<M>>>,
    vacant: Vec<u32>,
    /// Free memory of each [`SegmentKind`]: size, segment, offset.
    free: [BTreeSet<(usize, u32, usize)>; 2],
    /// Segments that may be released, by the clock value at which they became idle.
    idle: BTreeMap<u64, u32>,
    idle_bytes: usize,
    clock: u64,
}

struct HostSegment<M> {
    memory: Arc<M>,
    bytes: usize,
    kind: SegmentKind,
    /// Whether the segment stays allocated when it is idle.
    kept: bool,
    used: usize,
    /// Whether the backend refused to take the segment back and has not taken it since.
    refused: bool,
    /// Sizes of free memory by offset. Adjacent free memory is merged.
    free: BTreeMap<usize, usize>,
    idle_since: u64,
}

/// A segment that was removed, to be released to the backend.
pub(super) struct ReleasedHostSegment<M> {
    pub(super) memory: M,
    pub(super) bytes: usize,
    pub(super) kind: SegmentKind,
    /// Whether the backend has refused the segment before.
    pub(super) refused: bool,
}

impl<M> Segments<M> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            free: [BTreeSet::new(), BTreeSet::new()],
            idle: BTreeMap::new(),
            idle_bytes: 0,
            clock: 0,
        }
    }

    /// Returns the size of the idle segments, in bytes.
    pub(super) fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Adds an allocation and takes a span: the first `size` bytes of a shared segment, or a whole
    /// segment.
    pub(super) fn add(
        &mut self,
        memory: M,
        bytes: usize,
        kind: SegmentKind,
        kept: bool,
        size: usize,
    ) -> (SegmentPart, Arc<M>) {
        let segment = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        let memory = Arc::new(memory);
        let mut new = HostSegment {
            memory: Arc::clone(&memory),
            bytes,
            kind,
            kept,
            used: 0,
            refused: false,
            free: BTreeMap::new(),
            idle_since: 0,
        };
        let span = match kind {
            SegmentKind::Shared => SegmentPart { segment, offset: 0, bytes: size },
            SegmentKind::Whole => SegmentPart { segment, offset: 0, bytes },
        };
        new.used = span.bytes;
        if span.bytes < bytes {
            new.free.insert(span.bytes, bytes - span.bytes);
            self.free[kind as usize].insert((bytes - span.bytes, segment, span.bytes));
        }
        self.slots[segment as usize] = Some(new);
        (span, memory)
    }

    /// Returns the size of the best fitting free span.
    pub(super) fn best_fit(&self, kind: SegmentKind, size: usize) -> Option<usize> {
        Some(self.free[kind as usize].range((size, 0, 0)..).next()?.0)
    }

    /// Takes a span from the best fitting free memory: the low end in a shared segment, or a whole
    /// segment.
    pub(super) fn take(&mut self, kind: SegmentKind, size: usize) -> Option<(SegmentPart, Arc<M>)> {
        let &(bytes, segment, offset) = self.free[kind as usize].range((size, 0, 0)..).next()?;
        let at = self.slots.get_mut(segment as usize)?.as_mut()?;
        self.free[kind as usize].remove(&(bytes, segment, offset));
        at.free.remove(&offset);
        if at.used == 0 && self.idle.remove(&at.idle_since).is_some() {
            self.idle_bytes -= at.bytes;
        }
        let span = match kind {
            SegmentKind::Shared => SegmentPart { segment, offset, bytes: size },
            SegmentKind::Whole => SegmentPart { segment, offset, bytes },
        };
        if span.bytes < bytes {
            let rest = (offset + span.bytes, bytes - span.bytes);
            at.free.insert(rest.0, rest.1);
            self.free[kind as usize].insert((rest.1, segment, rest.0));
        }
        at.used += span.bytes;
        Some((span, Arc::clone(&at.memory)))
    }

    /// Frees a span and merges it with its free neighbours.
    pub(super) fn put(&mut self, span: SegmentPart) {
        let SegmentPart { segment, mut offset, mut bytes } = span;
        let Some(at) = self.slots.get_mut(segment as usize).and_then(Option::as_mut) else {
            return;
        };
        let free = &mut self.free[at.kind as usize];
        at.used -= bytes;
        if let Some(next) = at.free.remove(&(offset + bytes)) {
            free.remove(&(next, segment, offset + bytes));
            bytes += next;
        }
        let before = at.free.range(..offset).next_back().map(|(&o, &b)| (o, b));
        if let Some((start, before)) = before.filter(|(start, before)| start + before == offset) {
            free.remove(&(before, segment, start));
            (offset, bytes) = (start, bytes + before);
        }
        at.free.insert(offset, bytes);
        free.insert((bytes, segment, offset));
        if at.used == 0 && !at.kept {
            self.clock += 1;
            at.idle_since = self.clock;
            self.idle.insert(self.clock, segment);
            self.idle_bytes += at.bytes;
        }
    }

    /// Adds a segment whose release was refused. The segment counts as the last that became idle.
    pub(super) fn restore(&mut self, released: ReleasedHostSegment<M>) {
        let ReleasedHostSegment { memory, bytes, kind, .. } = released;
        let (span, _) = self.add(memory, bytes, kind, false, bytes);
        if let Some(Some(segment)) = self.slots.get_mut(span.segment as usize) {
            segment.refused = true;
        }
        self.put(span);
    }

    /// Removes the segment that has been idle for longest.
    pub(super) fn take_oldest_idle(&mut self) -> Option<ReleasedHostSegment<Arc<M>>> {
        let (_, segment) = self.idle.pop_first()?;
        let gone = self.slots.get_mut(segment as usize)?.take()?;
        self.vacant.push(segment);
        self.idle_bytes -= gone.bytes;
        for (&offset, &bytes) in &gone.free {
            self.free[gone.kind as usize].remove(&(bytes, segment, offset));
        }
        let HostSegment { memory, bytes, kind, refused, .. } = gone;
        Some(ReleasedHostSegment { memory, bytes, kind, refused })
    }
}
