//! The order of operations: the points that each operation waits for, and the points that streams
//! have reached.

use smallvec::SmallVec;

use super::SimState;
use super::streams::{SimStreamOp, StreamOpKind, StreamState};
use super::work::{Label, Point, StreamKey};
use crate::*;

impl SimState {
    /// Adds an operation to the end of a stream, or to the capture of the stream. Returns the
    /// operation's point, or `None` in a capture.
    pub(crate) fn enqueue(
        &mut self,
        key: StreamKey,
        label: Label,
        kind: StreamOpKind,
        after: &[Point],
    ) -> Result<Option<Point>> {
        if let Some(capture) = self.streams.get(&key).and_then(|s| s.capture) {
            self.capture_op(capture, key, label, kind)?;
            return Ok(None);
        }
        self.check_implicit(key, label.call)?;
        let mut waits: SmallVec<[Point; 4]> = after.iter().copied().collect();
        // A wait for an event takes no part in the rule of the default stream: the rule holds back
        // later work anyway, and a wait for a completed event must have no effect. A record on a
        // blocking stream waits only for the work before it.
        let takes_part = match &kind {
            StreamOpKind::Wait => false,
            StreamOpKind::Record(_) => self.streams.get(&key).is_some_and(|s| s.legacy),
            StreamOpKind::Graph(graph) => !graph.nodes.is_empty(),
            _ => true,
        };
        if takes_part {
            self.implicit_waits(key, &mut waits);
        }
        let mut issued = *self.host_clock();
        waits.retain(|&mut point| {
            // The point may still be in the future of the virtual clock.
            issued = issued.max(self.ended_at(point));
            !self.reached(point)
        });
        self.sequence += 1;
        let sequence = self.sequence;
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(None) };
        issued = issued.max(stream.not_before);
        stream.enqueued += 1;
        let position = stream.enqueued;
        stream.queue.push_back(SimStreamOp {
            sequence,
            after: waits,
            issued,
            label,
            kind,
            begun: None,
        });
        Ok(Some(Point { stream: key, position }))
    }

    /// Adds the waits between the legacy default stream and the device's blocking streams, in both
    /// directions.
    fn implicit_waits(&self, key: StreamKey, waits: &mut SmallVec<[Point; 4]>) {
        let Some(stream) = self.streams.get(&key) else { return };
        let device = stream.device;
        if stream.legacy {
            let blocking = self.streams.iter().filter(|(_, s)| s.device == device && s.blocking());
            waits.extend(blocking.map(|(&k, s)| Point { stream: k, position: s.enqueued }));
        } else if stream.blocking() {
            waits.push(self.tail(StreamState::legacy_key(device)));
        }
    }

    /// Returns the points that the newest operation, enqueued at `point`, waits for.
    pub(crate) fn before(&self, point: Point) -> Vec<Point> {
        let op = self.streams.get(&point.stream).and_then(|s| s.queue.back());
        let mut before: Vec<Point> = op.map(|op| op.after.to_vec()).unwrap_or_default();
        before.push(Point { position: point.position - 1, ..point });
        before
    }

    /// Returns the end of all work that is enqueued on a stream.
    pub(crate) fn tail(&self, key: StreamKey) -> Point {
        Point { stream: key, position: self.streams.get(&key).map_or(0, |s| s.enqueued) }
    }

    /// Returns the ends of all work that is enqueued on a device.
    pub(crate) fn device_tails(&self, device: usize) -> Vec<Point> {
        let of_device = self.streams.iter().filter(|(_, s)| s.device == device);
        of_device.map(|(&key, s)| Point { stream: key, position: s.enqueued }).collect()
    }

    /// Returns the ends of all enqueued work.
    pub(crate) fn all_tails(&self) -> Vec<Point> {
        self.streams.iter().map(|(&key, s)| Point { stream: key, position: s.enqueued }).collect()
    }

    /// Returns `true` if all work up to a point is done. A stream that does not exist any more has
    /// done all its work.
    pub(crate) fn reached(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|s| s.done >= point.position)
    }

    /// Returns the stream whose next operation must run first to reach a point. The operation may
    /// wait for other ranks. An operation waits only for earlier operations, so the search ends.
    pub(crate) fn next_toward(&self, point: Point) -> Option<StreamKey> {
        let mut point = point;
        loop {
            if self.reached(point) {
                return None;
            }
            let op = self.streams.get(&point.stream)?.queue.front()?;
            match op.after.iter().find(|&&p| !self.reached(p)) {
                Some(&unmet) => point = unmet,
                None => return Some(point.stream),
            }
        }
    }

    /// Makes this thread's virtual time at least that of a point, because the thread has waited for
    /// the point or knows that it was reached.
    pub(crate) fn host_saw(&mut self, point: Point) {
        let end = self.ended_at(point);
        let clock = self.host_clock();
        *clock = clock.max(end);
    }

    /// Makes later work on a stream begin after a point that was reached.
    pub(crate) fn begin_after(&mut self, key: StreamKey, point: Point) {
        let end = self.ended_at(point);
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.not_before = stream.not_before.max(end);
        }
    }

    /// Returns the virtual time at which a point was reached; 0 if it was not reached.
    pub(crate) fn ended_at(&self, point: Point) -> f64 {
        let Some(stream) = self.streams.get(&point.stream) else { return 0.0 };
        let Some(back) = stream.done.checked_sub(point.position) else { return 0.0 };
        let back = back as usize;
        let newest = stream.times.len();
        newest.checked_sub(back + 1).and_then(|i| stream.times.get(i)).copied().unwrap_or(0.0)
    }

    /// Returns the ends of the latest operations of communicators.
    pub(crate) fn latest_of(&self, comms: impl Iterator<Item = u64>) -> Vec<Point> {
        comms.filter_map(|comm| self.comms.get(&comm)?.latest).collect()
    }

    pub(crate) fn note_latest(&mut self, comms: impl Iterator<Item = u64>, point: Point) {
        for comm in comms {
            if let Some(comm) = self.comms.get_mut(&comm) {
                comm.latest = Some(point);
            }
        }
    }

    /// Drops the unfinished operations of a stream whose device is lost.
    pub(crate) fn drop_unfinished(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.done = stream.enqueued;
        let queue = std::mem::take(&mut stream.queue);
        self.cancelled_fns.extend(queue.into_iter().filter_map(|op| match op.kind {
            StreamOpKind::Host(f) => Some(f),
            _ => None,
        }));
        self.remove_if_done(key);
    }

    /// Removes a destroyed stream when all its work is done.
    pub(crate) fn remove_if_done(&mut self, key: StreamKey) {
        if self.streams.get(&key).is_some_and(|s| s.destroyed && s.done == s.enqueued) {
            self.streams.remove(&key);
        }
    }
}
