//! Vector clocks: the operations of other streams that come before a stream's next operation.
//!
//! A wait raises the waiting stream's clock to the clock that the event recorded. Work that the
//! host knows to be complete comes before all work enqueued later, on any stream; each stream's
//! [`StreamProgress`] has the last operation known to be complete. Clones of a clock share memory
//! until one of them changes, so each event can cheaply keep the clock of its record.

use std::sync::{Arc, Weak};

use crate::capture::OngoingCapture;
use crate::device::DeviceCore;
use crate::order::StreamProgress;
use crate::{OpNumber, Result, Stream};

/// An entry of a clock: all work of a stream up to operation `op`.
#[derive(Clone, Debug)]
struct ClockEntry {
    stream: Arc<StreamProgress>,
    op: OpNumber,
}

/// The vector clock of a position in a stream: for each other stream, the last operation that comes
/// before the position. Clones share the list until one of the clones changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Option<Arc<Vec<ClockEntry>>>);

impl Clock {
    fn iter(&self) -> impl Iterator<Item = &ClockEntry> {
        self.0.iter().flat_map(|entries| entries.iter())
    }

    /// Returns whether operation `op` of a stream comes before the clock's position.
    pub(crate) fn covers(&self, stream: u64, op: OpNumber) -> bool {
        self.iter().any(|entry| entry.stream.stream == stream && entry.op >= op)
    }

    fn raise(&mut self, stream: &Arc<StreamProgress>, op: OpNumber) {
        if stream.is_known_done(op) || self.covers(stream.stream, op) {
            return;
        }
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        if let Some(entry) = entries.iter_mut().find(|r| r.stream.stream == stream.stream) {
            entry.op = op;
            return;
        }
        // Drop entries for work that is known to be complete, because such work comes before all
        // later work anyway.
        entries.retain(|r| !r.stream.is_known_done(r.op));
        entries.push(ClockEntry { stream: Arc::clone(stream), op });
    }

    /// Records that all later work on the stream `own` comes after `point`.
    pub(crate) fn join(&mut self, own: &StreamProgress, point: &StreamPoint) {
        let before = point.before.iter().map(|entry| (&entry.stream, entry.op));
        for (stream, op) in before.chain([(&point.progress, point.op)]) {
            if stream.stream != own.stream {
                self.raise(stream, op);
            }
        }
    }
}

/// A position in a stream, with the work that comes before.
#[derive(Clone, Debug)]
pub(crate) struct StreamPoint {
    pub(crate) progress: Arc<StreamProgress>,
    /// The last operation of the stream that the point covers.
    pub(crate) op: OpNumber,
    pub(crate) before: Clock,
    /// The capture that the point belongs to. The point has no meaning outside the capture.
    pub(crate) capture: Option<Weak<OngoingCapture>>,
}

impl StreamPoint {
    /// Creates a point outside a capture.
    pub(crate) fn at(op: OpNumber, progress: Arc<StreamProgress>, before: Clock) -> Self {
        Self { progress, op, before, capture: None }
    }

    /// Records that the host has observed the completion of the point and of all work before it.
    pub(crate) fn mark_done(&self, core: &DeviceCore) {
        self.progress.mark_done(self.op);
        for entry in self.before.iter() {
            // A stream's wait for work of a lost device may end although that work is incomplete.
            let device = entry.stream.device;
            if device == self.progress.device || core.driver.lost(device).is_none() {
                entry.stream.mark_done(entry.op);
            }
        }
    }

    /// Calls [`StreamPoint::mark_done`] and records the outcomes of the completed checks.
    pub(crate) fn settle(&self, core: &DeviceCore) {
        self.mark_done(core);
        core.shared.checks.settle(std::slice::from_ref(self));
    }

    /// Calls [`StreamPoint::settle`], then returns an error if a failed check must be reported to
    /// this thread. Called by `synchronize` of streams and events.
    pub(crate) fn settle_and_report(&self, core: &DeviceCore) -> Result<()> {
        self.settle(core);
        core.shared.checks.report(std::slice::from_ref(self))
    }

    /// Returns whether operation `op` of a stream comes before the point or is covered by it.
    pub(crate) fn covers(&self, stream: u64, op: OpNumber) -> bool {
        let own = self.progress.stream == stream && op <= self.op;
        own || self.before.covers(stream, op)
    }
}

/// A snapshot of the operations that come before a stream's next operation.
#[derive(Clone, Debug)]
pub struct Before(pub(crate) StreamPoint);

impl Before {
    /// Returns whether operation `op` of a stream is in the snapshot: by stream order, by a chain
    /// of waits across streams, or because the host has observed that `op` is complete.
    #[must_use]
    pub fn covers(&self, stream: &Stream, op: OpNumber) -> bool {
        stream.is_known_done(op) || self.0.covers(stream.id(), op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(n: u64) -> Vec<Arc<StreamProgress>> {
        (0..n).map(|id| Arc::new(StreamProgress::new(id, 0))).collect()
    }

    fn point(progress: &Arc<StreamProgress>, op: OpNumber) -> StreamPoint {
        StreamPoint { progress: Arc::clone(progress), op, before: Clock::default(), capture: None }
    }

    #[test]
    fn a_clock_drops_entries_of_work_that_is_known_to_be_complete() {
        let mut clock = Clock::default();
        let streams = streams(100);
        for other in &streams[1..] {
            clock.join(&streams[0], &point(other, 7));
            assert!(clock.covers(other.stream, 7));
            other.mark_done(if other.stream == 50 { 6 } else { 7 });
        }
        assert!(clock.covers(50, 7), "operation 7 of stream 50 is not known to be complete");
        assert_eq!(clock.iter().count(), 2);
    }

    #[test]
    fn a_clock_never_goes_back_and_a_snapshot_never_changes() {
        let mut clock = Clock::default();
        let streams = streams(3);
        clock.join(&streams[0], &point(&streams[1], 7));
        let snapshot = clock.clone();
        clock.join(&streams[0], &point(&streams[1], 5));
        assert!(clock.covers(1, 7) && !clock.covers(1, 8));
        let third = StreamPoint { before: clock.clone(), ..point(&streams[2], 3) };
        clock.join(&streams[0], &point(&streams[1], 9));
        assert!(clock.covers(1, 9) && snapshot.covers(1, 7) && !snapshot.covers(1, 8));
        let mut other = Clock::default();
        other.join(&streams[0], &third);
        assert!(other.covers(2, 3) && other.covers(1, 7) && !other.covers(1, 8));
        clock.join(&streams[1], &point(&streams[1], 99));
        assert!(!clock.covers(1, 99), "a clock has no entry for its own stream");
    }
}
