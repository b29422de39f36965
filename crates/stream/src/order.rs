//! What is known of the order of operations on different streams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use warpline_cuda_sys_safe::{DriverError, EventFlags, owned};

use crate::OpNumber;
use crate::device::Core;
use crate::event_pool::PooledEvent;

/// Checkpoints a stream keeps. A wait for an operation older than all of them waits for the
/// oldest, which covers more than needed but never less.
const MAX_CHECKPOINTS: usize = 64;

/// How far a stream is. It outlives the stream, for the tables that mention it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The stream's id.
    pub(crate) stream: u64,
    /// The stream's device.
    pub(crate) device: usize,
    /// The number of the last operation enqueued. Written under the stream's lock only.
    last: AtomicU64,
    /// The highest operation that the host knows to be done.
    done: AtomicU64,
}

impl Progress {
    pub(crate) fn new(stream: u64, device: usize) -> Self {
        Self { stream, device, last: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    pub(crate) fn last(&self) -> OpNumber {
        self.last.load(Ordering::Acquire)
    }

    /// Numbers one more operation; the caller holds the stream's lock.
    pub(crate) fn advance(&self) -> OpNumber {
        let op = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(op, Ordering::Release);
        op
    }

    pub(crate) fn is_known_done(&self, op: OpNumber) -> bool {
        self.done.load(Ordering::Acquire) >= op
    }

    pub(crate) fn done(&self) -> OpNumber {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn mark_done(&self, op: OpNumber) {
        self.done.fetch_max(op, Ordering::AcqRel);
    }
}

/// One line of a stream's table: from its own operation `since` on, all its work comes after
/// operation `op` of another stream.
#[derive(Clone, Debug)]
pub(crate) struct After {
    pub(crate) other: Arc<Progress>,
    pub(crate) op: OpNumber,
    since: OpNumber,
}

/// Which operations of other streams come before a stream's work.
///
/// Only the highest operation per stream is kept. Where it was raised after an event was
/// recorded, what held before is forgotten; the price is a wait that was not needed.
#[derive(Debug, Default)]
pub(crate) struct Synced(SmallVec<[After; 4]>);

impl Synced {
    /// Whether all work from now on comes after `op` of the stream `other`.
    pub(crate) fn covers(&self, other: u64, op: OpNumber) -> bool {
        self.0.iter().any(|a| a.other.stream == other && a.op >= op)
    }

    /// What holds for the stream's operation `at`.
    pub(crate) fn known_at(&self, at: OpNumber) -> impl Iterator<Item = &After> {
        self.0.iter().filter(move |a| a.since <= at)
    }

    /// Enters that the stream's work from its operation `since` on comes after `op` of `other`.
    pub(crate) fn raise(&mut self, other: &Arc<Progress>, op: OpNumber, since: OpNumber) {
        if let Some(after) = self.0.iter_mut().find(|a| a.other.stream == other.stream) {
            if after.op < op {
                after.op = op;
                after.since = since;
            }
            return;
        }
        // Lines about work that the host knows to be done say nothing any more.
        self.0.retain(|a| !a.other.is_known_done(a.op));
        self.0.push(After { other: Arc::clone(other), op, since });
    }
}

/// Events recorded right after some of a stream's operations, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints(VecDeque<(OpNumber, Arc<PooledEvent>)>);

impl Checkpoints {
    /// The earliest checkpoint at or after an operation.
    pub(crate) fn at_or_after(&self, op: OpNumber) -> Option<&(OpNumber, Arc<PooledEvent>)> {
        self.0.get(self.0.partition_point(|(at, _)| *at < op))
    }

    /// Records a checkpoint after `op`, the last operation enqueued.
    #[track_caller]
    pub(crate) fn record(
        &mut self,
        core: &Arc<Core>,
        stream: &owned::Stream,
        op: OpNumber,
    ) -> Result<(), DriverError> {
        // The oldest event may be recorded anew even if a waiter has just been given it: it then
        // waits for later work of the same stream.
        let oldest = if self.0.len() < MAX_CHECKPOINTS { None } else { self.0.pop_front() };
        let event = match oldest {
            Some((_, event)) => event,
            None => Arc::new(PooledEvent::take(core, EventFlags::default())?),
        };
        event.record(stream)?;
        self.0.push_back((op, event));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_forgets_what_the_host_has_seen_done() {
        let mut synced = Synced::default();
        let streams: Vec<_> = (1..=100).map(|id| Arc::new(Progress::new(id, 0))).collect();
        for (since, other) in (1..).zip(&streams) {
            synced.raise(other, 7, since);
            assert!(synced.covers(other.stream, 7));
            other.mark_done(if other.stream == 50 { 6 } else { 7 });
        }
        assert!(synced.covers(50, 7), "not done, not forgotten");
        assert_eq!(synced.0.len(), 2);
    }

    #[test]
    fn the_table_never_goes_back() {
        let mut synced = Synced::default();
        let other = Arc::new(Progress::new(1, 0));
        synced.raise(&other, 7, 3);
        synced.raise(&other, 5, 9);
        assert!(synced.covers(1, 7) && !synced.covers(1, 8));
        assert_eq!(synced.known_at(3).count(), 1, "and holds since the first time");
        assert_eq!(synced.known_at(2).count(), 0);
    }
}
