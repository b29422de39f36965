//! A device's memory pool of the driver's (`cudaMallocAsync`).

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned::{MemPool, Stream};
use warpline_cuda_sys_safe::{Driver, DriverError, MemAccess};
use warpline_sync::{Mutex, MutexGuard};

use super::CudaMemory;

/// The pool, once it was needed, and who may use its memory.
#[derive(Debug, Default)]
pub(super) struct DriverPool(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pool: Option<MemPool>,
    peers: Vec<usize>,
}

impl DriverPool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exists(&self) -> bool {
        self.lock().pool.is_some()
    }

    /// Allocates for work that is given to the stream from now on.
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
        // It keeps what it has until it is trimmed, as PyTorch's does.
        pool.set_release_threshold(u64::MAX)?;
        for &peer in &state.peers {
            pool.set_access(&[(peer, MemAccess::ReadWrite)])?;
        }
        Ok(state.pool.insert(pool).clone())
    }

    /// Opens it to a peer.
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

    /// Gives back what is not allocated.
    pub(super) fn trim(&self) {
        // What cannot be trimmed now is asked for again when memory is short.
        let _ = self.lock().pool.as_ref().map(|pool| pool.trim(0));
    }
}
