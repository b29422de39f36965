//! Comparison of new accesses with the history.

use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::Access;
use warpline_stream::{Before, OpNumber, Stream};

use super::history::RecordedAccess;
use super::{History, Race, RacingUse, Span, Touch, printed};
use crate::storage::Uses;
use crate::{Result, Runtime, Site, Storage};

/// Accesses of work that is about to be enqueued. They have been checked for races, and are
/// recorded once the work has been enqueued.
#[derive(Debug)]
pub(crate) struct CheckedAccesses {
    before: Before,
    /// For each argument that touches memory: the index of its storage, the bytes, and the use.
    touches: SmallVec<[(usize, Span, RacingUse); 4]>,
}

impl CheckedAccesses {
    /// Compares an op's accesses with the histories of its storages. `uses` and `storages` have the
    /// same order.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Race`] if a certain race is found under [`crate::RaceReport::Error`].
    pub(crate) fn new(
        stream: &Stream,
        site: Site,
        touches: &[Touch<'_>],
        storages: &[(&Storage, bool)],
        uses: &[impl Deref<Target = Uses>],
    ) -> Result<Self> {
        let before = stream.before();
        let mut checked = SmallVec::new();
        let mut races: SmallVec<[Race; 1]> = SmallVec::new();
        for (argument, touch) in touches.iter().enumerate() {
            let at = storages.iter().position(|(s, _)| s.same_as(touch.storage));
            let (Some(at), Some(span)) = (at, touch.span()) else { continue };
            let user = RacingUse::new(site, argument, touch.access, Some(stream));
            if let Some(history) = uses.get(at).and_then(|u| u.history.as_deref()) {
                let comes_before = |other: &Stream, op| before.covers(other, op);
                let new = (&span, touch.access.writes());
                history.conflicts(new, comes_before, |access, certain| {
                    races.push(Race::new(access, user.clone(), &span, certain, touch.storage));
                });
            }
            checked.push((at, span, user));
        }
        if let Some((storage, _)) = storages.first().filter(|_| !races.is_empty()) {
            storage.runtime().detector().note(races)?;
        }
        Ok(Self { before, touches: checked })
    }

    /// Records the accesses of work that was enqueued as operation `op`.
    pub(crate) fn record(
        self,
        stream: &Stream,
        op: OpNumber,
        uses: &mut [impl DerefMut<Target = Uses>],
    ) {
        for (at, span, user) in self.touches {
            let Some(uses) = uses.get_mut(at) else { continue };
            let history = uses.history.get_or_insert_default();
            let within = span.hull();
            let access =
                RecordedAccess { span, within, stream: stream.clone(), op, user, freed: None };
            history.add(access, &self.before);
        }
    }
}

impl RacingUse {
    fn new(site: Site, argument: usize, access: Access, stream: Option<&Stream>) -> Self {
        let Site { op, location } = site;
        let printed_at = printed::current();
        let op = if printed_at.is_some() { "print" } else { op };
        Self { op, location, printed_at, argument, access, stream: stream.cloned() }
    }
}

/// Compares an access by host code with device work that uses the same page-locked memory.
///
/// # Errors
/// The same as [`CheckedAccesses::new`].
pub(crate) fn check_host(touch: &Touch<'_>, argument: usize, site: Site) -> Result<()> {
    let runtime = touch.storage.runtime();
    if !(touch.storage.is_pinned() && runtime.detects_races()) {
        return Ok(());
    }
    let Some(span) = touch.span() else { return Ok(()) };
    let user = RacingUse::new(site, argument, touch.access, None);
    let mut races: SmallVec<[Race; 1]> = SmallVec::new();
    if let Some(history) = touch.storage.uses().history.as_deref() {
        let comes_before = |stream: &Stream, op| stream.is_known_done(op);
        history.conflicts((&span, touch.access.writes()), comes_before, |access, certain| {
            races.push(Race::new(access, user.clone(), &span, certain, touch.storage));
        });
    }
    runtime.detector().note(races)
}

impl Storage {
    /// Starts the history of new device memory with the accesses to freed memory at the same
    /// addresses.
    pub(crate) fn take_freed_history(&self, device: usize, stream: &Stream) {
        if !self.runtime().detects_races() || self.bytes() == 0 {
            return;
        }
        let start = self.address() as i64;
        let range = start..start + self.bytes() as i64;
        let accesses = self.runtime().detector().freed().take_freed(device, &range, stream);
        self.uses().history = Some(Box::new(History::new(Some(stream.clone()), accesses)));
    }
}

/// Records the history of device memory that is about to be freed.
pub(crate) fn record_freed(
    runtime: &Runtime,
    (device, range, alloc_stream_id): (usize, Range<i64>, u64),
    allocated: &'static Location<'static>,
    uses: &mut Uses,
) {
    let Some(history) = uses.history.take() else { return };
    if history.accesses.is_empty() {
        return;
    }
    let History { accesses, alloc_stream, .. } = *history;
    let alloc_stream = (alloc_stream_id, alloc_stream.as_ref());
    let mut freed = runtime.detector().freed();
    freed.record_freed(
        (device, range),
        alloc_stream,
        allocated,
        uses.allocator_streams(),
        accesses,
    );
}
