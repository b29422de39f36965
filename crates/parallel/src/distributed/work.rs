//! What a collective returns: how to wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use warpline::Tensor;
use warpline::cuda::{Event, Stream};
use warpline_stream::OpEvent;

use super::Result;
use super::group::Shared;
use super::record::State;

/// The tensors of a call.
pub(super) type Tensors = SmallVec<[Tensor; 2]>;

/// A collective that was launched (`torch.distributed.Work`). It keeps the tensors of the call.
/// Dropped, it changes nothing: the collective goes on.
pub struct Work {
    group: Arc<Shared>,
    done: Done,
    /// In the rank's record.
    id: u64,
    seq: u64,
    tensors: Tensors,
}

/// Where its end is.
#[derive(Debug)]
pub(super) enum Done {
    /// On the stream that was current.
    Op(Stream, u64),
    /// On the group's stream.
    Event(OpEvent),
    /// In a capture that the group's stream has joined.
    Captured(Event),
}

/// How long a host wait asks again and again before it sleeps between the questions.
const SPIN: Duration = Duration::from_micros(100);
/// The longest sleep between two questions.
const NAP: Duration = Duration::from_millis(1);

impl Work {
    pub(super) fn new(
        group: Arc<Shared>,
        done: Done,
        (id, seq): (u64, u64),
        tensors: Tensors,
    ) -> Self {
        Self { group, done, id, seq, tensors }
    }

    /// Its number in the group.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The tensors of the call: what it writes, then what it reads.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Makes later work on the current stream wait for the collective, on the GPU (`Work.wait`). The
    /// host waits for nothing. Nothing to do without `async_op`.
    ///
    /// # Errors
    /// [`GroupError::CollectiveTimeout`](GroupError::CollectiveTimeout) and
    /// [`GroupError::PeerFailed`](GroupError::PeerFailed) once the group has failed; the driver's own.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.group.check_alive()?;
        let parts = &self.group.parts;
        let current = parts.runtime.devices()?.current_stream(parts.comm.device())?;
        match &self.done {
            Done::Op(stream, op) => current.wait_for(stream, *op)?,
            Done::Event(event) => event.wait(&current)?,
            Done::Captured(event) => event.wait(&current)?,
        }
        Ok(())
    }

    /// Whether the collective is done (`Work.is_completed`).
    ///
    /// # Errors
    /// As [`Work::wait`]; what earlier work on the device failed with.
    #[track_caller]
    pub fn is_completed(&self) -> Result<bool> {
        let done = match &self.done {
            Done::Op(stream, op) => stream.is_done(*op),
            Done::Event(event) => event.query(),
            Done::Captured(event) => event.query(),
        };
        // Work that was aborted counts as done for the driver.
        self.group.check_alive()?;
        let done = done?;
        if done {
            self.group.ring().set(self.id, State::Done);
        }
        Ok(done)
    }

    /// Blocks the host until the collective is done, or the group has failed.
    ///
    /// # Errors
    /// As [`Work::is_completed`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.is_completed()? {
            let waited = begun.elapsed();
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / 8).min(NAP));
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
