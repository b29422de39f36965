//! Accesses to the bytes of one storage that later accesses may race with.

use std::ops::Range;
use std::panic::Location;

use warpline_stream::{Before, OpNumber, Stream};

use super::span::Span;
use super::{Race, RacingUse};
use crate::overlap;

/// Minimum number of entries at which entries of complete work are dropped.
const PRUNE_AT: usize = 16;

/// One access by device work.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) span: Span,
    /// Addresses at which the accessed memory still is.
    pub(crate) within: Range<i64>,
    pub(crate) stream: Stream,
    pub(crate) op: OpNumber,
    pub(crate) user: RacingUse,
    /// Location of the allocation and its stream, if the memory has been freed since.
    pub(crate) freed: Option<(&'static Location<'static>, Option<Stream>)>,
}

impl Entry {
    /// Returns the range from the first to the last address, limited to `within`.
    pub(crate) fn hull(&self) -> Range<i64> {
        let hull = self.span.hull();
        hull.start.max(self.within.start)..hull.end.min(self.within.end)
    }

    /// Returns whether this access and another share a byte. `None` if that is not certain.
    fn meets(&self, other: &Span) -> Option<bool> {
        let (hull, theirs) = (self.hull(), other.hull());
        if hull.start >= theirs.end || theirs.start >= hull.end {
            return Some(false);
        }
        let inside =
            |hull: &Range<i64>| self.within.start <= hull.start && hull.end <= self.within.end;
        let dense = self.span.dims.is_empty() && other.dims.is_empty();
        match overlap::share_a_byte(&self.span, other) {
            // The byte may lie where it does not count.
            Some(true) if !(dense || inside(&self.span.hull()) || inside(&theirs)) => None,
            met => met,
        }
    }
}

/// The accesses to a storage, and to earlier memory at its addresses.
///
/// An access is dropped if a later access is ordered after it, touches all its bytes and conflicts
/// with the same accesses: every race with the dropped access is also a race with the later one.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) entries: Vec<Entry>,
    prune_at: usize,
    /// The stream that the memory was allocated for, if known.
    pub(crate) home: Option<Stream>,
}

impl History {
    pub(crate) fn new(home: Option<Stream>, entries: Vec<Entry>) -> Self {
        Self { entries, prune_at: PRUNE_AT, home }
    }

    /// Calls `found` for each access that conflicts with a new one and is not ordered before it
    /// according to `comes_before`. Passes whether it is certain that both share a byte.
    pub(crate) fn conflicts(
        &self,
        (span, writes): (&Span, bool),
        comes_before: impl Fn(&Stream, OpNumber) -> bool,
        mut found: impl FnMut(&Entry, bool),
    ) {
        for entry in &self.entries {
            if !(writes || entry.user.access.writes()) || comes_before(&entry.stream, entry.op) {
                continue;
            }
            match entry.meets(span) {
                Some(false) => {}
                certain => found(entry, certain.is_some()),
            }
        }
    }

    /// Adds an access that is ordered after the operations in `before`.
    pub(crate) fn enter(&mut self, new: Entry, before: &Before) {
        let writes = new.user.access.writes();
        self.entries.retain(|old| {
            let stands_in = (writes || !old.user.access.writes()) && new.span.contains(&old.span);
            !(stands_in && before.covers(&old.stream, old.op))
        });
        if self.entries.len() >= self.prune_at.max(PRUNE_AT) {
            prune(&mut self.entries);
            self.prune_at = 2 * self.entries.len();
        }
        self.entries.push(new);
    }
}

/// Removes the accesses of complete work, which come before all later work.
pub(crate) fn prune(entries: &mut Vec<Entry>) {
    entries.retain(|entry| !entry.stream.is_known_done(entry.op));
}

impl Race {
    pub(super) fn new(
        first: &Entry,
        second: RacingUse,
        span: &Span,
        certain: bool,
        storage: &crate::Storage,
    ) -> Self {
        let (a, b, base) = (first.hull(), span.hull(), storage.address() as i64);
        let offset = |address: i64| address.saturating_sub(base).max(0) as u64;
        let bytes = offset(a.start.max(b.start))..offset(a.end.min(b.end));
        Self {
            first: first.user.clone(),
            second,
            bytes,
            certain,
            allocated: storage.allocated(),
            storage_bytes: storage.bytes(),
            freed: first.freed.clone(),
        }
    }
}
