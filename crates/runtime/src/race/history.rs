//! Accesses to one storage with which later accesses may race.

use std::ops::Range;
use std::panic::Location;

use warpline_stream::{Before, OpNumber, Stream};

use super::span::Span;
use super::{Race, RacingUse};
use crate::overlap;

/// Minimum number of accesses at which accesses by completed operations are dropped.
const PRUNE_AT: usize = 16;

/// An access by device work.
#[derive(Clone, Debug)]
pub(crate) struct RecordedAccess {
    pub(crate) span: Span,
    /// Range of addresses at which the accessed memory still lies. The rest may have been moved to
    /// other addresses.
    pub(crate) within: Range<i64>,
    pub(crate) stream: Stream,
    pub(crate) op: OpNumber,
    pub(crate) user: RacingUse,
    /// Location of the allocation and its stream, if the memory has been freed since.
    pub(crate) freed: Option<(&'static Location<'static>, Option<Stream>)>,
}

impl RecordedAccess {
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
            // The shared byte may lie outside `within`.
            Some(true) if !(dense || inside(&self.span.hull()) || inside(&theirs)) => None,
            met => met,
        }
    }
}

/// The accesses to a storage, and to earlier memory at its addresses.
///
/// A later access replaces an earlier access if it is ordered after the earlier access, touches all
/// bytes of the earlier access, and conflicts with every access that the earlier access conflicts
/// with. Every race with the earlier access is then also a race with the later access.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) accesses: Vec<RecordedAccess>,
    prune_at: usize,
    /// The stream that the memory was allocated for, if known.
    pub(crate) alloc_stream: Option<Stream>,
}

impl History {
    pub(crate) fn new(alloc_stream: Option<Stream>, accesses: Vec<RecordedAccess>) -> Self {
        Self { accesses, prune_at: PRUNE_AT, alloc_stream }
    }

    /// Calls `found` for each recorded access that conflicts with a new access and is not ordered
    /// before it according to `comes_before`. The flag is `true` if both certainly share a byte.
    pub(crate) fn conflicts(
        &self,
        (span, writes): (&Span, bool),
        comes_before: impl Fn(&Stream, OpNumber) -> bool,
        mut found: impl FnMut(&RecordedAccess, bool),
    ) {
        for access in &self.accesses {
            if !(writes || access.user.access.writes()) || comes_before(&access.stream, access.op) {
                continue;
            }
            match access.meets(span) {
                Some(false) => {}
                certain => found(access, certain.is_some()),
            }
        }
    }

    /// Adds an access that is ordered after the operations in `before`, and removes the accesses
    /// that it replaces.
    pub(crate) fn add(&mut self, new: RecordedAccess, before: &Before) {
        let writes = new.user.access.writes();
        self.accesses.retain(|old| {
            let replaces = (writes || !old.user.access.writes()) && new.span.contains(&old.span);
            !(replaces && before.covers(&old.stream, old.op))
        });
        if self.accesses.len() >= self.prune_at.max(PRUNE_AT) {
            prune(&mut self.accesses);
            self.prune_at = 2 * self.accesses.len();
        }
        self.accesses.push(new);
    }
}

/// Removes the accesses by completed operations, because later operations cannot race with these
/// accesses.
pub(crate) fn prune(accesses: &mut Vec<RecordedAccess>) {
    accesses.retain(|access| !access.stream.is_known_done(access.op));
}

impl Race {
    pub(super) fn new(
        first: &RecordedAccess,
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
