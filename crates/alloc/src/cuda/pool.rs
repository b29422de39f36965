//! The driver's memory pool of a device (`cudaMallocAsync`).

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::{MemPool, Stream};
use warpline_cuda_sys_safe::{Driver, DriverError, MemAccess};
use warpline_sync::{Mutex, MutexGuard};

use super::CudaMemory;

/// The pool, created on first use, and the devices that may access its memory.
#[derive(Debug, Default)]
pub(super) struct DriverPool(Mutex<DriverPoolState>);

#[derive(Debug, Default)]
struct DriverPoolState {
    pool: Option<MemPool>,
    peers: Vec<usize>,
}

impl DriverPool {
    fn lock(&self) -> MutexGuard<'_, DriverPoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exists(&self) -> bool {
        self.lock().pool.is_some()
    }

    /// Allocates memory in the order of the stream.
    pub(super) fn alloc(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
        stream: &Stream,
    ) -> Result<CudaMemory, DriverError> {
        let pool = self.pool(driver, device)?;
        Ok(CudaMemory::of_stream(pool.alloc(bytes, stream)?))
    }

    fn pool(&self, driver: &Arc<dyn Driver>, device: usize) -> Result<MemPool, DriverError> {
        let mut state = self.lock();
        if let Some(pool) = &state.pool {
            return Ok(pool.clone());
        }
        let pool = MemPool::new(driver, device)?;
        // The pool keeps its memory until it is trimmed, as in PyTorch.
        pool.set_release_threshold(u64::MAX)?;
        for &peer in &state.peers {
            pool.set_access(&[(peer, MemAccess::ReadWrite)])?;
        }
        Ok(state.pool.insert(pool).clone())
    }

    /// Gives a peer access to the pool's memory.
    pub(super) fn allow(&self, peer: usize) -> Result<(), DriverError> {
        let mut state = self.lock();
        if state.peers.contains(&peer) {
            return Ok(());
        }
        if let Some(pool) = &state.pool {
            pool.set_access(&[(peer, MemAccess::ReadWrite)])?;
        }
        state.peers.push(peer);
        Ok(())
    }

    /// Releases the memory that is not allocated.
    pub(super) fn trim(&self) {
        // An error is ignored: the next trim, when memory is short or the cache is emptied, tries
        // again.
        let _ = self.lock().pool.as_ref().map(|pool| pool.trim(0));
    }
}
