//! An NCCL that does nothing, for [`NullDriver`].

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use super::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::null::NullDriver;
use crate::{DriverError, Result, StreamHandle};

/// Position of the number of ranks in a handle's raw value. The rank is in the bits below.
const RANKS_SHIFT: u32 = 32;

/// State of hanging calls, which return once their communicator is interrupted
/// ([`NullDriver::with_hanging_collectives`]).
#[derive(Debug, Default)]
pub(crate) struct Hanging {
    /// Communicators whose calls no longer hang.
    interrupted: Mutex<HashSet<CommHandle>>,
    changed: Condvar,
}

impl Hanging {
    fn hang(&self, comm: CommHandle) -> DriverError {
        let interrupted = self.interrupted.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.changed.wait_while(interrupted, |all| !all.contains(&comm));
        drop(wait.unwrap_or_else(PoisonError::into_inner));
        let (call, status) = ("ncclGroupEnd", "ncclInternalError".into());
        DriverError::LibraryCall { call, status, detail: "interrupted".into(), location: None }
    }

    /// Forgets that an earlier communicator with the same handle was interrupted.
    fn begin(&self, comm: CommHandle) {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).remove(&comm);
    }

    fn interrupt(&self, comm: CommHandle) {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).insert(comm);
        self.changed.notify_all();
    }
}

// SAFETY: this implementation enqueues no work and accesses no memory.
unsafe impl Nccl for NullDriver {
    fn version(&self) -> Result<u32> {
        Ok(0)
    }

    fn unique_id(&self) -> Result<UniqueId> {
        Ok(UniqueId::from_bytes([0; UniqueId::BYTES]))
    }

    fn comm_init(
        &self,
        device: usize,
        _: &UniqueId,
        ranks: usize,
        rank: usize,
    ) -> Result<CommHandle> {
        // SAFETY: this implementation encodes a communicator as its number of ranks and its rank.
        let comm = unsafe { CommHandle::new((ranks as u64) << RANKS_SHIFT | rank as u64, device) };
        if let Some(hanging) = &self.hanging {
            hanging.begin(comm);
        }
        Ok(comm)
    }

    unsafe fn comm_split(
        &self,
        comm: CommHandle,
        color: Option<u32>,
        _: usize,
    ) -> Result<Option<CommHandle>> {
        Ok(color.map(|_| comm))
    }

    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)> {
        let ranks = comm.raw() >> RANKS_SHIFT;
        Ok(((comm.raw() - (ranks << RANKS_SHIFT)) as usize, ranks as usize))
    }

    unsafe fn comm_state(&self, _: CommHandle) -> Result<CommState> {
        Ok(CommState::Ready)
    }

    unsafe fn enqueue(&self, comm: CommHandle, _: &[Collective], _: StreamHandle) -> Result<()> {
        self.hanging.as_ref().map_or(Ok(()), |hanging| Err(hanging.hang(comm)))
    }

    unsafe fn comm_interrupt(&self, comm: CommHandle) -> Result<()> {
        if let Some(hanging) = &self.hanging {
            hanging.interrupt(comm);
        }
        Ok(())
    }

    unsafe fn comm_abort(&self, _: CommHandle) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::Driver;
    use crate::null::NullDriver;
    use crate::owned::Communicator;

    #[test]
    fn ranks_know_their_numbers_and_do_not_wait() {
        let driver: Arc<dyn Driver> = Arc::new(NullDriver::new(3));
        let id = driver.nccl().unwrap().unique_id().unwrap();
        let comm = Communicator::new(&driver, 2, &id, 7, 5, Duration::ZERO).unwrap();
        assert_eq!((comm.rank(), comm.ranks(), comm.device()), (5, 7, 2));
        assert!(comm.split(None, 0, Duration::ZERO).unwrap().is_none());
    }
}
