//! The progress of each stream, and the events recorded after single operations.
//!
//! The problem: a stream that waits for an operation of another stream should not wait for work
//! that was enqueued after that operation. CUDA's wait covers all work before an event's record, so
//! the event must be recorded right after the operation, before it is known whether a stream or
//! the host will wait. Most streams are never waited for in this way, and each record costs a driver call.
//!
//! The approach: events come from a pool and are called *op events*. A wait uses the first op event at or after its
//! operation. If there is no such op event, the wait records an op event after all work so far. A wait is late if later
//! work follows its operation. If a late wait finds no op event right after its operation, the next late wait may also
//! need one, so the next [`MIN_OPS_WITH_EVENTS`] operations get an op event each. If the next late wait still finds
//! none, because more operations lie between late waits, this number doubles, up to [`MAX_OPS_WITH_EVENTS`]. A late
//! wait for an operation of such a series extends the series. So a single late wait causes no more than
//! [`MIN_OPS_WITH_EVENTS`] further records, and if another stream waits once per training step, each such wait soon
//! finds its op event. In a capture, each submitted operation gets an op event.
//!
//! Before its own waits, a stream also records an op event after its last work, unless that work has one or is known to
//! be complete. The reason: the work that the stream is about to wait for may depend on another process and never
//! complete. A late wait for the stream may then cover later work of the stream, but not the stream's next wait.
//!
//! Limits: a late wait that finds no op event right after its operation may cover all work up to the stream's next
//! wait. A stream keeps the latest [`MAX_AUTOMATIC`] op events that were recorded after each operation, and at most the
//! latest [`MAX_REQUESTED`] op events that were recorded for waits. Before it would keep more than [`MAX_COMPLETE`] op
//! events for waits, it drops the oldest of them whose operations are known to be complete. A wait for an older
//! operation uses the oldest op event that is left, and so covers more work than needed, never less.

use std::collections::VecDeque;
use std::sync::Arc;

use warpline_cuda_sys_safe::{DriverError, EventFlags, owned};
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::OpNumber;
use crate::clock::Clock;
use crate::device::DeviceCore;
use crate::event_pool::PooledEvent;

/// Maximum number of kept op events that were recorded after each operation.
const MAX_AUTOMATIC: usize = 64;

/// Maximum number of kept op events that were recorded for a wait. Larger than [`MAX_AUTOMATIC`], so that an op event
/// that was recorded before a long wait is still kept after many later waits. A late wait for earlier work can then use
/// it, and need not include the long wait.
const MAX_REQUESTED: usize = 1024;

/// Number of op events for waits that are kept even if their operations are complete.
const MAX_COMPLETE: usize = 64;

/// Minimum number of operations that get an op event each after a late wait that finds no op event.
const MIN_OPS_WITH_EVENTS: u64 = 64;

/// Maximum number of operations that get an op event each after a late wait. Larger than the number of operations in a
/// training step, so that a wait once per step finds its op event.
const MAX_OPS_WITH_EVENTS: u64 = 1 << 16;

/// Progress of a stream. Outlives the stream, because clocks refer to it.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    /// The stream's id.
    pub(crate) stream: u64,
    /// The stream's device.
    pub(crate) device: usize,
    /// The number of the last operation enqueued. Written under the stream's lock only.
    last: AtomicU64,
    /// The highest operation that the host knows to be complete.
    done: AtomicU64,
}

