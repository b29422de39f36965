//! An NCCL that does nothing, for the driver that does nothing.

use super::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::null::NullDriver;
use crate::{Result, StreamHandle};

/// Where a handle's raw value has the number of ranks; below it is the rank.
const RANKS_SHIFT: u32 = 32;

// SAFETY: it enqueues nothing and touches nothing.
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
        // SAFETY: this is how this implementation numbers them.
        Ok(unsafe { CommHandle::new((ranks as u64) << RANKS_SHIFT | rank as u64, device) })
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

    unsafe fn enqueue(&self, _: CommHandle, _: &[Collective], _: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn comm_interrupt(&self, _: CommHandle) -> Result<()> {
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
    fn ranks_know_their_numbers_and_wait_for_nobody() {
        let driver: Arc<dyn Driver> = Arc::new(NullDriver::new(3));
        let id = driver.nccl().unwrap().unique_id().unwrap();
        let comm = Communicator::new(&driver, 2, &id, 7, 5, Duration::ZERO).unwrap();
        assert_eq!((comm.rank(), comm.ranks(), comm.device()), (5, 7, 2));
        assert!(comm.split(None, 0, Duration::ZERO).unwrap().is_none());
    }
}
