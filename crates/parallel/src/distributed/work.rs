//! Handles of launched collectives.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use warpline::Tensor;
use warpline::cuda::{Event, Stream};
use warpline_stream::OpEvent;

use super::Result;
use super::flight_recorder::CallState;
use super::group::{GroupShared, Transport};

/// The tensors of a call.
pub(super) type CallTensors = SmallVec<[Tensor; 2]>;

/// A handle of a launched collective (`torch.distributed.Work`). Keeps the tensors of the call alive. Dropping the
/// handle does not cancel the collective.
pub struct Work {
    group: Arc<GroupShared>,
    done: CompletionPoint,
    /// Id of the call in the flight recorder.
    id: u64,
    seq: u64,
    tensors: CallTensors,
}

/// The point at which the collective is done.
#[derive(Debug)]
pub(super) enum CompletionPoint {
    /// An operation on the stream that was current at the call.
    Op(Stream, u64),
    /// An event on the group's stream.
    Event(OpEvent),
    /// An event in a capture that the group's stream has joined.
    Captured(Event),
    /// The call was done when it returned: a call on the CPU.
    Returned,
}

/// Time for which a host wait polls without sleeping.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Longest sleep between two polls.
const MAX_SLEEP: Duration = Duration::from_millis(1);

impl Work {
    pub(super) fn new(
        group: Arc<GroupShared>,
        done: CompletionPoint,
        (id, seq): (u64, u64),
        tensors: CallTensors,
    ) -> Self {
        Self { group, done, id, seq, tensors }
    }

    /// Returns the sequence number of the collective in the group, from 1 on. For a send or receive, returns the
    /// sequence number among the calls between the two ranks in that direction.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the tensors of the call: first those that it writes, then those that it reads. The tensors of
    /// [`batch_isend_irecv`](crate::distributed::ProcessGroup::batch_isend_irecv) are in the order of its sends and
    /// receives.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Makes later work on the current stream wait for the collective, on the GPU (`Work.wait`). The host does not
    /// wait. Needed only after calls with `async_op`.
    ///
    /// # Errors
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with a
    /// [`GroupError`](crate::distributed::GroupError) as its source,
    /// [`GroupError::CollectiveTimeout`](crate::distributed::GroupError::CollectiveTimeout) or
    /// [`GroupError::PeerFailed`](crate::distributed::GroupError::PeerFailed), once the group has failed;
    /// [`ErrorKind::Driver`](warpline::ErrorKind::Driver) if the driver fails.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        let parts = &self.group.parts;
        let Transport::Nccl { comm, .. } = &parts.transport else { return Ok(()) };
        self.group.check_alive()?;
        let current = parts.runtime.devices()?.current_stream(comm.device())?;
        match &self.done {
            CompletionPoint::Op(stream, op) => current.wait_for(stream, *op)?,
            CompletionPoint::Event(event) => event.wait(&current)?,
            CompletionPoint::Captured(event) => event.wait(&current)?,
            CompletionPoint::Returned => {}
        }
        Ok(())
    }

    /// Returns `true` if the collective is done (`Work.is_completed`).
    ///
    /// # Errors
    /// The same as [`Work::wait`]; [`ErrorKind::Surfaced`](warpline::ErrorKind::Surfaced) if earlier work on the device
    /// failed.
    #[track_caller]
    pub fn is_completed(&self) -> Result<bool> {
        let done = match &self.done {
            CompletionPoint::Op(stream, op) => stream.is_done(*op),
            CompletionPoint::Event(event) => event.query(),
            CompletionPoint::Captured(event) => event.query(),
            CompletionPoint::Returned => return Ok(true),
        };
        // The driver reports aborted work as done.
        self.group.check_alive()?;
        let done = done?;
        if done {
            self.group.recorder().set_state(self.id, CallState::Done);
        }
        Ok(done)
    }

    /// Blocks the host until the collective is done or the group has failed.
    ///
    /// # Errors
    /// The same as [`Work::is_completed`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.is_completed()? {
            let waited = begun.elapsed();
            if waited < SPIN_TIME {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / 8).min(MAX_SLEEP));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("seq", &self.seq)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