impl StreamProgress {
    pub(crate) fn new(stream: u64, device: usize) -> Self {
        Self { stream, device, last: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    pub(crate) fn last(&self) -> OpNumber {
        self.last.load(Ordering::Acquire)
    }

    /// Numbers the next operation. The caller holds the stream's lock.
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

/// Events recorded right after some of a stream's operations.
#[derive(Debug, Default)]
pub(crate) struct OpEvents {
    /// The latest op events recorded after each operation, oldest first.
    automatic: VecDeque<OpEventRecord>,
    /// The latest op events recorded for a wait or an [`OpEvent`](crate::OpEvent), oldest first.
    requested: VecDeque<OpEventRecord>,
    /// Operations up to this number get an op event each.
    wanted_until: OpNumber,
    /// Number of operations that get an op event each after a late wait. 0 until the first late
    /// wait.
    wanted: u64,
    /// The last operation of [`Stream::submit`](crate::Stream::submit). Waits do not count, nor do operations of
    /// [`Stream::submit_waited`](crate::Stream::submit_waited), which are complete.
    pub(crate) last_work: OpNumber,
}

/// An op event: an operation, the event recorded right after it, and the clock of the work before it.
#[derive(Clone, Debug)]
pub(crate) struct OpEventRecord {
    pub(crate) op: OpNumber,
    pub(crate) before: Clock,
    pub(crate) event: Arc<PooledEvent>,
}

impl OpEvents {
    /// Returns the earliest op event at or after operation `op`.
    pub(crate) fn at_or_after(&self, op: OpNumber) -> Option<&OpEventRecord> {
        let first = |list: &VecDeque<OpEventRecord>| {
            list.partition_point(|record: &OpEventRecord| record.op < op)
        };
        let automatic = self.automatic.get(first(&self.automatic));
        let requested = self.requested.get(first(&self.requested));
        automatic.into_iter().chain(requested).min_by_key(|record| record.op)
    }

    /// Returns the latest requested op event.
    pub(crate) fn latest(&self) -> Option<&OpEventRecord> {
        self.requested.back()
    }

    /// Returns whether operation `op` needs an op event right after it, for late waits.
    #[inline]
    pub(crate) fn are_wanted_at(&self, op: OpNumber) -> bool {
        op <= self.wanted_until
    }

    /// Notes a wait for operation `op`, made when the stream's last operation was `last`.
    pub(crate) fn note_wait(&mut self, op: OpNumber, last: OpNumber) {
        // Automatic op events up to this operation may already be dropped, so recording more of them would not help.
        let oldest = last.saturating_sub(MAX_AUTOMATIC as u64);
        if op >= self.last_work || op <= oldest {
            return;
        }
        if !self.are_wanted_at(op) {
            if self.at_or_after(op).is_some_and(|record| record.op == op) {
                return;
            }
            // If the stream has had no late wait for many operations, start again with the minimum.
            let far = last > self.wanted_until + MAX_OPS_WITH_EVENTS;
            let doubled = if far { 0 } else { 2 * self.wanted };
            self.wanted = doubled.clamp(MIN_OPS_WITH_EVENTS, MAX_OPS_WITH_EVENTS);
        }
        self.wanted_until = last + self.wanted;
    }

    /// Records an op event after `op`, the last enqueued operation, for a wait.
    #[track_caller]
    pub(crate) fn record(
        &mut self,
        core: &Arc<DeviceCore>,
        stream: &owned::Stream,
        (op, progress): (OpNumber, &StreamProgress),
        before: &Clock,
    ) -> Result<(), DriverError> {
        let list = &mut self.requested;
        let mut reused = None;
        while list.len() >= MAX_REQUESTED
            || list.len() >= MAX_COMPLETE && progress.is_known_done(list[0].op)
        {
            reused = list.pop_front();
        }
        list.push_back(OpEventRecord::record(core, stream, op, before, reused)?);
        Ok(())
    }

    /// Records an op event after `op`, the last enqueued operation, for possible later waits.
    #[track_caller]
    pub(crate) fn record_automatic(
        &mut self,
        core: &Arc<DeviceCore>,
        stream: &owned::Stream,
        op: OpNumber,
        before: &Clock,
    ) -> Result<(), DriverError> {
        let list = &mut self.automatic;
        let reused = if list.len() < MAX_AUTOMATIC { None } else { list.pop_front() };
        list.push_back(OpEventRecord::record(core, stream, op, before, reused)?);
        Ok(())
    }
}

impl OpEventRecord {
    /// Records an op event after `op`, with the event of a former op event if nothing else uses it.
    #[track_caller]
    fn record(
        core: &Arc<DeviceCore>,
        stream: &owned::Stream,
        op: OpNumber,
        before: &Clock,
        reused: Option<Self>,
    ) -> Result<Self, DriverError> {
        let event = match reused {
            // Reuse the event only if no waiter and no `OpEvent` shares it. Each new record
            // postpones completion, so a query of an `OpEvent` might never return `true`.
            Some(reused) if Arc::strong_count(&reused.event) == 1 => reused.event,
            _ => Arc::new(PooledEvent::take(core, EventFlags::default())?),
        };
        event.record(stream)?;
        Ok(Self { op, before: before.clone(), event })
    }
}
