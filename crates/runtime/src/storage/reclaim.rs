//! A cache of another crate, which gives up its memory before an allocation fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock, PoisonError};

use warpline_alloc::AllocError;
use warpline_alloc::cuda::{CudaAllocator, CudaBlock};
use warpline_stream::Stream;
use warpline_sync::Mutex;

use crate::Runtime;

static RECLAIM: OnceLock<fn(&Runtime) -> bool> = OnceLock::new();
/// Number of calls of [`RECLAIM`] that freed memory.
static RECLAIMED: AtomicU64 = AtomicU64::new(0);
/// Locked during a call of [`RECLAIM`], so that other threads wait for the memory that the call frees.
static RECLAIMING: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

/// Sets the function that an allocation of device memory calls if the device has no free memory. If the function frees
/// memory of the runtime and returns `true`, the allocation tries again. The first function is kept.
///
/// Any thread may call the function, also while it holds locks of this crate. The function may drop storages. It must
/// not enqueue work or run code of the program.
pub fn reclaim_before_out_of_memory(reclaim: fn(&Runtime) -> bool) {
    let _ = RECLAIM.set(reclaim);
}

/// Allocates memory of a device for a stream, again after another cache has freed memory.
#[track_caller]
pub(crate) fn malloc_or_reclaim(
    runtime: &Runtime,
    allocator: &CudaAllocator,
    bytes: usize,
    stream: &Stream,
) -> Result<CudaBlock, AllocError> {
    let before = RECLAIMED.load(Ordering::Acquire);
    let error = match allocator.malloc(bytes, stream.raw()) {
        Err(error @ AllocError::OutOfMemory(_)) => error,
        other => return other,
    };
    let Some(reclaim) = RECLAIM.get() else { return Err(error) };
    let reclaiming = RECLAIMING.lock().unwrap_or_else(PoisonError::into_inner);
    if reclaim(runtime) {
        RECLAIMED.fetch_add(1, Ordering::Release);
    }
    drop(reclaiming);
    // Another thread may have freed the memory since the first attempt.
    if RECLAIMED.load(Ordering::Acquire) == before {
        return Err(error);
    }
    allocator.malloc(bytes, stream.raw())
}
