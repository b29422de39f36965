//! The progress of each stream, and the events recorded after single operations.
//!
//! The problem: a stream that waits for an operation of another stream should not wait for work
//! that was enqueued after that operation. CUDA's wait covers all work before an event's record, so
//! the event must be recorded right after the operation, before it is known whether a stream or
//! the host will wait. Most streams are never waited for in this way, and each record costs a driver call.
//!
//! The approach: events come from a pool and are called *op events*. A wait uses the first
//! op event at or after its operation, and records one after all work so far if there is none. A
//! wait that comes late, when later operations follow the awaited one, shows that the next such
//! wait needs an op event right after its operation. From then on each operation gets one, until
//! [`OPS_WITH_EVENTS`] operations pass without another late wait.
//!
//! A stream also records an op event before it waits for other work, which may depend on another
//! process and never complete. So a late wait covers later work of its stream, but not the work
//! that the stream waits for later.
//!
//! Limits: a stream's first late wait covers the stream's work up to its next wait. A stream keeps
//! its latest [`MAX_OP_EVENTS`] op events. A wait for an older operation uses the oldest
//! op event, and so covers more work than needed, never less.

use std::collections::VecDeque;
use std::sync::Arc;

use warpline_cuda_sys_safe::{DriverError, EventFlags, owned};
use warpline_sync::atomic::{AtomicU64, Ordering};

use crate::OpNumber;
use crate::clock::Clock;
use crate::device::DeviceCore;
use crate::event_pool::PooledEvent;

/// Maximum number of op events per stream. A wait for an operation older than all op events
/// uses the oldest, and so covers more work than needed, never less.
const MAX_OP_EVENTS: usize = 64;

/// Number of operations after a late wait that get an op event each. Larger than a training step,
/// so that a stream that is waited for once per step keeps its op events.
const OPS_WITH_EVENTS: u64 = 1 << 16;

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
    /// The latest op events, oldest first.
    recorded: VecDeque<OpEventRecord>,
    /// Operations up to this number get an op event each.
    wanted_until: OpNumber,
    /// The last operation that is not a wait.
    pub(crate) last_work: OpNumber,
}

/// An operation, the work before it, and an event recorded right after it.
#[derive(Clone, Debug)]
pub(crate) struct OpEventRecord {
    pub(crate) op: OpNumber,
    pub(crate) before: Clock,
    pub(crate) event: Arc<PooledEvent>,
}

impl OpEvents {
    /// Returns the earliest op event at or after operation `op`.
    pub(crate) fn at_or_after(&self, op: OpNumber) -> Option<&OpEventRecord> {
        self.recorded.get(self.recorded.partition_point(|record| record.op < op))
    }

    pub(crate) fn latest(&self) -> Option<&OpEventRecord> {
        self.recorded.back()
    }

    /// Returns whether operation `op` needs an op event right after it, for late waits.
    #[inline]
    pub(crate) fn are_wanted_at(&self, op: OpNumber) -> bool {
        op <= self.wanted_until
    }

    /// Notes a wait for operation `op`, made when the stream's last operation was `last`.
    pub(crate) fn note_wait(&mut self, op: OpNumber, last: OpNumber) {
        if op < last {
            self.wanted_until = last + OPS_WITH_EVENTS;
        }
    }

    /// Records an op event after `op`, the last enqueued operation.
    #[track_caller]
    pub(crate) fn record(
        &mut self,
        core: &Arc<DeviceCore>,
        stream: &owned::Stream,
        op: OpNumber,
        before: &Clock,
    ) -> Result<(), DriverError> {
        let oldest =
            if self.recorded.len() < MAX_OP_EVENTS { None } else { self.recorded.pop_front() };
        let event = match oldest {
            // Reuse the event only if no waiter and no `OpEvent` shares it. Each new record
            // postpones completion, so a query of an `OpEvent` might never return `true`.
            Some(oldest) if Arc::strong_count(&oldest.event) == 1 => oldest.event,
            _ => Arc::new(PooledEvent::take(core, EventFlags::default())?),
        };
        event.record(stream)?;
        self.recorded.push_back(OpEventRecord { op, before: before.clone(), event });
        Ok(())
    }
}
