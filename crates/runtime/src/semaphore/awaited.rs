//! Pending work of other processes, for data that depends on it.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{POLL_INTERVAL, PeerSemaphore, reaches};
use crate::{Error, ErrorKind, Result, Site};

/// A value of a semaphore that another process signals, and on which data depends.
#[derive(Clone, Debug)]
pub(crate) struct AwaitedSignal {
    pub(super) semaphore: PeerSemaphore,
    pub(super) number: u32,
    /// Maximum time that a host read waits for the number. `None`: until the number arrives or the
    /// other process is gone.
    pub(super) limit: Option<Duration>,
    pub(super) op: &'static str,
    pub(super) location: &'static Location<'static>,
}

impl AwaitedSignal {
    pub(crate) fn is_there(&self) -> bool {
        self.semaphore.is_there(self.number)
    }

    /// Returns the error if the number is known never to arrive.
    pub(crate) fn failed(&self) -> Option<Error> {
        let ended_at = self.semaphore.state().ended_at?;
        (!reaches(ended_at, self.number)).then(|| self.gone())
    }

    pub(crate) fn is_of(&self, semaphore: &PeerSemaphore) -> bool {
        Arc::ptr_eq(&self.semaphore.0, &semaphore.0)
    }

    /// Returns whether the arrival of this number implies that of `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.is_of(&other.semaphore) && reaches(self.number, other.number)
    }

    /// Waits for the number, for at most `limit`. Does nothing if there is no limit. Call it before
    /// the host waits for a stream that waits for the number, because that wait has no limit.
    /// Succeeds if the other process is gone: the stream is then released, and reads return the
    /// failure.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the number does not arrive in time.
    pub(crate) fn wait_within_limit(&self) -> Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        match self.wait_on_host(Instant::now().checked_add(limit)) {
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn wait_on_host(&self, deadline: Option<Instant>) -> Result<()> {
        while !self.is_there() {
            if let Some(gone) = self.failed() {
                return Err(gone);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let reason = "the other process's work was not done before the timeout".to_owned();
                let (op, location) = (self.op, self.location);
                return Err(ErrorKind::TimedOut { reason }.of(op).at(location));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn gone(&self) -> Error {
        let reason = "it ended before it completed the work that this call waits for; the values of \
                      the tensor are unknown, and may still change";
        let site = Site { op: self.op, location: self.location };
        Error::new(ErrorKind::PeerGone { reason: reason.to_owned() }, site)
    }
}

impl PartialEq for AwaitedSignal {
    fn eq(&self, other: &Self) -> bool {
        self.is_of(&other.semaphore) && self.number == other.number
    }
}

impl Eq for AwaitedSignal {}
